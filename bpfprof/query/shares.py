"""Spans of a Profile -> of each what its time was spent on.

Left out are the time of threads that wait for work, and waits for another thread of the recording: what that one did in
the meantime is the answer to them, and has rows of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.profile import Profile
from bpfprof.model.spans import CONDITION_LOCK, SpanFlag, ThreadState
from bpfprof.model.states import reason_number, reason_text
from bpfprof.query.clients import ask
from bpfprof.query.functions import Ints
from bpfprof.query.lock_numbers import had_by_others
from bpfprof.query.objects import LISTENING
from bpfprof.query.servants import of_drivers, servants
from bpfprof.query.stack_frames import Bools, StackFrames
from bpfprof.query.unended import HANDLERS, Known, settle_unended
from bpfprof.query.waiting import StackWaits

# What the time of working threads is spent on; IDLE and HANDED are what is left out of it.
# gpu: waits for a device that computes or copies, asleep or on a CPU; spin: waits for others on a CPU.
SHARES = ("python", "native", "ready", "gil", "lock", "disk", "net", "device", "gpu", "spin", "sleep", "child", "other")
IDLE, HANDED = len(SHARES), len(SHARES) + 1
PYTHON, NATIVE, READY, GIL, LOCK, DISK, NET, DEVICE, GPU, SPIN, SLEEP, CHILD, OTHER = range(len(SHARES))

_OF_REASON = {
    **{word: word for word in ("gil", "lock", "disk", "net", "device", "sleep", "child")},
    **{"pipe": "child", "pagefault": "disk", "poll": "net", "kernel-lock": "lock", "file-lock": "lock"},
}
_IDLE_PART = 0.98  # a thread that waits for work so much of its time is none that works
_LOOKING_PART = 0.95  # nor one that sleeps so much of it, long each time
_LONG_SLEEP_NS = 500_000_000
_OTHERS_PART = 0.25  # of a thread's time: so much the others work who are then what the program is about
_CIRCLE_PART = 0.25  # of its time: so much each process of a circle waits for another one of it

# Waits for what another thread does, by (end of the path, functions) of their innermost Python frame: a lock is what
# they are made of. A lock that several want for themselves is acquired in the function that uses it.
_HAND_OVERS = (
    ("threading.py", {"wait", "wait_for", "join", "_wait_for_tstate_lock", "_shutdown"}),
    ("queue.py", {"get", "put", "join"}),
    ("concurrent/futures/_base.py", {"result", "wait", "as_completed"}),
)
_CONDITION_WAIT = ("threading.py", "wait")
_HAND_OVERS_IN_C = (
    *("pthread_cond_", "__pthread_cond_", "pthread_join", "__pthread_clockjoin", "pthread_barrier_wait"),
    *("gomp_barrier_wait", "gomp_team_barrier_wait", "_queue_SimpleQueue_get", "simplequeue_get", "std::condition_var"),
)
# Of Abseil, which JAX and TensorFlow wait with; its namespace has its version.
_HAND_OVERS_OF_ABSEIL = re.compile(
    r"absl::(?:lts_\d+::)?(?:CondVar::Wait|Notification::WaitFor|BlockingCounter::Wait|Barrier::Block|Mutex::Await)"
)
_POOLS = ("multiprocessing/", "concurrent/futures/", "torch/multiprocessing/")  # folders of a path
# `with lock:` of multiprocessing is a fight as one of threads is.
_ACQUIRES = ("multiprocessing/synchronize.py", "__enter__")
# Threads of OpenMP wait for each other; their library has no names where it is stripped.
_OPENMP = ("libgomp", "libomp", "libiomp")
_LOCK, _CODE = reason_number("lock"), (FrameKind.PYTHON, FrameKind.NATIVE, FrameKind.INLINED)
_EPOLL = frozenset(("epoll_wait", "epoll_pwait", "epoll_pwait2"))
_SENDS = frozenset(("send", "sendto", "sendmsg", "sendmmsg", "sendfile", "sendfile64", "write", "writev"))
_COLLECTIVES, _COLLECTIVES_IN_C = ("/torch/distributed/",), ("c10d::",)
# It looks again and again whether another connection has let go of the database (sqliteDefaultBusyCallback()).
_SLEEPS_FOR_LOCKS = ("libsqlite3", "_sqlite3")
# So do those of lock files, in Python.
_LOCK_FILES = ("/filelock/", "/portalocker/", "/fasteners/")


def shares_of_spans(
    profile: Profile, spans: npt.NDArray[np.void], stack_frames: StackFrames, waiting: StackWaits, fought: Bools
) -> tuple[Ints, Bools]:
    """(a place in SHARES, IDLE or HANDED for each span, which are stuck); fought: those that wait for a semaphore that
    is a lock."""
    state, reason, stack = spans["state"], spans["reason"].astype(np.int64), spans["stack"]
    number_of = {reason_text(number): number for number in np.flatnonzero(np.bincount(reason)).tolist()}
    shares = _shares_of_reasons(reason, _OF_REASON)
    polls, pipes = reason == number_of.get("poll", -1), reason == number_of.get("pipe", -1)
    waits = state == ThreadState.OFF_CPU
    shares[state == ThreadState.RUNQUEUE] = READY
    on_cpu = state == ThreadState.ON_CPU
    shares[on_cpu] = np.where(stack_frames.are_native()[stack[on_cpu]], NATIVE, PYTHON)

    waker = spans["waker"].astype(np.int64)
    thread_of = np.array([-1, *(it.thread for it in profile.wakers)], np.int64)[waker]
    is_timer = np.array([False, *(it.kind == "timer" for it in profile.wakers)])[waker]
    pids = np.array([*(int(it.pid) for it in profile.threads), -1], np.int64)
    is_other = waits & (thread_of >= 0) & (thread_of != spans["thread"])
    is_inside = is_other & (pids[thread_of] == pids[spans["thread"]])
    hand_over, pool = hand_overs(profile.frames, stack_frames)
    hand_over = hand_over[stack] & ~fought & ~_take_again(spans, stack_frames)
    is_child = polls & stack_frames.have([_is_in_subprocess(frame) for frame in stack_frames.frames])[stack]
    shares[waits & is_child] = CHILD
    asked = is_other & np.isin(shares, (NET, OTHER)) & ~is_child
    handed = asked | (is_inside & (shares == CHILD) & pipes) | (is_other & (hand_over | pool[stack]) & (shares != GIL))
    # Who ends a wait for another thread is not always known, as when that thread ends.
    handed |= (thread_of < 0) & ~is_timer & hand_over & (shares == LOCK)
    shares[handed & waits] = HANDED
    # Ranks that are not recorded are at the other end of the network.
    collective = waits & (shares == HANDED) & _are_collectives(stack_frames)[stack]
    if len(np.unique(pids[spans["thread"][collective]])) == 1:
        shares[collective] = NET
    # A wait whose time ran out is a look whether there is something to do, but where others had to give the lock, or a
    # server the answer: psycopg 3 looks ten times a second whether it was interrupted meanwhile.
    is_given = had_by_others(profile, spans, waits & (shares == LOCK), is_other, pids)
    shares[waits & is_timer & (((shares == LOCK) & ~is_given) | (polls & ~ask(stack_frames)[stack]))] = IDLE
    # A client asks when it wants something.
    listening = {place for place, name in enumerate(profile.objects, 1) if name.startswith(LISTENING)}
    of_client = np.isin(spans["object"], [*listening | profile.info.accepted])
    shares[waits & of_client & (shares == NET) & ~_are_in(stack_frames, _SENDS)[stack]] = IDLE
    # A server waits for all of its connections together. A library in C may do so for those that it asked for.
    in_server = np.array([profile.info.listens.get(int(it.pid), False) for it in profile.threads] or [False])
    in_loop = _are_in(stack_frames, _EPOLL) & (stack_frames.innermost_python() >= 0)
    shares[polls & (shares == NET) & in_server[spans["thread"]] & in_loop[stack]] = IDLE
    sleeps_for_lock = _in_objects(stack_frames, _SLEEPS_FOR_LOCKS) | _have_file(stack_frames, _LOCK_FILES)
    shares[waits & (shares == SLEEP) & sleeps_for_lock[stack]] = LOCK
    sleeps_on = waits & (shares == SLEEP)
    if sleeps_on.any():  # CPython up to 3.7
        shares[sleeps_on & stack_frames.pass_through(HANDLERS)[stack]] = IDLE
    # Who lost its CPU in a call that spins for a device waits as before; who was woken in one that sleeps lacks a CPU.
    sleeps = np.zeros(stack_frames.count, np.bool_)
    sleeps[stack[waits]] = True
    spins_on = on_cpu | ((state == ThreadState.RUNQUEUE) & ~sleeps[stack])
    shares[(waits | spins_on) & waiting.for_device[stack] & ~np.isin(shares, (GIL, DISK))] = GPU
    shares[on_cpu & waiting.spins[stack]] = SPIN
    lines = stack_frames.innermost_python()[stack]
    shares[on_cpu & (shares == PYTHON) & _in_lines_that_spin(spans, lines, shares, shares == SPIN)] = SPIN
    # Asking a device whether it is done returns at once, and so is part of a loop in Python.
    asks, is_cpu = on_cpu & waiting.queries[stack], on_cpu & np.isin(shares, (PYTHON, NATIVE))
    if asks.any():
        shares[is_cpu & _in_lines_that_spin(spans, stack_frames.own_code()[stack], shares, asks)] = GPU
    shares[waits & (spans["flags"] & SpanFlag.IDLE > 0)] = IDLE
    is_beside = _beside_python(profile, spans, stack_frames)[spans["thread"]]
    shares[waits & is_beside & np.isin(shares, (LOCK, NET, SLEEP, CHILD, OTHER))] = IDLE
    _leave_out_awaited(profile, spans, shares, np.where(waits & (shares == CHILD), thread_of, -1), pids)
    known = Known(shares, waits & hand_over, is_given, LOCK, DISK, NET, GPU, CHILD, OTHER, IDLE, HANDED)
    stuck = settle_unended(profile, spans, stack_frames, known)
    works = np.isin(shares, (PYTHON, NATIVE, READY, DISK, GIL)) | stuck
    serve_nobody = servants(profile, spans, works, waits & np.isin(shares, (HANDED, LOCK)), stack_frames)
    serve_nobody |= of_drivers(stack_frames, spans, len(profile.threads))
    # What records is no work of what is recorded, nor is waiting for it.
    of_pids = pids[spans["thread"]]
    shares[np.isin(of_pids, [*profile.info.own_pids])] = IDLE
    shares[waits & (shares == CHILD) & np.isin(of_pids, [*profile.info.above_pids])] = IDLE
    shares = _like_those_with_stacks(spans, shares, waits, stack_frames)
    shares[serve_nobody[spans["thread"]] & ~on_cpu & ~stuck & ~np.isin(shares, (READY, DISK, GIL))] = IDLE
    return shares, stuck


def _like_those_with_stacks(spans: npt.NDArray[np.void], shares: Ints, waits: Bools, stack_frames: StackFrames) -> Ints:
    """A wait for a lock of which there is no stack is for work, or for others, where most of that thread's are."""
    is_lock = waits & (spans["reason"] == _LOCK)
    has_stack = (stack_frames.innermost_of_best([it.kind in _CODE for it in stack_frames.frames]) >= 0)[spans["stack"]]
    count = int(spans["thread"].max(initial=0)) + 1
    known, ns = is_lock & has_stack, spans["stands_for_ns"].astype(np.int64)
    all_ns = sums(spans["thread"][known], ns[known], count)
    found = shares.copy()
    for share in (IDLE, HANDED, GPU):
        is_it = known & (shares == share)
        most = 2 * sums(spans["thread"][is_it], ns[is_it], count) > all_ns
        found[is_lock & ~has_stack & (shares == LOCK) & most[spans["thread"]]] = share
    return found


