"""Waits for a GIL: the slices that one wait is made of, and behind whom each thread waited.

A thread that wants the GIL sleeps for at most the switch interval (5 ms), asks for it and sleeps again (take_gil,
Python/ceval_gil.h in v3.11.7, Python/ceval_gil.c in v3.12.1): one wait comes as many rows.

Who holds the GIL is seen at moments only: when a wait begins (`holder` of its row), and when one ends that no timer
ended, for then its thread was given the GIL. From one such moment to the next of the same GIL the holder is taken to be
the same. A thread that gave the GIL away because it was asked to waits until another has it (drop_gil, the same files):
then that other one, which ends the wait, has it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bpfprof.account.cpu_clock import shared
from bpfprof.account.intervals import Intervals
from bpfprof.account.reasons import reason_number
from bpfprof.model.samples import WakerKind
from bpfprof.recording.reader import Recording

Int64Array = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_GIL_BYTES = 256  # futexes nearer to each other than this are of one GIL: struct _gil_runtime_state has 208 bytes
_BETWEEN_NS = 100_000  # a thread that ran for longer than this between two waits had the GIL
_NEAR_NS = 10_000_000  # two times the default of sys.getswitchinterval()
_GAP_NS = 1_000_000  # and one that is not seen for longer may have had it
# Of struct _gil_runtime_state, Include/internal/pycore_gil.h (v3.9 to v3.13): switch_cond and switch_mutex, for those
# that gave it away.
_SWITCH_FROM, _SWITCH_TO = 120, 208
# The default switch interval is 5 ms; a timer is never early, but the sleep may begin a moment after it was set.
_TIMER_NS = 4_900_000

# How long `thread` waited for a GIL that `holder` had, -1: not known; stack: of the recording, 0: not known.
# place: of the first row of the wait.
HELD_DTYPE = np.dtype([("place", "<i8"), ("thread", "<u4"), ("holder", "<i4"), ("stack", "<u4"), ("ns", "<i8")])


@dataclass(frozen=True, slots=True)
class GilWaits:
    """Rows of waits for a GIL by place, in its order. is_first: begins a wait; whole_ns: blocked time of that wait."""

    places: Int64Array
    thread: Int64Array
    gil: Int64Array  # a number for each GIL
    begin_ns: Int64Array
    blocked_ns: Int64Array
    given_to: Int64Array  # the thread that had the GIL when the row was no longer blocked; -1: not known
    given_stack: Int64Array  # and its stack then, 0: not known
    is_first: Bools
    whole_ns: Int64Array

    @property
    def wake_ns(self) -> Int64Array:
        """When each row was no longer blocked."""
        return self.begin_ns + self.blocked_ns


def find_gil_waits(recording: Recording, intervals: Intervals, reasons: npt.NDArray[np.uint16]) -> GilWaits:
    """The waits whose reason, in the order of places, is a GIL."""
    waits = intervals.waits
    places = np.flatnonzero(reasons == reason_number("gil"))
    thread = waits.take(places, "thread").astype(np.int64)
    names = ("time_ns", "blocked_ns", "runqueue_ns", "on_cpu_ns", "stolen_ns")
    back, blocked, runqueue, ran, stolen = (waits.take(places, name).astype(np.int64) for name in names)
    begin = back - blocked - runqueue
    kind = waits.take(places, "waker_kind")
    by_timer = (kind == WakerKind.INTERRUPT) | ((kind == WakerKind.UNKNOWN) & (blocked >= _TIMER_NS))
    address = waits.take(places, "args")[:, 0]
    gil = _gil_numbers(recording, thread, address)
    goes_on = (np.diff(places) == 1) & (np.diff(thread) == 0) & (np.diff(gil) == 0) & by_timer[:-1]
    goes_on &= (np.diff(ran) < _BETWEEN_NS) & (begin[1:] - back[:-1] - stolen[1:] < _GAP_NS)
    is_first = np.append(True, ~goes_on)[: len(places)]
    number = np.cumsum(is_first) - 1
    whole = np.zeros(int(is_first.sum()), np.int64)
    np.add.at(whole, number, blocked)
    is_given = ~by_timer & (blocked > 0)
    given_to, given_stack = np.where(is_given, thread, -1), waits.take(places, "stack").astype(np.int64)
    gave = is_given & _gave_away(recording, thread, address)
    wakers = np.array([0, *(it.thread for it in recording.wakers)], np.int64)
    given_to[gave] = wakers[waits.take(places[gave], "waker")] - 1
    given_stack[gave] = waits.take(places[gave], "waker_stack")
    return GilWaits(places, thread, gil, begin, blocked, given_to, given_stack, is_first, whole[number])


def _gave_away(recording: Recording, thread: Int64Array, address: npt.NDArray[np.uint64]) -> Bools:
    """Of each wait for a GIL whether its thread waits for another one to take it."""
    starts = [(recording.processes[it.process].gil or (0, 0))[0] for it in recording.threads]
    start = np.array(starts or [0], np.uint64)[thread]
    into = address - start
    return np.asarray((start > 0) & (address >= start) & (into >= _SWITCH_FROM) & (into < _SWITCH_TO))


def _gil_numbers(recording: Recording, thread: Int64Array, address: npt.NDArray[np.uint64]) -> Int64Array:
    process_of = np.array([it.process for it in recording.threads] or [0], np.int64)
    # Addresses of programs have 47 bits.
    keys = process_of[thread].astype(np.uint64) << np.uint64(47) | (address & np.uint64((1 << 47) - 1))
    unique, inverse = np.unique(keys, return_inverse=True)
    numbers = np.cumsum(np.append(False, np.diff(unique) >= _GIL_BYTES)[: len(unique)])
    return np.asarray(numbers[inverse], np.int64)


@dataclass(frozen=True, slots=True)
class _Holders:
    """Who had one GIL, in the order of time: the ith is `holder[i]` from start_ns[i] until the next begins.

    key: a number for each (holder, stack); other: the last place before each that has another holder, -1: none.
    """

    start_ns: Int64Array
    holder: Int64Array
    key: Int64Array
    other: Int64Array

    def at(self, place: Int64Array, waiter: int) -> Int64Array:
        """The key at places (-1: before all), which is never the waiter's own; -1: not known."""
        own = (place >= 0) & (self.holder[place] == waiter)
        place = np.where(own, self.other[place], place)
        return np.where(place >= 0, self.key[place], -1)


