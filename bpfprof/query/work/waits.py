"""Spans of a Profile -> its waits, one row each: how long, and who ended it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.profile import Profile
from bpfprof.model.rows import BLOCK_BYTES, blocks, out_of_memory
from bpfprof.model.spans import SHARED_LOCK, WAIT_TIME_DTYPE, How, SpanFlag, ThreadState, times_of
from bpfprof.model.states import reason_number
from bpfprof.model.statuses import Status

Ints = npt.NDArray[np.int64]
_GIL = reason_number("gil")
_MOST_LENGTHS = 1 << 20  # of waits that are sorted together

# Sorted by (thread, start). number: as in the spans, 0 of waits that are only known as a sum. blocked_ns: how long it
# was blocked, 0 of sums; total_ns, count: of the waits that it stands for, itself
# included. waker, waker_stack: of its last span. before: the place of the last wait of the waker that ended before this
# one did, -1: none. is_shown: it passed the profile's filter, and no other speaks for it.
WAIT_ROW_DTYPE = np.dtype(
    [
        ("blocked_ns", "<i8"),
        ("total_ns", "<i8"),
        ("count", "<i8"),
        ("lock", "<u8"),
        ("before", "<i8"),
        ("number", "<u4"),
        ("thread", "<u4"),
        ("stack", "<u4"),
        ("waker", "<u4"),
        ("waker_stack", "<u4"),
        ("object", "<u4"),
        ("reason", "<u2"),
        ("is_idle", "?"),
        ("is_shown", "?"),
    ]
)
# A row of waits that are added up is of many.
_OF_ONE = {"blocked_ns", "before", "number"}
_SUM_DTYPE = np.dtype([(name, WAIT_ROW_DTYPE[name]) for name in WAIT_ROW_DTYPE.names or () if name not in _OF_ONE])


def lock_owners(locks: npt.NDArray[np.generic], pids: Ints) -> Ints:
    """The process that each lock is told apart by: 0 where processes share it."""
    return np.where(locks.astype(np.uint64) & np.uint64(SHARED_LOCK) > 0, 0, pids)


@dataclass(frozen=True)
class Waits:
    """The waits of a profile that was built with its spans: rows of WAIT_ROW_DTYPE.

    held: holder, holder_stack and stands_for_ns of the parts of waits for a GIL, and held_by: the row of each. Of a
    profile whose spans are added up a row is of all waits that nothing but their time tells apart, and has no number,
    blocked_ns and before. times: WAIT_TIME_DTYPE of waits whose times are known, by thread and time, which may be in a
    file; row_of: the row of each `span` of theirs.
    """

    rows: npt.NDArray[np.void]
    held: npt.NDArray[np.void]
    held_by: npt.NDArray[np.integer[Any]]
    row_of: npt.NDArray[np.uint32]
    times: npt.NDArray[np.void]

    def lengths(self, groups: Sequence[Ints]) -> Iterator[tuple[Ints, npt.NDArray[np.float64]]]:
        """For each group of rows (how long its waits were blocked, as far as that is known, shortest first; how many
        each and those before it stand for).

        No row is in two. A length and the number of its row have 63 bits together: where one of a million rows waited
        for some hours all lengths lose their last ones.
        """
        sizes = [int(self._known[1][places].sum()) for places in groups]
        begin = held = 0
        for number, size in enumerate(sizes):  # those of some groups are in memory at a time
            if held and held + size > _MOST_LENGTHS:
                yield from self._lengths(groups[begin:number])
                begin, held = number, 0
            held += size
        yield from self._lengths(groups[begin:])

    def _lengths(self, groups: Sequence[Ints]) -> Iterator[tuple[Ints, npt.NDArray[np.float64]]]:
        group_of = np.full(len(self.rows), len(groups), np.min_scalar_type(len(groups)))  # small numbers sort quickly
        for each, places in enumerate(groups):
            group_of[places] = each
        sizes = np.bincount(group_of, self._known[1], len(groups) + 1)[:-1].astype(np.int64)
        begin, group_of = np.append(0, np.cumsum(sizes)), group_of[self.row_of]
        both, free = np.empty(begin[-1], np.int64), begin[:-1].copy()
        bits = len(self.rows).bit_length()
        less = max(0, self._longest_ns.bit_length() + bits - 63)
        for times in blocks(self.times):  # they may be many
            group = group_of[times["span"]]
            order = np.argsort(group, kind="stable")
            counts = np.bincount(group, minlength=len(begin))[:-1]
            order = order[: counts.sum()]
            place = np.repeat(free - np.cumsum(counts) + counts, counts) + np.arange(len(order))
            both[place] = times["duration_ns"][order] >> less << bits | self.row_of[times["span"][order]]
            free += counts
        for own in np.split(both, begin[1:-1]) if len(groups) else ():
            own.sort()
            until = self._shares[1][own & ((1 << bits) - 1)]
            yield own >> bits << less, np.cumsum(until, out=until)

    def of_rows(self, places: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.uint32]:
        """The waits of these rows whose times are known."""
        is_of, found, at = self._spans_of(places), [np.zeros(0, np.uint32)], 0
        for times in blocks(self.times):  # they may be many
            found.append((np.flatnonzero(is_of[times["span"]]) + at).astype(np.uint32))
            at += len(times)
        return np.concatenate(found)

    def _spans_of(self, places: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.bool_]:
        """For each span that times refer to whether its row is one of these."""
        is_of = np.zeros(len(self.rows), np.bool_)
        is_of[places] = True
        return is_of[self.row_of]

    def rows_of(self, waits: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.uint32]:
        """The row of each of these waits."""
        return self.row_of[self._times_of(waits, "span")[0]]

    def _times_of(self, waits: npt.NDArray[np.integer[Any]], *names: str) -> list[Ints]:
        """Columns of `times`, of which little is in memory."""
        found, at = [np.zeros(len(waits), np.int64) for _ in names], 0
        order = np.argsort(waits, kind="stable")  # mostly it is theirs
        waits = waits[order]
        for part in blocks(self.times):
            own = slice(*np.searchsorted(waits, (at, at + len(part))))
            for column, name in zip(found, names):
                column[order[own]] = part[name][waits[own] - at]
            at += len(part)
        return found

    def stand_for_ns(self, waits: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.float64]:
        """For each of these waits."""
        blocked_ns, span = self._times_of(waits, "duration_ns", "span")
        return np.asarray(blocked_ns * self._shares[0][self.row_of[span]])

    @cached_property
    def _known(self) -> tuple[npt.NDArray[np.float64], Ints]:
        """For each row how long its waits whose times are known were blocked, and how many they are."""
        ns, counts = np.zeros(len(self.rows)), np.zeros(len(self.rows), np.int64)
        for times in blocks(self.times, BLOCK_BYTES):  # sums of all rows are made of each
            row = self.row_of[times["span"]]
            ns += np.bincount(row, times["duration_ns"], len(ns))
            counts += np.bincount(row, minlength=len(ns))
        return ns, counts

    @cached_property
    def _shares(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """For each row what a nanosecond of its waits whose times are known stands for, and what one of them does."""
        ns, counts = self._known
        return self.rows["total_ns"] / ns.clip(1), np.where(counts > 0, self.rows["count"], 1) / counts.clip(1)

    @cached_property
    def _longest_ns(self) -> int:
        return max((int(times["duration_ns"].max()) for times in blocks(self.times)), default=0)

    def before(self, waits: npt.NDArray[np.integer[Any]], thread: int) -> Ints:
        """For each of these waits the last one of a thread that had ended when it did, -1: none."""
        begin, end = self._begin[thread : thread + 2] if thread + 1 < len(self._begin) else (0, 0)
        own = self.times[begin:end]
        own_end_ns = own["start_ns"] + own["duration_ns"]
        out_of_memory(own)
        start_ns, ns = self._times_of(waits, "start_ns", "duration_ns")
        place = np.searchsorted(own_end_ns, start_ns + ns, side="right")
        return np.where(place > 0, begin + place - 1, -1)

    @cached_property
    def _begin(self) -> list[int]:
        """For each thread its first wait, and one more for the end."""
        counts = np.bincount(self.rows["thread"], self._known[1], 1)
        found: list[int] = np.append(0, np.cumsum(counts)).astype(np.int64).tolist()
        return found


def wait_times(profile: Profile) -> npt.NDArray[np.void]:
    """WAIT_TIME_DTYPE, by thread and time, of the waits with a row of a profile that was built with its spans.

    They may be many, see blocks().
    """
    assert profile.spans is not None
    if profile.wait_times is not None:
        return profile.wait_times
    return times_of(profile.spans)


def find_waits(profile: Profile) -> Waits:
    """Every wait with a row in the recording, and those without one for which none could speak.

    Raises ValueError without spans.
    """
    if profile.spans is None:
        raise ValueError("waits are found in a profile that was built with its spans")
    spans = profile.spans[profile.spans["state"] == ThreadState.OFF_CPU]
    unheard = (spans["wait"] == 0) & (spans["status"] == Status.NOT_SAMPLED) & (spans["stands_for_ns"] > 0)
    spans = spans[(spans["wait"] > 0) | unheard]
    # A span without a wait is a row of its own.
    number = spans["wait"].astype(np.int64)
    first = np.flatnonzero((np.diff(number, prepend=-1) != 0) | (number == 0))
    last = np.append(first[1:], len(spans))[: len(first)] - 1
    rows = np.zeros(len(first), WAIT_ROW_DTYPE)
    begun, ended = spans[first], spans[last]
    rows["number"] = begun["wait"]
    for name in ("lock", "thread", "stack", "reason", "object"):
        rows[name] = begun[name]
    for name in ("waker", "waker_stack"):
        rows[name] = ended[name]
    if len(first):
        for name, column in (("blocked_ns", "duration_ns"), ("total_ns", "stands_for_ns"), ("count", "count")):
            rows[name] = np.add.reduceat(spans[column].astype(np.int64), first)
    rows["blocked_ns"][begun["wait"] == 0] = 0
    rows["is_idle"] = begun["flags"] & SpanFlag.IDLE > 0
    rows["is_shown"] = (begun["flags"] & SpanFlag.HIDDEN == 0) & (rows["total_ns"] > 0)
    rows["before"] = _before(profile, rows, ended["start_ns"] + ended["duration_ns"])
    held = spans["reason"] == _GIL
    row_of = np.repeat(np.arange(len(rows)), last - first + 1)
    timed = np.flatnonzero(rows["blocked_ns"])
    times = np.zeros(len(timed), WAIT_TIME_DTYPE)
    times["duration_ns"], times["span"] = rows["blocked_ns"][timed], timed
    times["start_ns"] = (ended["start_ns"] + ended["duration_ns"])[timed] - times["duration_ns"]
    return Waits(rows, spans[held], row_of[held], np.arange(len(rows), dtype=np.uint32), times)


def waits_of(profile: Profile) -> Waits:
    """The same; of a profile with whole waits whose spans are added up it is a part of the work.

    Raises ValueError without spans.
    """
    if profile.spans is None or profile.wait_times is None:
        return find_waits(profile)
    spans = profile.spans
    is_sum = spans["how"] == How.SUMMED
    unheard = is_sum & (spans["status"] == Status.NOT_SAMPLED) & (spans["stands_for_ns"] > 0)
    first = np.flatnonzero((spans["state"] == ThreadState.OFF_CPU) & (~is_sum | unheard))
    rows = np.zeros(len(first), _SUM_DTYPE)
    for name in ("lock", "thread", "stack", "reason", "object", "waker", "waker_stack", "count"):
        rows[name] = spans[name][first]
    rows["total_ns"] = spans["stands_for_ns"][first]
    rows["is_idle"] = spans["flags"][first] & SpanFlag.IDLE > 0
    rows["is_shown"] = (spans["flags"][first] & SpanFlag.HIDDEN == 0) & (rows["total_ns"] > 0)
    row_of = np.zeros(len(spans), np.uint32)
    row_of[first] = np.arange(len(first))
    held = profile.span_holders
    return Waits(rows, held, row_of[held["span"]], row_of, profile.wait_times)


def _before(profile: Profile, rows: npt.NDArray[np.void], woken_ns: Ints) -> Ints:
    """For each wait the last one of its waker that had ended when it did; woken_ns: when each ended."""
    found = np.full(len(rows), -1, np.int64)
    thread_of = np.array([-1, *(waker.thread for waker in profile.wakers)], np.int64)
    waker_thread = thread_of[np.minimum(rows["waker"], len(thread_of) - 1)]
    waited = np.flatnonzero(rows["blocked_ns"])
    begin = np.searchsorted(rows["thread"][waited], np.arange(len(profile.threads) + 1))
    order = np.argsort(waker_thread, kind="stable")
    borders = np.searchsorted(waker_thread[order], np.arange(len(profile.threads) + 1))
    for number in np.flatnonzero(np.diff(borders)).tolist():
        woken = order[borders[number] : borders[number + 1]]
        own = waited[begin[number] : begin[number + 1]]
        place = np.searchsorted(woken_ns[own], woken_ns[woken], side="right")
        found[woken[place > 0]] = own[place[place > 0] - 1]
    return found
