"""Spans of a Profile -> of each what its time was spent on, by rules.

Left out are the time of threads that wait for work, and waits for another thread of the recording: what that one did in
the meantime is the answer to them, and has rows of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.known.frameworks import PLUGINS
from bpfprof.known.services import LISTENING
from bpfprof.model.frames import FrameKind
from bpfprof.model.grouping import sums_by
from bpfprof.model.profile import Profile
from bpfprof.model.spans import SpanFlag, ThreadState
from bpfprof.model.states import reason_number
from bpfprof.query.code.clients import ask
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import Bools, StackFrames
from bpfprof.query.work.hand_overs import are_collectives, hand_overs, take_again
from bpfprof.query.work.left_out import are_beside_python, leave_out_awaited, like_those_with_stacks
from bpfprof.query.work.lock_numbers import had_by_others
from bpfprof.query.work.servants import of_drivers, servants
from bpfprof.query.work.shares import (
    CHILD,
    DEVICE,
    DISK,
    GIL,
    GPU,
    HANDED,
    IDLE,
    LOCK,
    NATIVE,
    NET,
    OTHER,
    PYTHON,
    READY,
    SLEEP,
    SPIN,
    reason_shares,
)
from bpfprof.query.work.unended import HANDLERS, TAKES_TURNS, Known, settle_unended
from bpfprof.query.work.waiting import StackWaits

_POLL, _PIPE = reason_number("poll"), reason_number("pipe")
_EPOLL = frozenset(("epoll_wait", "epoll_pwait", "epoll_pwait2"))
_SENDS = frozenset(("send", "sendto", "sendmsg", "sendmmsg", "sendfile", "sendfile64", "write", "writev"))
# It looks again and again whether another connection has let go of the database (sqliteDefaultBusyCallback()).
_SLEEPS_FOR_LOCKS = ("libsqlite3", "_sqlite3")
# So do those of lock files, in Python.
_LOCK_FILES = ("/filelock/", "/portalocker/", "/fasteners/")
_ON_CPU = (PYTHON, NATIVE)
_NOT_DISK = (LOCK, NET, DEVICE, SLEEP, CHILD, OTHER)
_WAITS = (DISK, *_NOT_DISK)  # but for the GIL


class SpanFacts:
    """What rules ask of spans, an array with an element for each. shares: what the rules so far have found."""

    def __init__(
        self,
        profile: Profile,
        spans: npt.NDArray[np.void],
        stack_frames: StackFrames,
        waiting: StackWaits,
        fought: Bools,
    ) -> None:
        self.profile, self.spans, self.stack_frames, self.waiting = profile, spans, stack_frames, waiting
        self.stack: npt.NDArray[np.uint32] = spans["stack"]
        self.thread: npt.NDArray[np.uint32] = spans["thread"]
        self.waits: Bools = spans["state"] == ThreadState.OFF_CPU
        self.on_cpu: Bools = spans["state"] == ThreadState.ON_CPU
        self.is_runnable: Bools = spans["state"] == ThreadState.RUNQUEUE
        reason = spans["reason"].astype(np.int64)
        self.polls: Bools = reason == _POLL
        self.pipes: Bools = reason == _PIPE
        self.pid_of_thread = np.array([*(int(thread.pid) for thread in profile.threads), -1], np.int64)
        self.pids = self.pid_of_thread[self.thread]
        waker = spans["waker"].astype(np.int64)
        self.ended_by = np.array([-1, *(each.thread for each in profile.wakers)], np.int64)[waker]
        self.by_timer = np.array([False, *(each.kind == "timer" for each in profile.wakers)])[waker]
        self.by_another = self.waits & (self.ended_by >= 0) & (self.ended_by != self.thread)
        self.by_family = self.by_another & (self.pid_of_thread[self.ended_by] == self.pids)
        hand_over, of_pool = hand_overs(profile.frames, stack_frames)
        self.hand_over = hand_over[self.stack] & ~fought & ~take_again(spans, stack_frames)
        self.of_pool = of_pool[self.stack]
        self.shares = reason_shares(reason)
        self.shares[self.is_runnable] = READY
        self.shares[self.on_cpu] = np.where(stack_frames.are_native()[self.stack[self.on_cpu]], NATIVE, PYTHON)

    @cached_property
    def had_by_others(self) -> Bools:
        """Waits for a lock that others are known to have had; asked when it is known which wait for one."""
        waits = self.waits & (self.shares == LOCK)
        return had_by_others(self.profile, self.spans, waits, self.by_another, self.pid_of_thread)

    @cached_property
    def for_device(self) -> Bools:
        """Calls that wait for a device. XLA's front waits so for its own threads, where these compute on CPUs."""
        found = self.waiting.for_device[self.stack]
        in_front = self.waiting.in_xla[self.stack] & found
        if not in_front.any():
            return found
        frames = self.stack_frames
        computes = frames.have([frame.name.startswith("xla::cpu::") for frame in frames.frames])
        drives = frames.have([bool(PLUGINS.match(frame.file.rpartition("/")[2])) for frame in frames.frames])
        drives |= (self.waiting.of_device > 0) & ~self.waiting.in_xla
        by_cpus, by_devices = (np.isin(self.pids, self.pids[each[self.stack]]) for each in (computes, drives))
        return np.asarray(found & ~(in_front & by_cpus & ~by_devices))

    @cached_property
    def in_python(self) -> Bools:
        """For each stack."""
        return self.stack_frames.innermost_python() >= 0

    @cached_property
    def may_spin(self) -> Bools:
        """On a CPU, or without it in a call that only spins: who was woken in one that sleeps lacks a CPU."""
        sleeps = np.zeros(self.stack_frames.count, np.bool_)
        sleeps[self.stack[self.waits]] = True
        return self.on_cpu | (self.is_runnable & ~sleeps[self.stack])

    def in_lines_of(self, lines: Ints, turns: Bools) -> Bools:
        """Whether each span is in a line most of whose CPU time is such turns: `while not done: yield_()`.

        lines: for each stack its line, -1: none.
        """
        line, ns = lines[self.stack] + 1, self.spans["stands_for_ns"].astype(np.int64)
        count, is_cpu = int(line.max(initial=0)) + 1, np.isin(self.shares, (PYTHON, NATIVE, SPIN))
        spun_ns, cpu_ns = (sums_by(line[each], ns[each], count) for each in (turns, turns | is_cpu))
        return np.asarray((2 * spun_ns > cpu_ns)[line] & (line > 0))


