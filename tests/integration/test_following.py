"""Children, however they were started, programs that become others, and pids that are given again: one recording."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from bpfprof.recording.contents import Recording
from bpfprof.recording.reader import read_recording
from tests.integration.recorded import BPFPROF, INTERPRETERS, Folded, bpfprof, collapsed, needs_root, program

pytestmark = needs_root
SHORT_COUNT, THREAD_COUNT = 30, 2000
# family.py: `work` has 300 ms of CPU time, so that a new Python has some left when its frames can be read, however late
# bpfprof gets a CPU; `rest` sleeps for 100 ms, less what the thread was kept from its CPU between looking at the clock
# and leaving for its sleep.
RATE_HZ, LEAST_WORK_US, LEAST_REST_US = 499, 20_000, 79_000
WAYS = (
    *("fork", "subprocess", "subprocess, fork", "posix_spawn", "env", "sh", "system", "concurrent.futures"),
    *("multiprocessing fork", "multiprocessing spawn", "multiprocessing forkserver", "execve in a thread", "uv run"),
)


@dataclass
class Family:
    """What each process said of itself, {"how", "pid", "parent"}, and what was seen."""

    said: list[dict[str, str | int]]
    recording: Recording
    folded: Folded

    def pids(self, how: str) -> list[int]:
        return [int(child["pid"]) for child in self.said if child["how"] == how]

    def rested_us(self, pid: int) -> int:
        """By its own clock: a sleep ends late where the machine is busy."""
        return next(int(child["us"]) for child in self.said if (child["how"], child["pid"]) == ("rested", pid))


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    path = tmp_path_factory.mktemp("family") / "family.bpfprof"
    python, other = INTERPRETERS.get("3.13"), INTERPRETERS.get("3.12")
    if python is None or other is None:
        pytest.skip("no CPython 3.13, or no 3.12")
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(BPFPROF[0]).parent))
    options = ["--other", other, "--reuse-pids", "--threads", str(THREAD_COUNT), *(["--uv", uv] if uv else [])]
    done = bpfprof("record", "-r", RATE_HZ, "-o", path, "--", python, program("family.py"), *options)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    with open(path, "rb") as file:
        return Family(said, read_recording(file), collapsed(path))


@pytest.mark.parametrize("how", WAYS)
def test_a_child_is_followed(family: Family, how: str) -> None:
    pids = family.pids(how)
    if how == "uv run" and not pids:
        pytest.skip("no uv")
    seen = family.folded.of_process(pids[0])
    assert seen.total_us("work", "cpu") > LEAST_WORK_US
    assert LEAST_REST_US < seen.total_us("rest", "off") <= family.rested_us(pids[0]) + 1


def test_a_program_becomes_another_python(family: Family) -> None:
    (pid,) = family.pids("exec_from")
    assert family.pids("exec_to") == [pid]
    seen = family.folded.of_process(pid)
    assert seen.total_us("before_exec", "cpu") > LEAST_WORK_US and seen.total_us("after_exec", "cpu") > LEAST_WORK_US
    (process,) = (process for process in family.recording.processes if process.pid == pid)
    assert process.version.startswith("3.12.") and process.command_line[-1] == "exec_to"


def test_a_pid_that_is_given_again_is_another_process(family: Family) -> None:
    (pid,) = family.pids("first_life")
    if family.pids("second_life") != [pid]:
        pytest.skip("others took the pid each time")
    seen = family.folded.of_process(pid)
    assert seen.total_us("first_life", "cpu") > LEAST_WORK_US and seen.total_us("second_life", "cpu") > LEAST_WORK_US
    assert len([process for process in family.recording.processes if process.pid == pid]) == 2


def test_who_lives_for_20_ms_has_names(family: Family) -> None:
    pids = family.pids("short")
    assert len(pids) == SHORT_COUNT
    slept_us = [family.folded.of_process(pid).total_us("nap", "off") for pid in pids]
    # One may have been kept from its CPU for a millisecond as it was about to sleep until a time that it knew.
    assert all(slept_us) and sum(us > 19_000 for us in slept_us) >= SHORT_COUNT - 1, slept_us
    lines = [process.command_line for process in family.recording.processes if process.name == "sleep"]
    # Theirs is read while they live, which on a busy machine is too late for some.
    assert len(lines) == SHORT_COUNT and lines.count(["/bin/sleep", "0.02"]) >= SHORT_COUNT / 2


def test_all_threads_of_one_that_has_many(family: Family) -> None:
    (pid,) = family.pids("threads")
    seen = family.folded.of_process(pid)
    resting = {thread for _, thread, frames, _ in seen.lines if any(frame.startswith("rest (") for frame in frames)}
    assert len({thread for _, thread, _, _ in seen.lines}) == THREAD_COUNT + 1
    assert len(resting) > 0.99 * THREAD_COUNT
    assert not any("lost" in frame for _, _, frames, _ in seen.lines for frame in frames)


def test_nobody_has_a_name_that_is_not_its_own(family: Family) -> None:
    own = {"work", "rest", "nap", "first_life", "second_life", "before_exec", "after_exec"}
    expected = {how: {"work", "rest"} for how in WAYS} | {"short": {"nap"}, "threads": {"rest"}}
    for child in family.said:
        how = str(child["how"])
        if how in expected:
            assert family.folded.of_process(int(child["pid"])).functions() & own <= expected[how], how
