"""A profile -> the training loops of its processes: what each does in each step, and who ended its waits."""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.frames import Frame
from bpfprof.model.profile import Connection, CpuThrottle, Profile, ThreadTime
from bpfprof.model.spans import ThreadState
from bpfprof.model.states import reason_text
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import Bools, StackFrames
from bpfprof.query.steps.phases import BACKWARD, COMMUNICATION, FORWARD, OPTIMIZER, StackPhases, find_phases
from bpfprof.query.steps.pieces import cut_where, merged
from bpfprof.query.steps.steps import Steps, StepsWanted, find_steps, phases_of_spans

CPU_PYTHON, CPU_NATIVE, CPU_COLLECTION = "cpu python", "cpu native", "cpu garbage collection"
ON_CPU = (CPU_PYTHON, CPU_NATIVE, CPU_COLLECTION)
READY, UNKNOWN = "ready", "unknown"
# Numbers of states beside those of ThreadState; reasons of waits come after them.
_NATIVE, _COLLECTION, _FIRST_REASON = range(len(ThreadState), len(ThreadState) + 3)
_WORDS = {
    int(ThreadState.ON_CPU): CPU_PYTHON,
    _NATIVE: CPU_NATIVE,
    _COLLECTION: CPU_COLLECTION,
    int(ThreadState.RUNQUEUE): READY,
    int(ThreadState.UNKNOWN): UNKNOWN,
}
_TRAINS = 0.02  # of a step, in phases that only training has


@dataclass(frozen=True)
class Activity:
    """What a rank does in a step. phase: of a step; state: one of ON_CPU, READY, UNKNOWN, or the reason of a wait;
    function: of the user's own code, else the nearest to it; within: the phase that its own stack is of, as of a
    backward pass in which the ranks meet."""

    phase: str
    state: str
    function: Frame | None
    within: str


@dataclass(frozen=True)
class RankLoop:
    """The steps of one process. recording: what it was read from; host: its name.

    zero_ns: when the recording began, on the host's CLOCK_MONOTONIC; unix_ns: what is to be added
    to that for the time of day. For each span of its thread: start_ns and end_ns of it; what, a place in activities;
    ended_by, a place in enders, -1: not known, or no wait; waits: it waits, and is not ready itself.
    enders: (pid, 0 of what is no thread; name). throttle: what the CPU limit of its control group did, None: it stopped
    nothing. connections: its TCP connections. is_apart: its network namespace is
    another than bpfprof's.
    """

    recording: str
    host: str
    thread: ThreadTime
    steps: Steps
    zero_ns: int
    unix_ns: int
    activities: tuple[Activity, ...]
    start_ns: Ints
    end_ns: Ints
    what: Ints
    ended_by: Ints
    waits: Bools
    enders: tuple[tuple[int, str], ...]
    throttle: CpuThrottle | None
    connections: tuple[Connection, ...] = ()
    is_apart: bool = False

    @property
    def communicates(self) -> Bools:
        """Each span."""
        return np.array([activity.phase == COMMUNICATION for activity in self.activities] or [False])[self.what]

    @property
    def name(self) -> str:
        """`rank 1`, or the process where its environment has no number, with the name that its program gave it."""
        who = self.thread.given_process_name or self.thread.process_name
        return f"rank {self.rank}" if self.rank is not None else f"{who} ({self.thread.pid})"

    @property
    def subject(self) -> str:
        """The same as the first words of a sentence."""
        return f"Rank {self.rank}" if self.rank is not None else f"Process {self.name}"

    @property
    def rank(self) -> int | None:
        """Its number, where its environment has it."""
        value = self.thread.rank.partition("=")[2]
        return int(value) if value.isdecimal() else None


def rank_loops(profile: Profile, recording: str, wanted: StepsWanted) -> tuple[list[RankLoop], list[str]]:
    """(those that train, or else all that run the loop with most time, by rank; why steps of some are not counted)

    Of those that train also such without steps, as they may make them together with others.

    Raises ValueError for a profile without spans.
    """
    found = find_steps(profile, wanted)
    counted = [steps for steps in found if len(steps) > 1]
    stack_frames = StackFrames(profile.frames, profile.stacks)
    phases = find_phases(profile.frames, stack_frames, wanted.patterns)
    training = [_loop(profile, recording, steps, stack_frames, phases) for steps in found]
    loops = [each for each in training if _trains(each)]
    if not loops and counted:
        alike = [steps for steps in counted if _place(steps) == _place(counted[0])]
        loops = [_loop(profile, recording, steps, stack_frames, phases) for steps in alike]
    unclear = [f"{_who(each.thread)}: {each.steps.unclear}" for each in loops if each.steps.unclear]
    return sorted(loops, key=lambda each: (each.rank is None, each.rank or 0, each.thread.pid)), unclear


def _who(thread: ThreadTime) -> str:
    return f"{thread.process_name} ({thread.pid})"


def _trains(loop: RankLoop) -> bool:
    """Whether it spends time in what only a training does."""
    spent_ns = np.bincount(loop.what, loop.end_ns - loop.start_ns, len(loop.activities))
    is_it = [activity.phase in (FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION) for activity in loop.activities]
    return bool(spent_ns[is_it].sum() > _TRAINS * spent_ns.sum())


def _place(steps: Steps) -> tuple[str, str]:
    return (steps.where.name, steps.where.file) if steps.where else (steps.name, "")