def _in_subprocess(facts: SpanFacts) -> Bools:
    frames = facts.stack_frames.frames
    marked = [frame.kind == FrameKind.PYTHON and frame.file.endswith("/subprocess.py") for frame in frames]
    return facts.waits & facts.polls & facts.stack_frames.have(marked)[facts.stack]


def _collective(facts: SpanFacts) -> Bools:
    found: Bools = facts.waits & (facts.shares == HANDED) & are_collectives(facts.stack_frames)[facts.stack]
    return found if len(np.unique(facts.pids[found])) == 1 else np.zeros(len(found), np.bool_)


def _of_client(facts: SpanFacts) -> Bools:
    objects = facts.profile.objects
    listening = {place for place, name in enumerate(objects, 1) if name.startswith(LISTENING)}
    of_client = np.isin(facts.spans["object"], [*listening | facts.profile.info.accepted])
    found: Bools = facts.waits & of_client & ~facts.stack_frames.in_functions(_SENDS)[facts.stack]
    return found


def _in_loop_of_server(facts: SpanFacts) -> Bools:
    listens = facts.profile.info.listens
    serves = np.array([listens.get(int(each.pid), False) for each in facts.profile.threads] or [False])
    in_loop = facts.stack_frames.in_functions(_EPOLL) & facts.in_python
    found: Bools = facts.polls & serves[facts.thread] & in_loop[facts.stack]
    return found


