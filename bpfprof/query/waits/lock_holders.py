"""Waits for locks of a Profile -> of each lock who held it while others waited."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.grouping import Total, group_numbers, sums_by, totals_of
from bpfprof.model.profile import Profile
from bpfprof.model.rows import blocks, picked
from bpfprof.query.code.functions import Ints, owner_functions
from bpfprof.query.waits.chains import holders_in
from bpfprof.query.waits.lock_parts import parts_of
from bpfprof.query.work.table import Work
from bpfprof.query.work.waits import wait_times

_HOG = 0.5  # of the time that others waited


@dataclass(frozen=True)
class LockWaits:
    """What is known of the waits for one lock, by its number in Work.locks.

    frame: the line of the user's own code where most waited, a place in Profile.frames, -1: not known. threads: places
    in Profile.threads of those that waited, most first. holders: who held it in which function meanwhile, most first:
    `value` a place in Profile.wakers, `frame` the line of the user's own code where most was released, -1: not known.
    """

    number: int
    frame: int
    ns: int
    count: int
    threads: tuple[int, ...]
    holders: tuple[Total, ...]


def file_locked_for(profile: Profile, lock: LockWaits) -> tuple[str, str]:
    """(the file, the process that has it locked) which its threads waited for when the recording ended; "": none."""
    of_it = (
        wait for wait in profile.last_waits if wait.thread in lock.threads and wait.kind == "file-lock" and wait.held_by
    )
    found = next(of_it, None)
    if found is None:
        return "", ""
    return found.name.partition(": ")[2] if found.name.startswith("fd ") else found.name, found.held_by


def lock_waits(profile: Profile, work: Work, most: int = 0) -> list[LockWaits]:
    """Of so many locks with most waiting, 0: of all; that with most first."""
    assert profile.spans is not None
    waits, functions = work.lock_waits, owner_functions(profile.frames, work.own)
    waits = waits[np.lexsort((waits["thread"], waits["number"]))]  # of each thread still in the order of time
    known = np.flatnonzero(work.span_locks)
    known = known[np.argsort(work.span_locks[known], kind="stable")]
    numbers = work.span_locks[known]
    found = []
    for number in range(1, min(most or len(work.locks), len(work.locks)) + 1):
        spans = picked(profile.spans, known[slice(*np.searchsorted(numbers, (number, number + 1)))])
        ns = spans["stands_for_ns"].astype(np.int64)
        rows = waits[slice(*np.searchsorted(waits["number"], (number, number + 1)))]
        holder, stack, part_ns = _held(profile, rows)
        # Of waits that are only known as a sum it is not known.
        rest_ns = int(ns.sum()) - int(rows["stands_for_ns"].sum())
        if rest_ns > 0:
            holder, stack, part_ns = np.append(holder, 0), np.append(stack, 0), np.append(part_ns, rest_ns)
        found.append(
            LockWaits(
                number,
                totals_of(work.own[spans["stack"]], ns)[0].value,
                int(ns.sum()),
                int(spans["count"].sum()),
                tuple(share.value for share in totals_of(spans["thread"], ns)),
                holders_in(holder - 1, stack, part_ns, functions, work.own),
            )
        )
    return found


def _held(profile: Profile, rows: npt.NDArray[np.void]) -> tuple[Ints, Ints, Ints]:
    """(holder, its stack, nanoseconds) of the parts of waits for one lock, as parts_of()."""
    if not len(rows):
        none = np.zeros(0, np.int64)
        return none, none, none
    holder, stack, row, _, part_ns = parts_of(profile, rows)
    # What a wait stands for beside itself was held like it.
    stands_for = rows["stands_for_ns"] / np.maximum(rows["duration_ns"], 1)
    return holder, stack, np.rint(part_ns * stands_for[row]).astype(np.int64)


def lock_frames(work: Work) -> list[int]:
    """By the number of a lock, from 1 on, its LockWaits.frame."""
    rows = work.rows[work.rows["lock"] > 0]
    own = work.own[rows["stack"]]
    first, codes = group_numbers([rows["lock"], own + 1])
    lock, frame, ns = rows["lock"][first], own[first], sums_by(codes, rows["ns"], len(first))
    order = np.lexsort((frame, -ns, lock))
    found = np.full(len(work.locks) + 1, -1)
    best = order[np.diff(lock[order], prepend=0) > 0]
    found[lock[best]] = frame[best]
    return found.tolist()


def hog_of(lock: LockWaits, functions: Ints) -> Total | None:
    """Who held it for most of the time that others waited: one thread, or several (`value` -1) in one function.

    Of two threads each waits for the other, and of many in one function too: then nobody is. functions: for each frame.
    """
    known = [share for share in lock.holders if share.value >= 0]
    by_thread, by_function = Counter[int](), Counter[int]()
    for share in known:
        by_thread[share.value] += share.ns
        by_function[int(functions[share.frame])] += share.ns
    (thread, thread_ns), *_ = by_thread.most_common(1) or [(-1, 0)]
    (function, function_ns), *_ = by_function.most_common(1) or [(-1, 0)]
    if len(by_thread) > 2 and thread_ns >= _HOG * lock.ns:
        return Total(thread, thread_ns, next(share.frame for share in known if share.value == thread))
    if function >= 0 and function != functions[lock.frame] and function_ns >= _HOG * lock.ns:
        return Total(-1, function_ns, next(share.frame for share in known if functions[share.frame] == function))
    return None


def waits_while_held(profile: Profile, work: Work, number: int) -> tuple[int, tuple[Total, ...]]:
    """(how long a lock was held by threads that are known while others waited, what those waited for then, most first).

    `value` of a share: a reason.
    """
    assert profile.spans is not None
    rows = work.lock_waits[work.lock_waits["number"] == number]
    rows = rows[np.argsort(rows["thread"], kind="stable")]
    holder, _, _, begin_ns, ns = parts_of(profile, rows)
    threads = np.array([-1, *(waker.thread for waker in profile.wakers)], np.int64)[holder]
    known = threads >= 0
    held = _Held(threads[known], begin_ns[known], (begin_ns + ns)[known])
    spans = profile.spans
    weights = spans["stands_for_ns"] / np.maximum(spans["duration_ns"], 1)
    spent = np.zeros(int(spans["reason"].max(initial=0)) + 1)
    for times in blocks(wait_times(profile)):
        span = times["span"].astype(np.intp)
        inside = held.within(spans["thread"][span], times["start_ns"], times["start_ns"] + times["duration_ns"])
        spent += np.bincount(spans["reason"][span], inside * weights[span], len(spent))
    reasons = np.flatnonzero(spent)
    return held.total_ns, totals_of(reasons, np.rint(spent[reasons]).astype(np.int64))


class _Held:
    """Times of threads that may overlap, those of each thread as one.

    Threads are laid one after the other on one clock.
    """

    def __init__(self, threads: Ints, begin_ns: Ints, end_ns: Ints) -> None:
        self._from_ns = int(begin_ns.min(initial=0))
        self._apart = int(end_ns.max(initial=0)) - self._from_ns + 1
        begin_ns, end_ns = self._on_one_clock(threads, begin_ns), self._on_one_clock(threads, end_ns)
        order = np.argsort(begin_ns, kind="stable")
        begin_ns, last_ns = begin_ns[order], np.maximum.accumulate(end_ns[order])
        is_first = np.append(True, begin_ns[1:] > last_ns[:-1])[: len(order)]
        self._begin_ns = begin_ns[is_first]
        self._end_ns = last_ns[np.append(np.flatnonzero(is_first)[1:] - 1, len(last_ns) - 1)[: len(self._begin_ns)]]
        self._before_ns = np.append(0, np.cumsum(self._end_ns - self._begin_ns))
        self.total_ns = int(self._before_ns[-1])

    def within(self, threads: npt.NDArray[np.integer[Any]], begin_ns: Ints, end_ns: Ints) -> Ints:
        """How much of its thread's is in each of these times."""
        if not len(self._begin_ns):
            return np.zeros(len(threads), np.int64)
        begin_ns, end_ns = (self._until(self._on_one_clock(threads, each)) for each in (begin_ns, end_ns))
        return np.asarray(end_ns - begin_ns)

    def _on_one_clock(self, threads: npt.NDArray[np.integer[Any]], at_ns: Ints) -> Ints:
        return np.asarray(threads.astype(np.int64) * self._apart + (at_ns - self._from_ns).clip(0, self._apart - 1))

    def _until(self, at_ns: Ints) -> Ints:
        place = np.searchsorted(self._begin_ns, at_ns, side="right") - 1
        inside = np.minimum(at_ns, self._end_ns[place]) - self._begin_ns[place]
        return np.where(place >= 0, self._before_ns[place] + inside, 0)
