"""The self-test of `doctor`: records a program of which everything is known, and compares.

In goes a kernel side that is up, out comes what was found. The program runs on bpfprof's own interpreter, as the user
who called sudo, and touches nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys

from bpfprof.capture.launched import LaunchedCommand
from bpfprof.capture.options import CaptureOptions
from bpfprof.capture.process import State
from bpfprof.capture.session import Progress, Session
from bpfprof.capture.stop import StopRequest
from bpfprof.capture.targets import Targets
from bpfprof.capture.watch import Watch
from bpfprof.cpython.layouts_dynamic import SUPPORTED_VERSIONS
from bpfprof.errors import UnsupportedError
from bpfprof.kernel.checks import Finding
from bpfprof.kernel.kernel_side import KernelSide
from bpfprof.model.frames import FrameKind
from bpfprof.model.ids import Pid
from bpfprof.model.profile import Profile
from bpfprof.model.states import ThreadState, reason_number
from bpfprof.profile.build import build_profile
from bpfprof.recording.contents import Recording

_BURN_S, _NAP_S = 0.6, 0.5
# It begins when it is told through the socket that it is given, says how long it slept, and ends when it is told again.
_PROGRAM = f"""import os, sys, time
def burn():
    end = time.thread_time() + {_BURN_S}
    while time.thread_time() < end: sum(range(100))
def nap():
    begin = time.monotonic()
    time.sleep({_NAP_S})
    return time.monotonic() - begin
told = int(sys.argv[1])
os.read(told, 1)
burn()
slept = nap()
os.write(told, str(slept).encode())
os.read(told, 1)
"""
_SAMPLING_S = 0.15  # samples tell where CPU time went, 60 of them in burn()
_CLOCKS_S = 0.02  # clocks differ
_LATE_S = 0.5  # what a program may sleep besides
_WHOLE_SHARE = 0.9  # of stacks
_PATIENCE_S = 10.0  # a program that cannot be read begins all the same


def self_test(kernel: KernelSide) -> Finding:
    """Takes two seconds. Raises UnsupportedError when what was recorded is not what happened."""
    recording, slept_s = _record(kernel)
    profile = build_profile(recording)
    version = sys.version_info[:2]
    has_python = bool(recording.processes[0].interpreter)
    if not has_python and version in SUPPORTED_VERSIONS:
        raise UnsupportedError(f"the self-test saw no Python in its own program: {recording.processes[0].note}")
    wrong, seen = _compare(profile, has_python, slept_s)
    counts = profile.quality.truncated_counts
    whole = profile.quality.complete_count / max(profile.quality.complete_count + sum(counts.values()), 1)
    seen += f", {whole:.0%} of stacks whole"
    if wrong:
        raise UnsupportedError(f"the self-test recorded what did not happen: {'; '.join(wrong)}")
    if not has_python:
        return Finding("", f"Python {version[0]}.{version[1]} is not read yet: native frames only; {seen}")
    why = ", ".join(f"{reason} {count}" for reason, count in counts.items())
    return Finding(seen, f"{seen}: {why}" if whole < _WHOLE_SHARE else "", figures=why)


def _record(kernel: KernelSide) -> tuple[Recording, float]:
    """And how long the program says that it slept, which on a machine that has not all of its CPUs may be seconds."""
    recording = Recording()
    with contextlib.ExitStack() as stack:
        ours, its = map(stack.enter_context, socket.socketpair())
        its.set_inheritable(True)
        # Not the link of a virtual environment, which may be in a folder that the user who called sudo cannot enter.
        program = (os.path.realpath(sys.executable), "-I", "-c", _PROGRAM, str(its.fileno()))
        launched = LaunchedCommand.start(program)
        stack.callback(_end, launched.pid)
        watch = Watch.of(CaptureOptions(pids=(launched.pid,)), kernel, Targets.open((launched.pid,)))
        stack.callback(watch.close)
        stop = stack.enter_context(StopRequest())
        watch.start(launched)
        session = Session(watch, recording)
        session.begin(stop)
        steps = _Steps(watch, launched.pid, ours)
        session.run(steps.take, stop)
        session.finish(stop)
    return recording, steps.slept_s


class _Steps:
    """Lets the program begin once it is known, and end once all that it did was read from the kernel and from it."""

    def __init__(self, watch: Watch, pid: Pid, ours: socket.socket) -> None:
        self._watch, self._pid, self._ours = watch, pid, ours
        self._has_begun = self._is_done = False
        self.slept_s = 0.0
        ours.setblocking(False)

    def take(self, progress: Progress) -> None:
        """After each drain."""
        if self._is_done:
            self._ours.close()
        elif self._has_begun:
            with contextlib.suppress(BlockingIOError):
                said = self._ours.recv(64)
                self._is_done, self.slept_s = bool(said), float(said or 0)
        elif _is_known(self._watch, self._pid) or progress.elapsed_s > _PATIENCE_S:
            self._has_begun = bool(self._ours.send(b"x"))


def _is_known(watch: Watch, pid: Pid) -> bool:
    """Whether an interpreter was looked for in the program, and the unwind tables of its files are there."""
    process = watch.processes.by_pid.get(pid)
    if process is None or process.state is not State.KNOWN or not (process.interpreter or process.note):
        return False
    return watch.code is None or not watch.code.files.unmade()


def _end(pid: Pid) -> None:
    """Also where it never began, or was interrupted."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _compare(profile: Profile, has_python: bool, slept_s: float) -> tuple[list[str], str]:
    """(what is wrong, what was seen)"""
    cpu_s, nap_s = _seconds(profile, "burn", ThreadState.ON_CPU), _seconds(profile, "nap", ThreadState.OFF_CPU)
    cpu, nap, is_right = "on a CPU in burn()", "asleep in nap()", abs(cpu_s - _BURN_S) < _SAMPLING_S
    if not has_python:  # the whole program, with its start and end
        cpu_s, nap_s = _seconds(profile, "", ThreadState.ON_CPU), _seconds(profile, "", ThreadState.OFF_CPU)
        cpu, nap, is_right = "on a CPU", "asleep", cpu_s > _BURN_S - _CLOCKS_S
    checks = (
        (is_right, f"{cpu_s:.2f} s {cpu} instead of {_BURN_S}"),
        (
            nap_s > _NAP_S - _CLOCKS_S and nap_s < slept_s + (_CLOCKS_S if has_python else _LATE_S),
            f"{nap_s:.2f} s {nap} instead of {slept_s:.2f}",
        ),
        (_accounted(profile), "times that do not add up to the wall time"),
        (not profile.quality.lost_counts, f"samples lost ({profile.quality.lost_counts})"),
    )
    seen = f"{cpu_s:.2f} s {cpu}, {nap_s:.2f} s {nap}, times add up"
    return [text for is_true, text in checks if not is_true], seen


def _seconds(profile: Profile, function: str, state: ThreadState) -> float:
    """Time in this state below a Python function of this name ("": anywhere); of waits only those that are sleeps."""
    numbers = {n for n, frame in enumerate(profile.frames) if frame.kind is FrameKind.PYTHON and frame.name == function}
    rows = profile.weights[profile.weights["state"] == state]
    if state is ThreadState.OFF_CPU:
        rows = rows[rows["reason"] == reason_number("sleep")]
    chosen = [not function or bool(numbers & set(profile.stacks[stack])) for stack in rows["stack"].tolist()]
    return float(rows["total_ns"][chosen].sum() / 1e9)


def _accounted(profile: Profile) -> bool:
    return all(abs(each.accounted_ns - each.wall_ns) <= 0.01 * each.wall_ns for each in profile.threads)
