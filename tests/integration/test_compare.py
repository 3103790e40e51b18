"""`compare`: ranks of a launcher in one recording, and in one of each."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.recorded import PYTHON, assert_told, bpfprof, needs_root, program, running, started

pytestmark = needs_root
RATE = ("-r", 499)
TOGETHER_S = 4  # in which all are recorded


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, ...]]:
    """Two ranks, recorded with their launcher and, at the same time, apart."""
    folder = tmp_path_factory.mktemp("ranks")
    one, apart = folder / "launcher.bpfprof", [folder / f"{rank}.bpfprof" for rank in range(2)]
    with running(PYTHON, program("rank_loops.py"), "2") as target:
        pids = target.first_line.split()[1:]
        files = {target.pid: one, **dict(zip(pids, apart))}
        with contextlib.ExitStack() as stack:
            begun = [stack.enter_context(started("-p", pid, *RATE, "-o", path)) for pid, path in files.items()]
            for recorder in begun:  # of which one may begin seconds after another
                recorder.wait_until_it_records()
            time.sleep(TOGETHER_S)
            for recorder in begun:
                assert recorder.end().returncode == 0
    return {"launcher": (one,), "apart": tuple(apart)}


@pytest.mark.parametrize("how", ["launcher", "apart"])
def test_the_slow_rank_and_why(recorded: dict[str, tuple[Path, ...]], how: str) -> None:
    found: dict[str, Any] = json.loads(bpfprof("compare", *recorded[how], "-f", "json").stdout)
    verdict = found["verdict"]
    assert found["steps_together"] and verdict["rank"] == 1, verdict["sentence"]
    assert verdict["cause"].startswith("sleep in backward, hook (rank_loops.py:"), verdict["sentence"]
    assert verdict["where"]["function"] == "hook" and verdict["where"]["file"].endswith("/rank_loops.py")
    assert verdict["share_of_steps"] > 0.9 and verdict["late_s"] > 0.19
    # A sleep ends late where the host is busy, never early; of what is told of a second it is more.
    assert verdict["details"]["state_more_s"] > 0.19
    assert [each["rank"] for each in found["ranks"]] == [0, 1]
    assert {each["file"] for each in found["ranks"]} == {str(path) for path in recorded[how]}
    for each in found["ranks"]:
        assert sum(each["phases"].values()) == pytest.approx(each["mean_step_s"])
    assert found["ranks"][0]["waits_for_others_s"] > 0.19
    counts = {each["steps"] for each in found["ranks"]}
    assert len(counts) == 1 and counts.pop() >= 5
    page = bpfprof("compare", *recorded[how], "-f", "html", "-o", "-").stdout
    assert "<h1>2 ranks: rank 1 is slowest</h1>" in page and page.count("<polyline ") == 2
    text = bpfprof("compare", *recorded[how]).stdout
    assert text.startswith("Rank 1 is slowest: ") and "backward, sleep, hook (rank_loops.py)" in text
    assert " ".join(text.split()).count(" s accounted; ") == len(recorded[how]), "the quality of each is in short"


def test_processes_of_a_launcher_are_called_by_their_ranks(recorded: dict[str, tuple[Path, ...]]) -> None:
    rows = json.loads(bpfprof("report", *recorded["launcher"], "--by", "process", "-f", "json").stdout)["rows"]
    assert {row["worker"] for row in rows if "worker" in row} == {"rank 0", "rank 1"}


def test_what_cannot_be_compared(recorded: dict[str, tuple[Path, ...]], tmp_path: Path) -> None:
    assert_told(bpfprof("compare", check=None), 2, "give recordings")
    assert_told(bpfprof("compare", recorded["apart"][0], check=None), 5, "one training loop")
    (tmp_path / "bad.bpfprof").write_bytes(b"no recording")
    done = bpfprof("compare", *recorded["apart"], tmp_path / "bad.bpfprof", check=None)
    assert_told(done, 5, "bad.bpfprof")
    assert done.stdout.startswith("Rank 1 is slowest: ")