def _sleeps_for_lock(facts: SpanFacts) -> Bools:
    frames = facts.stack_frames
    return facts.waits & (frames.in_objects(_SLEEPS_FOR_LOCKS) | frames.in_files(_LOCK_FILES))[facts.stack]


def _of_handler(facts: SpanFacts) -> Bools:
    if not (facts.waits & (facts.shares == SLEEP)).any():
        return np.zeros(len(facts.shares), np.bool_)
    return facts.waits & facts.stack_frames.pass_through(HANDLERS)[facts.stack]


def _takes_turns(facts: SpanFacts) -> Bools:
    """In the accept of a server, or in C alone: in a handler the same function is for any lock."""
    frames = facts.stack_frames
    is_turn = frames.in_functions(TAKES_TURNS) & (frames.in_functions(("wsgi_req_accept",)) | ~facts.in_python)
    return facts.waits & is_turn[facts.stack]


def _reads_for_itself(facts: SpanFacts) -> Bools:
    """A daemon that looks at a device, and no thread with Python waits for what it reads."""
    is_beside = are_beside_python(facts.profile, facts.spans, facts.stack_frames)
    awaited = facts.ended_by[facts.by_another & facts.in_python[facts.stack]]
    pids = facts.pid_of_thread[np.unique(awaited)]
    return facts.waits & is_beside[facts.thread] & ~np.isin(facts.pids, pids)


def _asks_device(facts: SpanFacts) -> Bools:
    asks = facts.on_cpu & facts.waiting.queries[facts.stack]
    if not asks.any():
        return asks
    return facts.on_cpu & facts.in_lines_of(facts.stack_frames.own_code(), asks)


def _reads_own_output(facts: SpanFacts) -> Bools:
    """Read ends of pipes are known by who has them; of other ways, and who may have several, by who ended the wait."""
    info = facts.profile.info
    by_own = np.array([False, *(each.pid in info.own_pids for each in facts.profile.wakers)])[facts.spans["waker"]]
    is_reader = np.isin(facts.pids, [*info.reader_pids])
    return np.asarray(facts.waits & (by_own | (is_reader & (facts.shares != NET))))


@dataclass(frozen=True)
class Rule:
    """Spans that have one of the shares `of`, and of which it holds, have the share `to`."""

    name: str
    of: tuple[int, ...]
    to: int
    holds: Callable[[SpanFacts], Bools]