def _loop(profile: Profile, recording: str, steps: Steps, stack_frames: StackFrames, phases: StackPhases) -> RankLoop:
    assert profile.spans is not None
    begin, end = np.searchsorted(profile.spans["thread"], [steps.thread, steps.thread + 1]).tolist()
    spans = profile.spans[begin:end]
    communicating = phases.names.index(COMMUNICATION)
    phase, waits = phases_of_spans(profile, steps.thread, phases), spans["state"] == ThreadState.OFF_CPU
    ended_by = np.where(waits, spans["waker"].astype(np.int64) - 1, -1)
    own = np.append(stack_frames.own_code(), -1)[spans["stack"].astype(np.int64)]
    columns = np.stack([phase, phase, _states(spans, stack_frames), own, ended_by, spans["state"].astype(np.int64)])
    start_ns = spans["start_ns"].astype(np.int64)
    end_ns = start_ns + spans["duration_ns"]
    handed, *meanwhile = _handed(profile, steps.thread, spans, phases.of_stack == communicating)
    span, start_ns, end_ns, is_in = cut_where(start_ns, end_ns, handed, *meanwhile)
    columns = columns[:, span]
    columns[0, is_in] = communicating
    pid = int(profile.threads[steps.thread].pid)
    throttle = profile.info.cpu_throttles.get(pid)
    # A limit stops all threads at once: of one that has what it waited for, too, the others do not have it yet.
    stopped = (ThreadState.RUNQUEUE,) if throttle is not None and throttle.stops_often else ()
    communicates = np.isin(columns[-1], (ThreadState.OFF_CPU, *stopped)) & (columns[0] == communicating)
    span, start_ns, end_ns, is_starved = cut_where(start_ns, end_ns, communicates, *_starved(profile, steps.thread))
    phase, within, state, own, ended_by, of_thread = columns[:, span]
    state[is_starved], ended_by[is_starved] = ThreadState.RUNQUEUE, -1
    keys, what = np.unique(np.stack([phase, state, own, within], axis=1), axis=0, return_inverse=True)
    activities = tuple(
        Activity(
            phases.names[of_phase],
            _WORDS.get(number) or reason_text(number - _FIRST_REASON) or UNKNOWN,
            profile.frames[frame] if frame >= 0 else None,
            phases.names[by_stack],
        )
        for of_phase, number, frame, by_stack in keys.tolist()
    )
    return RankLoop(
        recording,
        profile.info.host_name,
        profile.threads[steps.thread],
        steps,
        profile.info.start_ns,
        profile.info.started_unix_ns - profile.info.start_ns,
        activities,
        start_ns,
        end_ns,
        what.reshape(-1),
        ended_by,
        of_thread == ThreadState.OFF_CPU,
        _enders(profile),
        throttle,
        profile.info.connections.get(pid, ()),
        pid in profile.info.in_other_network,
    )


def _states(spans: npt.NDArray[np.void], stack_frames: StackFrames) -> Ints:
    """For each span a number: that of a word, or of a reason."""
    stack, state = spans["stack"].astype(np.int64), spans["state"].astype(np.int64)
    state = np.where(state == ThreadState.OFF_CPU, _FIRST_REASON + spans["reason"].astype(np.int64), state)
    on_cpu = state == ThreadState.ON_CPU
    state[on_cpu & np.append(stack_frames.are_native(), False)[stack]] = _NATIVE
    state[on_cpu & np.append(stack_frames.collect_garbage(), False)[stack]] = _COLLECTION
    return state


def _enders(profile: Profile) -> tuple[tuple[int, str], ...]:
    return tuple(
        (int(waker.pid), f"{waker.thread_name} of {waker.process_name} ({waker.pid})")
        if waker.kind == "thread"
        else (0, f"a {waker.kind}")
        for waker in profile.wakers
    )


def _handed(
    profile: Profile, thread: int, spans: npt.NDArray[np.void], in_communication: Bools
) -> tuple[Bools, Ints, Ints]:
    """(which of the thread's spans wait for another of its process, as for that which runs a backward pass; from when
    until when such a one communicates)"""
    assert profile.spans is not None
    wakers = np.array([-1, *(waker.thread for waker in profile.wakers)], np.int64)[spans["waker"].astype(np.int64)]
    pids = np.array([*(int(each.pid) for each in profile.threads), -1], np.int64)
    handed = (spans["state"] == ThreadState.OFF_CPU) & (pids[wakers] == pids[thread]) & (wakers != thread)
    theirs = profile.spans[np.isin(profile.spans["thread"], np.unique(wakers[handed]))]
    theirs = theirs[in_communication[theirs["stack"].astype(np.int64)]]
    start_ns = theirs["start_ns"].astype(np.int64)
    return handed, *merged(start_ns, start_ns + theirs["duration_ns"].astype(np.int64))


def _starved(profile: Profile, thread: int) -> tuple[Ints, Ints]:
    """From when until when another thread of its process was ready without a CPU: who waits in communication meanwhile
    waits for that, as the threads of a library communicate for it."""
    assert profile.spans is not None
    pid = profile.threads[thread].pid
    others = [place for place, it in enumerate(profile.threads) if it.pid == pid and place != thread]
    ready = profile.spans[(profile.spans["state"] == ThreadState.RUNQUEUE) & np.isin(profile.spans["thread"], others)]
    start_ns = ready["start_ns"].astype(np.int64)
    return merged(start_ns, start_ns + ready["duration_ns"].astype(np.int64))