def waits_behind(intervals: Intervals, waits: GilWaits) -> npt.NDArray[np.void]:
    """Rows of HELD_DTYPE: the blocked time of each wait by who had the GIL meanwhile."""
    taken = {name: intervals.waits.take(waits.places, name).astype(np.int64) for name in ("holder", "holder_stack")}
    made = [np.zeros(0, HELD_DTYPE)]
    first_places = waits.places[waits.is_first]
    number_of = np.cumsum(waits.is_first) - 1  # of the wait that each row is of
    by_gil = np.lexsort((waits.thread, waits.gil))  # stable: of one thread still in the order of time
    for of_gil in np.split(by_gil, np.flatnonzero(np.diff(waits.gil[by_gil])) + 1):
        if not len(of_gil):
            continue
        seen = of_gil[taken["holder"][of_gil] > 0]
        given = of_gil[waits.given_to[of_gil] >= 0]
        start = np.concatenate([waits.begin_ns[seen], waits.wake_ns[given]])
        holder = np.concatenate([taken["holder"][seen] - 1, waits.given_to[given]])
        stack = np.concatenate([taken["holder_stack"][seen], waits.given_stack[given]])
        stack = _nearest_stacks(start, holder, stack)
        pairs, key = np.unique(holder << 32 | stack, return_inverse=True)
        holders = _holders(start, holder, key)
        threads = waits.thread[of_gil]
        for rows in np.split(of_gil, np.flatnonzero(np.diff(threads)) + 1):
            thread = int(waits.thread[rows[0]])
            part_row, part_key, part_ns = _parts(holders, thread, waits.begin_ns[rows], waits.wake_ns[rows])
            codes, inverse = np.unique(number_of[rows][part_row] << 32 | (part_key + 1), return_inverse=True)
            ns = np.bincount(inverse, weights=part_ns, minlength=len(codes)).astype(np.int64)
            codes, ns = codes[ns > 0], ns[ns > 0]
            found = np.zeros(len(codes), HELD_DTYPE)
            found["place"], found["thread"], found["ns"] = first_places[codes >> 32], thread, ns
            behind = (codes & 0xFFFFFFFF) - 1
            known = behind >= 0
            found["holder"] = -1
            found["holder"][known] = pairs[behind[known]] >> 32
            found["stack"][known] = pairs[behind[known]] & 0xFFFFFFFF
            made.append(found)
    return np.concatenate(made)


