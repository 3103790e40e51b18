"""Files for other tools, read back by these: CPU, ready and waits are those of the JSON."""

from __future__ import annotations

import csv
import io
import json
import pstats
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bpfprof.model.profile import Profile
from bpfprof.render.formats import RenderOptions, find_format
from tests.unit.render.profiles import deep_profile, empty_profile, hostile_profile, training_profile, waiting_profile

Nanoseconds = tuple[int, int, int]  # CPU, ready, wait
BROWSER = Path(__file__).parents[2] / "browser"
every_profile = pytest.mark.parametrize(
    "profile", [training_profile, waiting_profile, hostile_profile, deep_profile, empty_profile]
)
needs_pprof = pytest.mark.skipif(
    shutil.which("node") is None or not (BROWSER / "node_modules" / "pprof-format").is_dir(),
    reason="tests/browser/node_modules has no pprof-format",
)
needs_annotate = pytest.mark.skipif(shutil.which("callgrind_annotate") is None, reason="no callgrind_annotate")


def written(profile: Profile, name: str, path: Path, options: RenderOptions | None = None) -> Path:
    known = find_format(name)
    assert known is not None
    content = known.render(profile, options or RenderOptions())
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def wanted(profile: Profile, tmp_path: Path) -> Nanoseconds:
    totals = json.loads(written(profile, "json", tmp_path / "a.json").read_text())["totals"]
    cpu, ready, wait, idle = (round(totals[name] * 1e9) for name in ("cpu_s", "ready_s", "wait_s", "idle_s"))
    return cpu, ready, wait + idle


def read_pprof(file: Path) -> dict[str, Any]:
    done = subprocess.run(["node", str(BROWSER / "pprof.mjs"), str(file)], capture_output=True, text=True, check=True)
    content = json.loads(done.stdout)
    assert isinstance(content, dict)
    return content


@pytest.mark.second_tier
@needs_pprof
@every_profile
def test_pprof(profile: Callable[[], Profile], tmp_path: Path) -> None:
    content = read_pprof(written(profile(), "pprof", tmp_path / "a.pb.gz"))
    assert content["types"] == [[name, "nanoseconds"] for name in ("cpu", "ready", "wait")]
    assert content["default"] == "cpu"
    sums = tuple(sum(sample["values"][place] for sample in content["samples"]) for place in range(3))
    assert sums == wanted(profile(), tmp_path)


@pytest.mark.second_tier
@needs_pprof
def test_pprof_has_lines_objects_and_labels(tmp_path: Path) -> None:
    content = read_pprof(written(training_profile(), "pprof", tmp_path / "a.pb.gz"))
    assert "/usr/lib/libopenblas.so.0" in content["files"]
    frames = {tuple(frame) for sample in content["samples"] for frame in sample["frames"]}
    assert ("Trainer.step", "model.py", 17) in frames
    labels = [sample["labels"] for sample in content["samples"]]
    assert {"thread": "MainThread", "tid": 100, "process": "python", "pid": 100, "reason": "gil"} in labels
    content = read_pprof(written(waiting_profile(), "pprof", tmp_path / "b.pb.gz"))
    assert {sample["labels"].get("lock") for sample in content["samples"]} >= {"#1"}


@needs_annotate
@every_profile
def test_callgrind(profile: Callable[[], Profile], tmp_path: Path) -> None:
    file = written(profile(), "callgrind", tmp_path / "a.callgrind")
    done = subprocess.run(
        ["callgrind_annotate", "--threshold=100", "--auto=no", str(file)], capture_output=True, text=True, check=True
    )
    assert not done.stderr
    found = re.search(r"^ *([\d,]+) .*PROGRAM TOTALS", done.stdout, re.MULTILINE)
    assert found or profile is empty_profile, done.stdout
    # What the functions spent themselves: lines of costs that no line of a call stands before.
    lines = file.read_text().splitlines()
    costs = [one for before, one in zip(lines, lines[1:]) if one[:1].isdigit() and not before.startswith("calls=")]
    sums = [sum(int(line.split()[place]) for line in costs) for place in (1, 2, 3)]
    assert sums == [(ns + 500) // 1000 for ns in wanted(profile(), tmp_path)]
    assert not found or int(found[1].replace(",", "")) == sums[0]


@every_profile
def test_pstats(profile: Callable[[], Profile], tmp_path: Path) -> None:
    file = written(profile(), "pstats", tmp_path / "a.pstats")
    if profile is empty_profile:
        return  # pstats refuses a file without a function
    stats: dict[Any, Any] = pstats.Stats(str(file)).stats  # type: ignore[attr-defined]
    sums = [0, 0, 0]
    for (_, _, name), (_, _, own, below, callers) in stats.items():
        sums[1 if name == "[runqueue]" else 2 if name.startswith("[off-cpu") else 0] += round(own * 1e9)
        assert own <= below
        assert not callers or sum(round(it[2] * 1e9) for it in callers.values()) == round(own * 1e9)
    assert tuple(sums) == wanted(profile(), tmp_path)


@every_profile
def test_gprof2dot_opens_them(profile: Callable[[], Profile], tmp_path: Path) -> None:
    for name in ("callgrind", "pstats") if profile is not empty_profile else ():
        file = written(profile(), name, tmp_path / f"a.{name}")
        command = [sys.executable, "-m", "gprof2dot", "-f", name, "-n0", "-e0", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and done.stdout.startswith("digraph"), done.stderr


@every_profile
def test_csv_has_the_rows_of_the_json(profile: Callable[[], Profile], tmp_path: Path) -> None:
    for by in ("function", "line", "library", "thread", "reason", "lock"):
        options = RenderOptions(by=by)
        text = written(profile(), "csv", tmp_path / "a.csv", options).read_text()
        rows = json.loads(written(profile(), "json", tmp_path / "a.json", options).read_text())["rows"]
        found = list(csv.DictReader(io.StringIO(text)))
        assert [row[by] for row in found] == ["" if row[by] is None else str(row[by]) for row in rows]
        for name in ("cpu_self_s", "ready_total_s", "wait_self_s"):
            assert [round(float(row[name]), 9) for row in found] == [row[name] for row in rows]