def work_shares(reason: Ints) -> Ints:
    """A place in SHARES for each wait of a thread that never waits for work; a poll may be for anything."""
    return _shares_of_reasons(reason, {**_OF_REASON, "poll": "other"})


def _shares_of_reasons(reason: Ints, words: dict[str, str]) -> Ints:
    of_reason = np.zeros(int(reason.max(initial=0)) + 1, np.int64)
    for number in np.flatnonzero(np.bincount(reason)).tolist():
        of_reason[number] = SHARES.index(words.get(reason_text(number), "other"))
    return of_reason[reason]


def _take_again(spans: npt.NDArray[np.void], stack_frames: StackFrames) -> Bools:
    """Whether each span is in Condition.wait(), but not for notify(): it takes the lock of its condition again."""
    path, name = _CONDITION_WAIT
    is_it = [frame.name.rpartition(".")[2] == name and frame.file.endswith(path) for frame in stack_frames.frames]
    in_wait = np.array([*is_it, False])[stack_frames.innermost_python()][spans["stack"]]
    found: Bools = in_wait & (spans["lock"] > 0) & (spans["lock"] & np.uint64(CONDITION_LOCK) == 0)
    return found


def _beside_python(profile: Profile, spans: npt.NDArray[np.void], stack_frames: StackFrames) -> Bools:
    """Kernel threads, and threads of processes without Python where others have it: shells, shims, daemons.

    They wait for work, or for the program that is asked about.
    """
    has_python = np.append(stack_frames.innermost_python() >= 0, False)
    threads = np.unique(spans["thread"][has_python[spans["stack"]]]).tolist()
    of_python = {profile.threads[thread].pid for thread in threads}
    return np.array(
        [it.is_kernel_thread or (bool(of_python) and it.pid not in of_python) for it in profile.threads] or [False]
    )


