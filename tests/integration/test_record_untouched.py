"""Nothing is done to the target: no tracing, no signal, no stop, no write, not a single context switch."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.recorded import (
    BPFPROF,
    PYTHON,
    Target,
    assert_told,
    bpfprof,
    completed,
    json_line,
    needs_root,
    program,
    recording,
    running,
    some_interpreters,
)
from tests.looks import Look

pytestmark = needs_root
ACTS_ON_OTHERS = (
    "ptrace,process_vm_readv,process_vm_writev,process_madvise,kill,tkill,tgkill,rt_sigqueueinfo,rt_tgsigqueueinfo,"
    "pidfd_send_signal,pidfd_getfd,setpriority,sched_setaffinity,sched_setscheduler,sched_setattr,prlimit64,kcmp"
)
# The main thread waits for the two questions, and may wait for the GIL before and after each answer. While it answers
# it has the GIL, and the other one asks for it each 5 ms: many switches where others take its CPU just then.
MOST_APART, WINDOW_S = 8, 1.5
# A call and its first arguments, after strace's pid of the caller; an argument is a number, or PID<COMM> with -Y.
CALL = re.compile(r"^\d+ +(?P<name>\w+)\((?P<arguments>.*)")


def trace(tmp_path: Path, target_pid: int, calls: str, *options: str | Path) -> list[tuple[str, str]]:
    """(name, arguments) of the traced calls of a short recording and of every process that bpfprof starts."""
    if shutil.which("strace") is None:
        pytest.skip("no strace")
    log = tmp_path / "strace.log"
    # --seccomp-bpf stops it at these calls only, or the compiler would take minutes.
    strace = ["strace", "-f", "--seccomp-bpf", "-qq", "-o", str(log), "-e", f"trace={calls}"]
    record = ["record", "-p", str(target_pid), "-d", "1", *map(str, options)]
    done = completed([*strace, *BPFPROF, *record], None)
    if "PTRACE" in done.stderr or "Operation not permitted" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr.strip()}")
    assert_told(done, 0)
    found = [CALL.match(line) for line in log.read_text().splitlines()]
    return [(call["name"], call["arguments"]) for call in found if call]


def tids(pid: int) -> set[int]:
    return {int(name) for name in os.listdir(f"/proc/{pid}/task")}


@pytest.mark.gate
def test_no_call_acts_on_the_target(tmp_path: Path) -> None:
    with running(PYTHON, program("sleepers.py")) as target:
        theirs = tids(target.pid)
        calls = trace(tmp_path, target.pid, ACTS_ON_OTHERS, "-o", tmp_path / "x.bpfprof")
    # It may end its own compiler, look after its own limits and priority, and go to a CPU to read its clock.
    own = {"kill", "prlimit64", "setpriority", "sched_setaffinity", "sched_setscheduler"}
    assert {name for name, _ in calls} <= own, calls
    for name, arguments in calls:
        numbers = {int(number) for number in re.findall(r"\b\d+\b", arguments.partition("{")[0])}
        assert not numbers & theirs, f"{name}({arguments}"
        assert "SIGSTOP" not in arguments


@pytest.mark.gate
def test_the_target_is_opened_for_reading_only(tmp_path: Path) -> None:
    with running(PYTHON, program("deep.py")) as target:
        calls = trace(tmp_path, target.pid, "open,openat,openat2,creat", "-o", tmp_path / "x.bpfprof")
        opened = [arguments for _, arguments in calls if f"/proc/{target.pid}/" in arguments]
    assert any(f"/proc/{target.pid}/mem" in arguments for arguments in opened)
    for arguments in opened:
        assert "O_RDONLY" in arguments and "O_WRONLY" not in arguments and "O_RDWR" not in arguments


# --- what the target sees


class Sampler(threading.Thread):
    """Reads the state of every thread of a process as fast as it can, until told to end."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self.folder = Path(f"/proc/{pid}/task")
        self.states: dict[str, int] = {}
        self.tracers: set[str] = set()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            for name in os.listdir(self.folder):
                status = (self.folder / name / "status").read_text()
                fields = dict(line.split(":\t", 1) for line in status.splitlines())
                state = fields["State"][0]
                self.states[state] = self.states.get(state, 0) + 1
                self.tracers.add(fields["TracerPid"])


@contextmanager
def sampled(pid: int) -> Iterator[Sampler]:
    sampler = Sampler(pid)
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.over.set()
        sampler.join()


@pytest.mark.gate
@pytest.mark.parametrize("name", ["c_calls.py", pytest.param("sleepers.py", marks=pytest.mark.second_tier)])
def test_no_thread_is_ever_stopped_or_traced(name: str, tmp_path: Path) -> None:
    """From before the start of bpfprof until after its end."""
    with running(PYTHON, program(name)) as target, sampled(target.pid) as sampler:
        bpfprof("record", "-p", target.pid, "-d", "1.5", "-o", tmp_path / "x.bpfprof")
    assert sum(sampler.states.values()) > 1000
    assert set(sampler.states) <= set("RSD"), sampler.states  # never T (stopped) or t (traced)
    assert sampler.tracers == {"0"}


def switches(pid: int) -> dict[int, tuple[int, int]]:
    """(voluntary, involuntary) context switches by tid."""
    found = {}
    for tid in tids(pid):
        status = Path(f"/proc/{pid}/task/{tid}/status").read_text()
        counts = dict(re.findall(r"^(\w+)_ctxt_switches:\t(\d+)$", status, re.MULTILINE))
        found[tid] = int(counts["voluntary"]), int(counts["nonvoluntary"])
    return found


@some_interpreters
def test_threads_that_sleep_are_not_woken(python: str, tmp_path: Path) -> None:
    """Their stacks are read while they sleep; not one of them runs for it."""
    with running(python, program("sleepers.py")) as target:
        before = switches(target.pid)
        bpfprof("record", "-p", target.pid, "-d", "0.5", "-o", tmp_path / "x.bpfprof")
        after = switches(target.pid)
    # The main thread may come from its print() to its read() in between.
    assert {tid: count for tid, count in after.items() if before[tid] != count and tid != target.pid} == {}
    assert len(after) == 41


def counted(target: Target) -> tuple[int, int]:
    """(trips, voluntary switches) of switcher.py so far."""
    target.tell("count")
    counts = json_line(target.answer())
    return counts["round_trips"], counts["switches"]["voluntary"]


def test_a_program_has_no_more_switches_for_being_recorded(tmp_path: Path, look: Look) -> None:
    """A thread that pauses leaves the CPU of its own will once a pause, alone and recorded.

    Not so with two threads that wait for each other: whether one preempts the other, and so waits or not, is a race.
    """
    with (
        running(PYTHON, program("switcher.py"), "--alone", "--rate", "500") as target,
        recording("-p", target.pid, "-o", tmp_path / "x.bpfprof") as recorder,
    ):

        def judge(times: int) -> None:
            trips, spent = counted(target)
            time.sleep(times * WINDOW_S)  # the length of the measurement
            trips_after, spent_after = counted(target)
            assert trips_after - trips > 100 * times
            assert abs((spent_after - spent) - (trips_after - trips)) <= MOST_APART

        look(judge)
        assert_told(recorder.end(), 0)