def _nearest_stacks(start: Int64Array, holder: Int64Array, stack: Int64Array) -> Int64Array:
    """Stacks, where there is none the one that the same holder had soonest after, or else before.

    The kernel side does not take the stack of a holder behind whom the thread's last wait was short.
    """
    order = np.lexsort((start, holder))
    start, holder, found = start[order], holder[order], stack[order]
    count, places = len(order), np.arange(len(order))
    later = np.minimum.accumulate(np.where(found > 0, places, count)[::-1])[::-1]
    earlier = np.maximum.accumulate(np.where(found > 0, places, -1))
    for near, exists in ((later, later < count), (earlier, earlier >= 0)):
        near = np.where(exists, near, 0)
        fits = exists & (found == 0) & (holder[near] == holder) & (np.abs(start[near] - start) <= _NEAR_NS)
        found = np.where(fits, found[near], found)
    nearest = stack.copy()
    nearest[order] = found
    return nearest


def _holders(start: Int64Array, holder: Int64Array, key: Int64Array) -> _Holders:
    """In the order of time; what was seen again is left out."""
    order = np.argsort(start, kind="stable")
    start, holder, key = start[order], holder[order], key[order]
    kept = np.append(True, key[1:] != key[:-1])[: len(key)]
    start, holder, key = start[kept], holder[kept], key[kept]
    begins_run = np.append(True, holder[1:] != holder[:-1])[: len(holder)]
    run_begin = np.maximum.accumulate(np.where(begins_run, np.arange(len(holder)), 0))
    # One more at the end, so that place -1 (before all) can be looked up.
    return _Holders(*(np.append(it, -1) for it in (start, holder, key, run_begin - 1)))


def _parts(
    holders: _Holders, thread: int, begin: Int64Array, end: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """(row, key, nanoseconds) of the parts of a thread's rows that each lie behind one holder; key -1: not known."""
    # Waits that overlap are none; they would also cost much here.
    begin = np.maximum(begin, np.concatenate([begin[:1], np.maximum.accumulate(end)[:-1]]))
    end = np.maximum(begin, end)
    start = holders.start_ns[:-1]
    first = np.searchsorted(start, begin, side="right") - 1  # the holder when the wait began
    last = np.maximum(np.searchsorted(start, end, side="left") - 1, first)
    is_cut = last > first
    at_head, at_tail = holders.at(first, thread), holders.at(last, thread)
    # Where it is cut there is a next one; else the -1 at the end may be looked up, which is not used.
    head_ns = np.where(is_cut, holders.start_ns[first + 1], end) - begin
    tail = np.flatnonzero(is_cut)
    # Whole times of a holder in between.
    counts = last[tail] - first[tail] - 1
    offsets = np.cumsum(counts) - counts
    between = np.repeat(first[tail] + 1 - offsets, counts) + np.arange(int(counts.sum()))
    between_ns = holders.start_ns[between + 1] - holders.start_ns[between]
    return (
        np.concatenate([np.arange(len(begin)), tail, np.repeat(tail, counts)]),
        np.concatenate([at_head, at_tail[tail], holders.at(between, thread)]),
        np.concatenate([head_ns, end[tail] - holders.start_ns[last[tail]], between_ns]),
    )


def with_sums(held: npt.NDArray[np.void], sums: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """By thread, holder and stack, with waits that have no row (SUM_DTYPE): short ones behind nobody, the others like
    those with a row. `place` is 0."""
    held = _added_up(held)
    of_gil = sums[(sums["reason"] == reason_number("gil")) & (sums["blocked_ns"] > 0)]
    made = [held]
    for row in of_gil:
        own = slice(*np.searchsorted(held["thread"], (row["thread"], row["thread"] + np.uint32(1))))
        if row["is_unsampled"] and own.start < own.stop:
            held["ns"][own] += shared(held["ns"][own], int(row["blocked_ns"]))
        else:
            made.append(np.array([(0, row["thread"], -1, 0, row["blocked_ns"])], HELD_DTYPE))
    return _added_up(np.concatenate(made))


def _added_up(held: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    behind, code = np.unique(held["holder"].astype(np.int64) << 32 | held["stack"], return_inverse=True)
    keys, inverse = np.unique(held["thread"] * np.int64(len(behind)) + code, return_inverse=True)
    added = np.zeros(len(keys), HELD_DTYPE)
    if len(keys):
        thread, code = np.divmod(keys, len(behind))
        added["thread"], added["holder"], added["stack"] = thread, behind[code] >> 32, behind[code] & 0xFFFFFFFF
    np.add.at(added["ns"], inverse, held["ns"])
    return added