def hand_overs(frames: Sequence[Frame], stack_frames: StackFrames) -> tuple[Bools, Bools]:
    """(whether each stack waits for what another thread does, whether for what another process of a pool does)"""
    python = [
        any(
            frame.name.rpartition(".")[2] in names and ("/" + frame.file).endswith("/" + tail)
            for tail, names in _HAND_OVERS
        )
        for frame in frames
    ]
    in_python = np.array([*python, False])[stack_frames.innermost_python()]
    in_c = [
        frame.kind == FrameKind.NATIVE
        and (frame.name.startswith(_HAND_OVERS_IN_C) or bool(_HAND_OVERS_OF_ABSEIL.match(frame.name)))
        for frame in frames
    ]
    tail, name = _ACQUIRES
    acquires = [frame.file.endswith(tail) and frame.name.rpartition(".")[2] == name for frame in frames]
    in_pool = _have_file(stack_frames, _POOLS) & ~np.array([*acquires, False])[stack_frames.innermost_python()]
    return in_python | stack_frames.have(in_c) | _in_objects(stack_frames, _OPENMP), in_pool


def _is_in_subprocess(frame: Frame) -> bool:
    return frame.kind == FrameKind.PYTHON and frame.file.endswith("/subprocess.py")


def _in_objects(stack_frames: StackFrames, names: tuple[str, ...]) -> Bools:
    """Whether each stack is in code of a file whose name begins so."""
    return stack_frames.have(
        [it.kind == FrameKind.NATIVE and it.file.rpartition("/")[2].startswith(names) for it in stack_frames.frames]
    )


