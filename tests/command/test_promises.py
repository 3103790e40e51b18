"""What the README promises, each once on a real program, on three interpreters; nothing depends on who has the CPUs.

Times of threads are the scheduler's, so they are exact however busy the machine is. CPU time of functions is sampled:
at 499 Hz a function that has all of a thread's 0.6 s of CPU has 300 samples, of which half would do.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import free_threaded
from tests.integration.recorded import (
    ALL_INTERPRETERS,
    COLLAPSED_LINE,
    PYTHON,
    Folded,
    bpfprof,
    checked,
    collapsed,
    needs_root,
    program,
    recording,
    running,
)

pytestmark = needs_root


@dataclass
class Kept:
    """A recording of promises.py, and what the program says of itself: function -> seconds."""

    path: Path
    pid: int
    truth: dict[str, float]
    folded: Folded
    has_gil: bool


@pytest.fixture(scope="module", params=list(ALL_INTERPRETERS.values()), ids=list(ALL_INTERPRETERS))
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    path = tmp_path_factory.mktemp("promises") / "x.bpfprof"
    with running(request.param, program("promises.py")) as target:
        with recording("-p", target.pid, "-r", "499", "-o", path) as recorder:
            target.tell("begin")
            truth = json.loads(target.answer())
            done = recorder.end()
        assert done.returncode == 0, done.stderr
    has_gil = request.param not in free_threaded.pythons().values()
    return Kept(path, target.pid, truth, collapsed(path), has_gil)


def test_every_thread_adds_up(kept: Kept) -> None:
    checked(kept.path)
    quality = json.loads(bpfprof("report", kept.path, "-f", "json").stdout)["quality"]
    assert quality["accounted"] == pytest.approx(1, abs=1e-6) and quality["lost"] == 0, quality


def test_every_line_follows_the_contract(kept: Kept) -> None:
    lines = bpfprof("report", kept.path, "-f", "collapsed").stdout.splitlines()
    assert lines and not [line for line in lines if not COLLAPSED_LINE.fullmatch(line)]


@pytest.mark.parametrize("function", ["compute", "compete", "work"])
def test_cpu_time_is_under_its_function(kept: Kept, function: str) -> None:
    """One of them runs in a child that is started while the program is recorded."""
    assert kept.truth[function] * 0.5e6 < kept.folded.total_us(function, "cpu") < kept.truth[function] * 1.3e6


@pytest.mark.parametrize(
    ("function", "reason"), [("nap", "sleep"), ("wait_for_lock", "lock"), ("read_pipe", "pipe"), ("compute", "gil")]
)
def test_waits_have_their_function_and_reason(kept: Kept, function: str, reason: str) -> None:
    waits = [line for line in kept.folded.lines if line[2][-1:] == (f"[off-cpu: {reason}]",)]
    waited_us = Folded(waits).total_us(function)
    if reason == "gil":  # how much of it there is depends on the CPUs; with one there may be little
        assert (waited_us > 0) == kept.has_gil
    else:  # all that is not the time until the thread has a CPU and the GIL again
        ready_us = kept.folded.total_us(function, "runqueue")
        others = [line for line in kept.folded.lines if line[2][-1:] == ("[off-cpu: gil]",)]
        least_us = kept.truth[function] * 1e6 - ready_us - Folded(others).total_us(function)
        assert 0.9 * least_us - 50_000 < waited_us < kept.truth[function] * 1.02e6 + 5_000


def test_who_held_the_gil(kept: Kept) -> None:
    """`compute` and `compete` have it in turns; on a busy machine a holder waits for a CPU in what reads its clock."""
    text = bpfprof("offcpu", kept.path, "--details").stdout
    turns = {"competitor": ("compute", "MainThread"), "MainThread": ("compete", "competitor")} if kept.has_gil else {}
    for waiter, (function, holder) in turns.items():
        held = rf"^{waiter} \(\d+\): .* for the GIL; held (\d+)% in (?:{function}|of_thread) \(\S* of thread {holder} "
        first = re.search(held, text, re.MULTILINE)
        assert first and int(first[1]) > 20, text


def test_threads_have_their_names(kept: Kept) -> None:
    names = {thread.removeprefix("thread ").rpartition(" (")[0] for _, thread, _, _ in kept.folded.lines}
    assert {"MainThread", "napper", "waiter", "reader", "competitor"} <= names


def test_the_whole_host_has_it_too(tmp_path: Path) -> None:
    with running(PYTHON, program("promises.py")) as target:
        with recording("-a", "-o", tmp_path / "all.bpfprof") as recorder:
            target.tell("begin")
            target.answer()
            recorder.end()
        assert collapsed(tmp_path / "all.bpfprof").of_process(target.pid).total_us("compute", "cpu") > 0