# In this order: a rule sees what those before it left. Two may change places where neither gives what the other is of.
RULES = (
    Rule("a poll of the module subprocess is for a child", (NET,), CHILD, _in_subprocess),
    Rule("it reads what bpfprof prints", (CHILD, NET, OTHER), IDLE, _reads_own_output),
    Rule("another thread gave what was asked for", (NET, OTHER), HANDED, lambda facts: facts.by_another),
    Rule("a thread of its process wrote to the pipe", (CHILD,), HANDED, lambda facts: facts.by_family & facts.pipes),
    Rule(
        "another thread gave what it waited for, in a function that waits for one",
        _WAITS,
        HANDED,
        lambda facts: facts.by_another & (facts.hand_over | facts.of_pool),
    ),
    # Who ends a wait for another thread is not always known, as when that thread ends.
    Rule(
        "it waited for another thread, and who ended that is not known",
        (LOCK,),
        HANDED,
        lambda facts: facts.waits & (facts.ended_by < 0) & ~facts.by_timer & facts.hand_over,
    ),
    Rule("the other ranks of a collective are not recorded", (HANDED,), NET, _collective),
    # A wait whose time ran out is a look whether there is something to do, but where others had to give the lock, or a
    # server the answer: psycopg 3 looks ten times a second whether it was interrupted meanwhile.
    Rule(
        "the time for a lock ran out", (LOCK,), IDLE, lambda facts: facts.waits & facts.by_timer & ~facts.had_by_others
    ),
    Rule(
        "one of several that accept waits for its turn",
        (LOCK, HANDED),
        IDLE,
        _takes_turns,
    ),
    Rule(
        "the time of a poll ran out",
        (NET, CHILD),
        IDLE,
        lambda facts: facts.waits & facts.by_timer & facts.polls & ~ask(facts.stack_frames)[facts.stack],
    ),
    # A client asks when it wants something.
    Rule("a client did not ask", (NET,), IDLE, _of_client),
    # A server waits for all of its connections together. A library in C may do so for those that it asked for.
    Rule("no client of a server asked", (NET,), IDLE, _in_loop_of_server),
    Rule("it sleeps between looks at a lock", (SLEEP,), LOCK, _sleeps_for_lock),
    Rule("a thread of a pool of processes sleeps between looks (CPython up to 3.7)", (SLEEP,), IDLE, _of_handler),
    # Who lost its CPU in a call that spins for a device waits as before.
    Rule(
        "a device computes or copies",
        (*_ON_CPU, READY, *_NOT_DISK, SPIN, HANDED, IDLE),
        GPU,
        lambda facts: (facts.waits | facts.may_spin) & facts.for_device,
    ),
    Rule("it spins", (*_ON_CPU, GPU), SPIN, lambda facts: facts.on_cpu & facts.waiting.spins[facts.stack]),
    Rule(
        "a line of Python spins",
        (PYTHON,),
        SPIN,
        lambda facts: facts.on_cpu & facts.in_lines_of(facts.stack_frames.innermost_python(), facts.shares == SPIN),
    ),
    # Asking a device whether it is done returns at once, and so is part of a loop in Python.
    Rule("a line asks a device again and again", _ON_CPU, GPU, _asks_device),
    Rule(
        "a known function of an idle thread",
        (GIL, GPU, HANDED, *_WAITS),
        IDLE,
        lambda facts: facts.waits & (facts.spans["flags"] & SpanFlag.IDLE > 0),
    ),
    Rule(
        "a process without Python beside one with it, or a kernel thread",
        (LOCK, NET, SLEEP, CHILD, OTHER),
        IDLE,
        lambda facts: facts.waits & are_beside_python(facts.profile, facts.spans, facts.stack_frames)[facts.thread],
    ),
    Rule("a process without Python beside one with it looks at a device", (DEVICE,), IDLE, _reads_for_itself),
)


def shares_of_spans(facts: SpanFacts) -> tuple[Ints, Bools, Bools]:
    """(a place in SHARES, IDLE or HANDED for each span, which are stuck, which threads serve nobody).

    After the rules comes what depends on threads as a whole: who was waited for, what hangs, who serves nobody.
    """
    profile, spans, shares, waits = facts.profile, facts.spans, facts.shares, facts.waits
    for rule in RULES:
        is_of = np.zeros(HANDED + 1, np.bool_)
        is_of[[*rule.of]] = True
        chosen = is_of[shares]
        if chosen.any():
            shares[chosen & rule.holds(facts)] = rule.to
    leave_out_awaited(
        profile, spans, shares, np.where(waits & (shares == CHILD), facts.ended_by, -1), facts.pid_of_thread
    )
    behind = waits & facts.hand_over
    stuck = settle_unended(profile, spans, facts.stack_frames, Known(shares, behind, facts.had_by_others))
    works = np.isin(shares, (PYTHON, NATIVE, READY, DISK, GIL)) | stuck
    serve_nobody = servants(profile, spans, works, waits & np.isin(shares, (HANDED, LOCK)), facts.stack_frames)
    serve_nobody |= of_drivers(facts.stack_frames, spans, len(profile.threads))
    # What records is no work of what is recorded, nor is waiting for it.
    shares[np.isin(facts.pids, [*profile.info.own_pids])] = IDLE
    shares[waits & (shares == CHILD) & np.isin(facts.pids, [*profile.info.above_pids])] = IDLE
    shares = like_those_with_stacks(spans, shares, waits, facts.stack_frames)
    shares[serve_nobody[facts.thread] & ~facts.on_cpu & ~stuck & ~np.isin(shares, (READY, DISK, GIL))] = IDLE
    return shares, stuck, serve_nobody
