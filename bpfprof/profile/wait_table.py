"""Every wait of a recording with who ended it: the WaitTable of a profile, and its waits for GILs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bpfprof.account.gil import with_sums
from bpfprof.account.idle import IDLE_REASONS, idle_stacks
from bpfprof.account.intervals import Intervals
from bpfprof.account.pieces import LEAF_RUNQUEUE, LEAF_WAIT, NOT_SAMPLED_STACK
from bpfprof.account.reasons import FUTEX_CALLS, reason_number, reason_text
from bpfprof.account.short_waits import SUM_DTYPE, Spread
from bpfprof.account.wait_facts import WaitFacts
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.profile import GIL_ROW_DTYPE, HOLDER_ROW_DTYPE, WAIT_ROW_DTYPE, WaitTable, Waker
from bpfprof.model.samples import HOLDS_GIL, WakerKind
from bpfprof.model.syscalls import syscall_numbers
from bpfprof.profile.profile_stacks import ProfileStacks
from bpfprof.recording.reader import Recording
from bpfprof.recording.tables import RecordedWaker

Int64Array = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# An interrupt that ends one of these waits is taken for a timer's: network interrupts end net, disks end disk. A device
# that is waited for in a call with a timeout is not told apart from it.
_TIMED = ("sleep", "lock", "poll")
_TIMED_CALLS = sorted(
    syscall_numbers(
        *("futex", "futex_waitv", "futex_wait", "nanosleep", "clock_nanosleep"),
        *("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2"),
    )
)
_POLL = next(iter(syscall_numbers("poll")))
_TIMER_SLACK_NS = 2_000_000  # a timer of poll() may be rounded up to a tick or so, and its thread's sleep began later


def gil_rows(held: npt.NDArray[np.void], facts: WaitFacts, stacks: ProfileStacks) -> npt.NDArray[np.void]:
    """Rows of GIL_ROW_DTYPE, by thread; of each thread they sum to how long it waited for GILs. held: HELD_DTYPE."""
    held = with_sums(held, facts.sums)
    rows = np.zeros(len(held), GIL_ROW_DTYPE)
    for name in ("thread", "holder", "ns"):
        rows[name] = held[name]
    rows["stack"] = stacks.places(held["stack"])
    return rows


def wait_table(
    recording: Recording,
    intervals: Intervals,
    facts: WaitFacts,
    spreads: dict[int, Spread],
    stacks: ProfileStacks,
    held: npt.NDArray[np.void],
) -> WaitTable:
    """A row for each wait that has one in the recording, also where a thread was only kept from running; and the rest.

    spreads: by thread; held: rows of HELD_DTYPE.
    """
    first = np.flatnonzero(facts.is_first)
    last = np.append(first[1:], len(facts.is_first))[: len(first)] - 1
    # What a wait began with, and what ended it.
    begun, ended = _Rows(intervals, first), _Rows(intervals, last)
    rows = np.zeros(len(first), WAIT_ROW_DTYPE)
    end_ns = ended["time_ns"]
    woken_ns = end_ns - ended["runqueue_ns"]
    rows["start_ns"] = (begun["time_ns"] - begun["runqueue_ns"] - begun["blocked_ns"] - intervals.start_ns).clip(0)
    all_places = np.arange(len(facts.is_first))
    for name in ("blocked_ns", "runqueue_ns"):
        rows[name] = _sums(intervals.waits.take(all_places, name), first)
    more_ns, more_count = np.zeros(len(all_places), np.int64), np.zeros(len(all_places), np.int64)
    for thread, spread in spreads.items():
        own = slice(*intervals.waits.begin[thread : thread + 2])
        more_ns[own], more_count[own] = spread.blocked_ns, spread.blocked_count
    rows["total_ns"] = rows["blocked_ns"] + _sums(more_ns, first).astype(np.uint64)
    rows["count"] = (rows["blocked_ns"] > 0) + _sums(more_count, first)
    rows["intervals"] = last - first + 1
    rows["thread"], rows["task_state"] = begun["thread"], begun["task_state"]
    reasons = np.where(rows["blocked_ns"] > 0, facts.reasons[first], reason_number("runqueue")).astype(np.uint16)
    rows["stack"] = stacks.numbers(_keys(begun, reasons))
    is_futex = np.isin(begun["syscall"], FUTEX_CALLS) & (reasons == reason_number("lock"))
    rows["lock"] = np.where(is_futex, intervals.waits.take(first, "args")[:, 0], 0)
    may_idle = np.isin(reasons, [reason_number(word) for word in IDLE_REASONS])
    rows["is_idle"] = may_idle & idle_stacks(recording)[begun["stack"]]
    rows["holds_gil"] = begun["flags"] & HOLDS_GIL > 0
    wakers, rows["waker"] = _wakers(recording, intervals, ended, last, reasons)
    rows["waker_stack"] = stacks.places(ended["waker_stack"].astype(np.uint32))
    rows["waker_wait"] = _wakers_waits(recording, ended["waker"], woken_ns, rows, end_ns)
    holders = _holders(facts, stacks, rows, held)
    rest, rest_reasons = _rest(spreads, stacks)
    rows = np.concatenate([rows, rest])
    words, rows["reason"] = np.unique(np.concatenate([reasons, rest_reasons]), return_inverse=True)
    return WaitTable(rows, tuple(map(reason_text, words.tolist())), wakers, holders)


class _Rows:
    """Columns of the waits at these places as int64."""

    def __init__(self, intervals: Intervals, places: Int64Array) -> None:
        self._intervals, self._places = intervals, places

    def __getitem__(self, name: str) -> Int64Array:
        return self._intervals.waits.take(self._places, name).astype(np.int64)


def _sums(values: npt.NDArray[np.generic], first: Int64Array) -> npt.NDArray[np.generic]:
    """From each of these places up to the next."""
    return np.asarray(np.add.reduceat(values, first)) if len(first) else values[:0]


def _rest(spreads: dict[int, Spread], stacks: ProfileStacks) -> tuple[npt.NDArray[np.void], npt.NDArray[np.uint16]]:
    """Rows for the sums that no wait could take, and their reasons."""
    sums = np.concatenate([np.zeros(0, SUM_DTYPE), *(spread.rest for spread in spreads.values())])
    sums = sums[sums["blocked_ns"] > 0]
    rows = np.zeros(len(sums), WAIT_ROW_DTYPE)
    rows["thread"], rows["total_ns"], rows["count"] = sums["thread"], sums["blocked_ns"], sums["count"]
    leaves = sums["reason"].astype(np.uint64) + np.uint64(LEAF_WAIT)
    rows["stack"] = stacks.numbers(np.uint64(NOT_SAMPLED_STACK << 32) | leaves << np.uint64(16))
    return rows, sums["reason"]


def _holders(
    facts: WaitFacts, stacks: ProfileStacks, rows: npt.NDArray[np.void], held: npt.NDArray[np.void]
) -> npt.NDArray[np.void]:
    """Rows of HOLDER_ROW_DTYPE for those of HELD_DTYPE; what a wait stands for was behind the same holders."""
    held = held[np.argsort(held["place"], kind="stable")]
    made = np.zeros(len(held), HOLDER_ROW_DTYPE)
    made["wait"] = (np.cumsum(facts.is_first) - 1)[held["place"]]
    made["holder"], made["stack"] = held["holder"], stacks.places(held["stack"])
    of_wait = rows[made["wait"]]
    made["ns"] = held["ns"] * (of_wait["total_ns"] / np.maximum(of_wait["blocked_ns"], 1))
    return made


def _keys(begun: _Rows, reasons: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint64]:
    """As piece_keys()."""
    leaf = np.where(reasons == reason_number("runqueue"), LEAF_RUNQUEUE, reasons.astype(np.int64) + LEAF_WAIT)
    return (begun["stack"] << 32 | leaf << 16 | begun["status"] << 8).astype(np.uint64)


def _name(recording: Recording, waker: RecordedWaker) -> str:
    """A thread of a target has the name that it had last."""
    return (recording.threads[waker.thread - 1].name if waker.thread else "") or waker.name


def _wakers(
    recording: Recording, intervals: Intervals, ended: _Rows, last: Int64Array, reasons: npt.NDArray[np.uint16]
) -> tuple[tuple[Waker, ...], npt.NDArray[np.uint32]]:
    """(those of the recording, the timer and other interrupts; place of each wait's, from 1 on, 0: not known)."""
    known = [
        Waker("thread", Pid(it.pid), Tid(it.tid), it.process_name, _name(recording, it), it.thread - 1)
        for it in recording.wakers
    ]
    places = ended["waker"]
    kinds = ended["waker_kind"]
    is_interrupt = (kinds == WakerKind.INTERRUPT) | (kinds == WakerKind.SOFT_INTERRUPT)
    calls = ended["syscall"]
    is_timed = np.isin(reasons, [reason_number(word) for word in _TIMED]) | np.isin(calls, _TIMED_CALLS)
    # poll() says how long it waits, in milliseconds, less than 0: until something happens.
    timeout_ms = intervals.waits.take(last, "args")[:, 2].astype(np.uint32).view(np.int32).astype(np.int64)
    is_early = (timeout_ms < 0) | (ended["blocked_ns"] + _TIMER_SLACK_NS < timeout_ms * 1_000_000)
    is_timed &= ~(is_early & (calls == _POLL)) & (kinds == WakerKind.INTERRUPT)
    places[is_interrupt] = len(known) + np.where(is_timed[is_interrupt], 1, 2)
    # A timer ends none but slices of a wait for the GIL: the last slice, which the holder ended, has no row.
    places[(reasons == reason_number("gil")) & (kinds == WakerKind.INTERRUPT)] = 0
    return (*known, Waker("timer"), Waker("interrupt")), places.astype(np.uint32)


def _wakers_waits(
    recording: Recording, waker: Int64Array, woken_ns: Int64Array, rows: npt.NDArray[np.void], end_ns: Int64Array
) -> npt.NDArray[np.uint32]:
    """For each wait the row + 1 of its waker's last wait that ended at or before it did, 0: none.

    Rows are in the order of (thread, end_ns); woken_ns: when the wait ended, but for the run queue. A row of a thread
    that was only kept from running is no wait.
    """
    found = np.zeros(len(waker), np.uint32)
    waited = np.flatnonzero(rows["blocked_ns"])
    thread, end_ns = rows["thread"][waited], end_ns[waited]
    thread_of = np.array([-1, *(it.thread - 1 for it in recording.wakers)], np.int64)
    waker_thread = thread_of[np.where(waker < len(thread_of), waker, 0)]
    begin = np.searchsorted(thread, np.arange(len(recording.threads) + 1))
    order = np.argsort(waker_thread, kind="stable")
    borders = np.searchsorted(waker_thread[order], np.arange(len(recording.threads) + 1))
    for number in np.flatnonzero(np.diff(borders)).tolist():
        woken = order[borders[number] : borders[number + 1]]
        own = slice(int(begin[number]), int(begin[number + 1]))
        place = np.searchsorted(end_ns[own], woken_ns[woken], side="right")
        found[woken[place > 0]] = waited[own][place[place > 0] - 1] + 1
    return found