def _are_in(stack_frames: StackFrames, functions: frozenset[str]) -> Bools:
    """Whether each stack is in one of these functions of the C library."""
    return stack_frames.have(
        [frame.kind == FrameKind.NATIVE and frame.name.lstrip("_") in functions for frame in stack_frames.frames]
    )


def _are_collectives(stack_frames: StackFrames) -> Bools:
    """Whether each stack of Python waits for the other ranks of torch.distributed."""
    in_c = stack_frames.have(
        [frame.kind == FrameKind.NATIVE and frame.name.startswith(_COLLECTIVES_IN_C) for frame in stack_frames.frames]
    )
    in_python = stack_frames.innermost_python() >= 0
    return (in_c & in_python) | _have_file(stack_frames, _COLLECTIVES)


def _have_file(stack_frames: StackFrames, parts: tuple[str, ...]) -> Bools:
    """Whether the file of each stack's innermost Python frame has one of these in it."""
    marked = [
        frame.kind == FrameKind.PYTHON and any(part in frame.file for part in parts) for frame in stack_frames.frames
    ]
    return np.array([*marked, False])[stack_frames.innermost_python()]


def _in_lines_that_spin(spans: npt.NDArray[np.void], lines: Ints, shares: Ints, turns: Bools) -> Bools:
    """Whether each span is in a line of Python most of whose CPU time is spent so: `while not done: yield_()`.

    lines: for each span its line, -1: none.
    """
    line, ns, count = lines + 1, spans["stands_for_ns"].astype(np.int64), int(lines.max(initial=0)) + 2
    spun_ns, cpu_ns = (sums(line[it], ns[it], count) for it in (turns, turns | np.isin(shares, (PYTHON, NATIVE, SPIN))))
    return np.asarray((2 * spun_ns > cpu_ns)[line] & (line > 0))


