"""Processes whose main thread has ended: /proc has nothing more of it, and all of those that go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfprof.recording.reader import read_recording
from tests.integration.recorded import (
    ALL_INTERPRETERS,
    PYTHON,
    bpfprof,
    checked,
    collapsed,
    let_run,
    needs_root,
    program,
    recording,
    running,
)

pytestmark = [needs_root, pytest.mark.gate]
LEAST_S = 0.3  # on a CPU
# A library is known some milliseconds after its mapping: 1 of 30 runs had a sample before that. Were it never known,
# half of the time would be of such.
LATE_US = 60_000


def assert_left_is_whole(path: Path, pid: int, late_us: int = 0) -> None:
    """Its functions have names, and no code is in a file that was not seen, but for so long after it was mapped."""
    checked(path)
    with open(path, "rb") as file:
        (process,) = (it for it in read_recording(file).processes if it.pid == pid)
    assert process.interpreter == "cpython" and not process.note
    seen = collapsed(path).of_process(pid)
    (left,) = {thread for _, thread, frames, _ in seen.lines if any(frame.startswith("work (") for frame in frames)}
    assert left.startswith("thread left (")
    assert seen.total_us("digest", "cpu")
    assert sum(us for _, _, frames, us in seen.lines if "in no known mapping" in frames[0]) <= late_us


@pytest.mark.parametrize("python", [*ALL_INTERPRETERS.values()], ids=[*ALL_INTERPRETERS])
def test_before_it_is_recorded(python: str, tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    with running(python, program("main_ended.py"), "pthread_exit") as target:
        assert target.answer() == "ended\n"
        with recording("--pid", target.pid, "-o", path) as recorder:
            assert "ended before" not in recorder.heard
            let_run(target.pid, LEAST_S)
            recorder.end()
    assert_left_is_whole(path, target.pid)


@pytest.mark.second_tier
def test_before_the_machine_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    with running(PYTHON, program("main_ended.py"), "exit") as target:
        assert target.answer() == "ended\n"
        with recording("-a", "-o", path) as recorder:
            let_run(target.pid, LEAST_S)
            recorder.end()
    with open(path, "rb") as file:
        (process,) = (it for it in read_recording(file).processes if it.pid == target.pid)
    assert process.interpreter == "cpython" and not process.note
    seen = collapsed(path).of_process(target.pid)
    assert seen.total_us("work", "cpu") and seen.total_us("digest", "cpu")


def test_while_it_is_recorded(tmp_path: Path) -> None:
    """A library that is loaded after that is seen, too."""
    path = tmp_path / "x.bpfprof"
    with (
        running(PYTHON, program("main_ended.py"), "pthread_exit", "later") as target,
        recording("--pid", target.pid, "-o", path) as recorder,
    ):
        target.tell("end")
        assert target.answer() == "ended\n"
        let_run(target.pid, LEAST_S)
        recorder.end()
    assert_left_is_whole(path, target.pid, LATE_US)
    assert any("(libcrypto" in frame for _, _, frames, _ in collapsed(path).lines for frame in frames)


@pytest.mark.second_tier
def test_the_live_table() -> None:
    with running(PYTHON, program("main_ended.py"), "pthread_exit") as target:
        assert target.answer() == "ended\n"
        # In the first of two the program may still be looked at: it had 0.47 s of threads and no functions once.
        text = bpfprof("top", "--pid", target.pid, "--batch", "-n", 2, "-d", 1).stdout
    assert "left" in text and "main_ended.py:" in text
