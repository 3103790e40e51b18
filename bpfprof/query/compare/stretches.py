"""A Profile with its spans and stretches of its time that have names -> the time of each, in equal slices.

A stretch is what one thread did from one moment to another, like a test. CPU time is that of all threads, its own and
those that worked for it; it was ready and waited when its own thread was. A stretch in another process than the one
that recorded itself, where there may be several at the same time, has that of the threads of its process.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.query.code.stack_frames import StackFrames
from bpfprof.query.compare.slices import SLICE_COUNT, STATES, Slices

_BESIDE_PART = 0.01  # of its time on a CPU

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Stretch:
    """From when to when, since the recording began, and which thread; pid as that process itself has it."""

    name: str
    begin_ns: int
    end_ns: int
    pid: int
    tid: int


@dataclass(frozen=True)
class StretchTime:
    """Nanoseconds. slices: (STATES, SLICE_COUNT), on a CPU and in waits."""

    wall_ns: int
    cpu_ns: int
    ready_ns: int
    wait_ns: int
    slices: Floats

    def as_slices(self, name: str, period_ns: float) -> Slices:
        """As differences() takes them."""
        times = np.zeros((1, len(STATES), 2, SLICE_COUNT))
        times[0] = self.slices[:, None]
        return Slices(((name, "", 0),), times, self.slices.sum(axis=0), period_ns)


def stretch_times(profile: Profile, stretches: Sequence[Stretch], main_pid: int) -> list[StretchTime]:
    """For each, in their order. main_pid: the process that recorded itself."""
    spans = profile.spans
    assert spans is not None
    of_state = {state: spans[spans["state"] == state] for state in (*STATES, ThreadState.RUNQUEUE)}
    edges = np.array([np.linspace(each.begin_ns, each.end_ns, SLICE_COUNT + 1) for each in stretches])
    edges = edges.reshape(-1, SLICE_COUNT + 1)
    found = np.zeros((3, len(stretches), SLICE_COUNT))
    for pid in {each.pid for each in stretches}:
        chosen = np.array([each.pid == pid for each in stretches], np.bool_)
        found[0, chosen] = _time_in(of_state[ThreadState.ON_CPU], threads_of(profile, pid, main_pid), edges[chosen])
    for own in {(each.pid, each.tid): each for each in stretches}.values():
        chosen = np.array([(each.pid, each.tid) == (own.pid, own.tid) for each in stretches], np.bool_)
        thread = own_thread(profile, own)
        found[1, chosen] = _time_in(of_state[ThreadState.OFF_CPU], thread, edges[chosen])
        found[2, chosen] = _time_in(of_state[ThreadState.RUNQUEUE], thread, edges[chosen])
    cpu_ns, wait_ns, ready_ns = np.rint(found.sum(axis=2)).astype(np.int64).tolist()
    walls = [each.end_ns - each.begin_ns for each in stretches]
    slices = np.moveaxis(found[: len(STATES)], 1, 0)
    return [StretchTime(*row) for row in zip(walls, cpu_ns, ready_ns, wait_ns, slices)]


def threads_of(profile: Profile, pid: int, main_pid: int) -> Bools:
    """Whether each thread of the profile counts for stretches in this process."""
    if pid == main_pid:
        return np.ones(len(profile.threads), np.bool_)
    return _threads(profile, pid)


def threads_beside(profile: Profile, before: Collection[int]) -> Bools:
    """Threads that look after a program, as those of a notebook do.

    They were there before it (`before`: their numbers), run no code of the user, and take next to no CPU time.
    """
    assert profile.spans is not None
    runs_own = np.append(StackFrames(profile.frames, profile.stacks).own_depths() > 0, False)
    has_own = np.zeros(len(profile.threads), np.bool_)
    has_own[profile.spans["thread"][runs_own[profile.spans["stack"]]]] = True
    idles = [
        int(thread.tid) in before and thread.on_cpu_ns <= _BESIDE_PART * thread.wall_ns for thread in profile.threads
    ]
    return np.array(idles, np.bool_) & ~has_own


def own_thread(profile: Profile, stretch: Stretch) -> Bools:
    """Which of the profile's threads it is of."""
    of_process = np.flatnonzero(_threads(profile, stretch.pid)).tolist()
    found = np.zeros(len(profile.threads), np.bool_)
    # In a pid namespace of its own the first thread is known by the pid, of others no number is.
    is_first = stretch.pid == stretch.tid
    for place in of_process:
        thread = profile.threads[place]
        found[place] = int(thread.tid) == (int(thread.pid) if is_first else stretch.tid)
    return found


def _threads(profile: Profile, pid: int) -> Bools:
    return np.array([pid in (int(thread.pid), thread.namespace_pid) for thread in profile.threads], np.bool_)


def _time_in(spans: npt.NDArray[np.void], has_thread: Bools, edges: Floats) -> Floats:
    """How long spans of these threads were between neighbouring edges, added up where they are at the same time."""
    spans = spans[has_thread[spans["thread"]]] if len(has_thread) else spans[:0]
    if not len(spans):
        return np.zeros((len(edges), edges.shape[1] - 1))
    moments = np.concatenate([spans["start_ns"], spans["start_ns"] + spans["duration_ns"]])
    steps = np.repeat([1, -1], len(spans))
    order = np.argsort(moments, kind="stable")
    moments, at_once = moments[order], np.cumsum(steps[order])
    passed_ns = np.append(0, np.cumsum(at_once[:-1] * np.diff(moments)))
    return np.asarray(np.diff(np.interp(edges, moments, passed_ns), axis=1))