def _leave_out_awaited(profile: Profile, spans: npt.NDArray[np.void], shares: Ints, awaited: Ints, pids: Ints) -> None:
    """The time of processes that another waited for most of it is the time of that wait. awaited: threads, -1: none.

    Of processes that wait for each other in a circle the waits are left out: what each did meanwhile answers them.
    """
    walls: dict[int, int] = {}
    for thread in profile.threads:
        walls[thread.pid] = max(walls.get(thread.pid, 0), thread.wall_ns)
    found = awaited >= 0
    waiting, waited_for = pids[spans["thread"]], pids[awaited]
    pairs, which = np.unique(waiting[found] << 32 | waited_for[found], return_inverse=True)
    waited_ns = sums(which, spans["stands_for_ns"][found].astype(np.int64), len(pairs))
    waits_for: dict[int, set[int]] = {}
    by_pid: Counter[int] = Counter()
    for pair, ns in zip(pairs.tolist(), waited_ns.tolist()):
        waiter, pid = divmod(pair, 1 << 32)
        by_pid[pid] += ns
        if ns >= _CIRCLE_PART * walls.get(waiter, 0):
            waits_for.setdefault(waiter, set()).add(pid)
    circle = [pid for pid in waits_for if pid in _reached(waits_for, pid)]
    left_out = [pid for pid, ns in by_pid.items() if 2 * ns > walls.get(pid, 0) and pid not in circle]
    shares[np.isin(waiting, left_out) & (shares < IDLE)] = HANDED
    shares[found & np.isin(waiting, circle) & np.isin(waited_for, circle)] = HANDED


def _reached(waits_for: dict[int, set[int]], pid: int) -> set[int]:
    """Those that a process waits for, that those wait for, and so on."""
    found, next_ones = set[int](), waits_for.get(pid, set())
    while next_ones - found:
        found = found | next_ones
        next_ones = {other for one in next_ones for other in waits_for.get(one, set())}
    return found


def leave_out_sleepers(rows: npt.NDArray[np.void], thread_count: int, stack_frames: StackFrames) -> None:
    """Threads that do nothing but sleep now and then are idle, if others do something.

    They are in any case if they sleep long, in the function that they began with: they look again and again whether
    there is something to do. A script may have called it, if others wait for work. That they waited for a CPU then is
    not theirs.
    """
    by_thread = sums(rows["thread"] * (HANDED + 1) + rows["share"], rows["ns"], thread_count * (HANDED + 1))
    by_thread = by_thread.reshape(thread_count, HANDED + 1)
    aside = by_thread[:, [SLEEP, IDLE, HANDED]].sum(axis=1)
    part = np.where(by_thread[:, SLEEP] > 0, aside / (by_thread.sum(axis=1) - by_thread[:, READY]).clip(1), 0)
    busy_ns = by_thread[part < _IDLE_PART, :IDLE].sum()
    others_work = busy_ns >= _OTHERS_PART * by_thread.sum(axis=1).max(initial=0)
    # Of a row the first and the last one may be cut.
    is_long = rows["ns"] >= _LONG_SLEEP_NS * (rows["count"] - 1).clip(1)
    others_idle = bool((2 * by_thread[:, IDLE] > by_thread.sum(axis=1)).any())
    in_script = stack_frames.have([frame.name == "<module>" for frame in stack_frames.frames])
    depths = stack_frames.own_depths() - (in_script & others_idle)
    long = (rows["share"] == SLEEP) & (depths[rows["stack"]] <= 1) & is_long
    waits = (rows["state"] == ThreadState.OFF_CPU) & (rows["share"] < IDLE)
    part = part[rows["thread"]]
    is_idle = ((part >= _IDLE_PART) & others_work) | ((part >= _LOOKING_PART) & long)
    rows["share"][waits & is_idle] = IDLE


def sums(codes: Ints, values: Ints, count: int) -> Ints:
    """The sum of the values for each code."""
    found = np.zeros(count, np.int64)
    np.add.at(found, codes, values)
    return found
