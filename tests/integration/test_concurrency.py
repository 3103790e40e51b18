"""How many threads were runnable at a time, as programs know it that compute side by side for known times."""

from __future__ import annotations

import json
import math
from pathlib import Path

from tests.integration.recorded import PYTHON, bpfprof, needs_root, program

pytestmark = needs_root


def test_so_many_were_runnable_as_the_program_says(tmp_path: Path) -> None:
    path = tmp_path / "a.bpfprof"
    said = bpfprof("record", "-o", path, "--", PYTHON, program("at_once.py")).stdout
    times = json.loads(next(line for line in said.splitlines() if line.startswith("[")))
    report = json.loads(bpfprof("report", path, "-f", "json").stdout)
    found = report["concurrency"]
    moments = sorted({moment for pair in times for moment in pair})
    runnable = {row["threads"]: row["runnable_s"] for row in found["at_once"]}
    for least in (2, 3):
        expected = sum(
            end - begin
            for begin, end in zip(moments, moments[1:])
            if sum(one <= begin and end <= other for one, other in times) >= least
        )
        seen = sum(s for number, s in runnable.items() if number >= least)
        # A process goes on after its last look at the clock until it has ended.
        assert seen > expected - 0.02, (runnable, times)
    assert max(runnable) <= 4  # the first process, while it starts the others
    threads = report["threads"]
    assert math.isclose(
        sum(n * s for n, s in runnable.items()), sum(it["cpu_s"] + it["ready_s"] for it in threads), abs_tol=1e-6
    )
    on_cpu = {row["threads"]: row["on_cpu_s"] for row in found["at_once"]}
    assert math.isclose(sum(n * s for n, s in on_cpu.items()), sum(it["cpu_s"] for it in threads), abs_tol=1e-6)
    assert math.isclose(sum(on_cpu.values()), found["wall_s"], abs_tol=1e-6)
    # More than there are CPUs where a thread is robbed of its CPU for moments that are not known.
    beyond_s = sum(number * s for number, s in on_cpu.items() if number > found["cpus"])
    assert beyond_s <= found["spread_s"], found
    text = bpfprof("report", path, "--details").stdout
    assert "threads at once" in text and f"than the {found['cpus']:g} CPU" in " ".join(text.split())
