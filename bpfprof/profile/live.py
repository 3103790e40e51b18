"""Parts of a recording that is being made -> a Profile of the last seconds, with its spans.

Each part is made into spans once. A wait that lasts from one part into the next is one span again, as it is in a
recording of the whole window. What a thread did otherwise is added up, a span for each part, stack and state: in the
order of time it is of no use to a table, and there is so much of it that a view would cost more than the recording.
"""

from __future__ import annotations

from collections import deque
from dataclasses import field, replace
from itertools import chain
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.added_up import AddingSource
from bpfprof.account.spans import Spans
from bpfprof.account.wakers import waker_of
from bpfprof.dataclass import dataclass
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.grouping import each_once, sums_by
from bpfprof.model.profile import GIL_ROW_DTYPE, WEIGHT_DTYPE, Interner, LastWait, Profile, Quality, ThreadTime, Waker
from bpfprof.model.rows import one_after_another, picked
from bpfprof.model.spans import SPAN_DTYPE, How, SpanFlag, ThreadState
from bpfprof.model.states import reason_text
from bpfprof.model.statuses import LastState
from bpfprof.profile.quality import recording_info
from bpfprof.profile.stacks import ProfileStacks, span_keys
from bpfprof.profile.weights import added_up, gil_waits_of, merged
from bpfprof.recording.contents import Recording
from bpfprof.recording.part import Part, joined, part_recording
from bpfprof.stacks.python_frames import KnownFunctions
from bpfprof.stacks.stitch import StackSource

_TIMER, _INTERRUPT = 1, 2  # places of wakers that are no threads; those that are follow
_STATES = len(ThreadState)
_NAMED_NS = 10_000_000_000  # names of native functions come a little later than their stack; these never will
# So many stacks and frames are held, and more if many are in sight: those that went are given up together.
_MANY_HELD, _MORE = 20_000, 2
_STATE_OF = {
    LastState.ON_CPU: ThreadState.ON_CPU,
    LastState.RUNNABLE: ThreadState.RUNQUEUE,
    LastState.BLOCKED: ThreadState.OFF_CPU,
}
Ints = npt.NDArray[np.int64]
_NATIVE = (FrameKind.NATIVE, FrameKind.INLINED, FrameKind.KERNEL)


@dataclass(frozen=True)
class _Times:
    """A part, and from when to when each of its threads was watched in it."""

    part: Part
    begin_ns: int
    end_ns: int
    threads: Ints
    first_ns: Ints
    last_ns: Ints


class LiveSpans:
    """The spans of the last parts of one recording; the numbers of threads are the recording's."""

    def __init__(self, tables: Recording) -> None:
        self._tables = tables
        self._interner = Interner()
        self._known = _KnownStacks()
        self._functions = KnownFunctions()
        self._spans = np.zeros(0, SPAN_DTYPE)
        self._most_held = _MANY_HELD
        self._parts: deque[_Times] = deque()
        self._wait_count = 0

    @property
    def end_ns(self) -> int:
        """The end of the last part, since the recording began; 0: there is none."""
        return self._parts[-1].end_ns if self._parts else 0

    @property
    def since_ns(self) -> int:
        """The begin of the first part that is kept, on CLOCK_MONOTONIC; 0: there is none."""
        return self._parts[0].part.since_ns if self._parts else 0

    def gives_up_ns(self, part: Part, most_ns: int) -> int:
        """Until when there is nothing left once add() has taken this part, since the recording began."""
        most_end_ns = part.until_ns - int(self._tables.start["start_ns"]) - most_ns
        return max((each.end_ns for each in self._parts if each.end_ns <= most_end_ns), default=0)

    def add(self, part: Part, most_ns: int) -> None:
        """Takes the next part, and gives up those that ended more than most_ns before its end."""
        times, made = self._made(part)
        self._parts.append(times)
        while len(self._parts) > 1 and self._parts[0].end_ns <= self._parts[-1].end_ns - most_ns:
            self._parts.popleft()
        made = _go_on(
            self._spans, made, part.goes_on_ns(made["thread"]).astype(np.int64) - int(self._tables.start["start_ns"])
        )
        self._spans = one_after_another(SPAN_DTYPE, [_cut(self._spans, self._parts[0].begin_ns), made])
        if self._interner.held_count > self._most_held:
            self._forget_stacks()

    def _forget_stacks(self) -> None:
        """Gives up those that no span has, and what is known of them."""
        before, self._interner = self._interner, Interner()
        for stack in _numbered_anew(self._spans).tolist():
            self._interner.stack([before.frames[frame] for frame in before.stacks[stack]])
        self._known, self._functions = _KnownStacks(), KnownFunctions()
        self._most_held = _MORE * self._interner.held_count + _MANY_HELD

    def states(self) -> dict[tuple[int, int], ThreadState]:
        """What threads did at the end, by (pid, tid); those that had ended, or are not known, have none."""
        rows, found = self._parts[-1].part.rows["totals"], {}
        for index, state in zip(rows["thread"].tolist(), rows["state"].tolist()):
            if state in _STATE_OF:
                thread = self._tables.threads[index]
                found[int(self._tables.processes[thread.process].pid), int(thread.tid)] = _STATE_OF[state]
        return found

    def recording(self) -> Recording:
        """Of the same time, as if it had been recorded alone."""
        return part_recording(self._tables, joined([part.part for part in self._parts])).recording

    def profile(self, begin_ns: int = 0) -> Profile:
        """From begin_ns on; threads, frames and stacks are those that have time in it. It has no weights."""
        begin_ns = max(begin_ns, self._parts[0].begin_ns)
        duration_ns = self.end_ns - begin_ns
        spans = _cut(self._spans, begin_ns)
        spans = picked(spans, np.lexsort((spans["start_ns"], spans["thread"])))
        frames, of_stacks = _chosen(self._interner, _numbered_anew(spans))
        threads, wakers = np.unique(spans["thread"]), np.unique(spans["waker"][spans["waker"] > 0])
        spans["thread"] = np.searchsorted(threads, spans["thread"])
        has_thread = np.zeros(max(len(self._tables.threads), int(threads.max(initial=0)) + 1) + 1, np.int64)
        has_thread[threads + 1] = np.arange(1, len(threads) + 1)
        spans["holder"] = has_thread[spans["holder"]]
        spans["waker"] = np.where(spans["waker"] > 0, np.searchsorted(wakers, spans["waker"]) + 1, 0)
        gil = gil_waits_of(spans)
        holders, last_waits = self._still_waited_for(threads, has_thread, spans)
        return Profile(
            recording_info(self._tables, duration_ns),
            _thread_times(self._tables, threads, spans, *self._lives(threads, begin_ns)),
            frames,
            of_stacks,
            np.zeros(0, WEIGHT_DTYPE),
            Quality(recording_ns=duration_ns),
            spans,
            tuple(self._waker(number, has_thread) for number in wakers.tolist()),
            merged(GIL_ROW_DTYPE, [gil]),
            objects=tuple(row.name for row in self._tables.objects),
            lock_holders=holders,
            last_waits=last_waits,
        )

    def _still_waited_for(
        self, threads: npt.NDArray[np.integer[Any]], has_thread: Ints, spans: Spans
    ) -> tuple[npt.NDArray[np.void], tuple[LastWait, ...]]:
        """Of threads that wait since before they were looked at: who has what they wait for, and what that is."""
        start_ns = int(self._tables.start["start_ns"])
        ends = np.flatnonzero(np.append(np.diff(spans["thread"].astype(np.int64)) != 0, True)[: len(spans)])
        last = picked(spans, ends)
        is_wait = last["state"] == ThreadState.OFF_CPU
        since_ns = dict(zip(threads[last["thread"][is_wait]].tolist(), last["start_ns"][is_wait].tolist()))
        rows = self._tables.lock_holders.copy()
        for name in ("time_ns", "end_ns"):
            rows[name] = (rows[name].astype(np.int64) - start_ns).clip(0, self.end_ns)
        seen_ns = max(int(rows["time_ns"].max(initial=0)), self._parts[0].begin_ns)
        waits = [since_ns.get(thread, seen_ns + 1) <= seen_ns for thread in rows["thread"].tolist()]
        rows = picked(rows, np.array(waits, np.bool_) & (has_thread[rows["holder"]] > 0))
        rows["thread"], rows["holder"] = has_thread[rows["thread"] + 1] - 1, has_thread[rows["holder"]]
        found = [wait for wait in self._tables.last_waits if since_ns.get(wait.thread, seen_ns + 1) <= seen_ns]
        return rows, tuple(
            LastWait(
                int(has_thread[each.thread + 1]) - 1,
                each.kind,
                each.name,
                int(has_thread[each.holder]) - 1,
                each.held_by,
                each.nobody,
                each.waited_ns,
                each.has_end,
            )
            for each in found
        )

    def _lives(self, threads: npt.NDArray[np.integer[Any]], begin_ns: int) -> tuple[Ints, Ints]:
        """From when to when each of these threads was watched, since begin_ns."""
        first_ns, last_ns = np.full(len(threads), np.iinfo(np.int64).max), np.zeros(len(threads), np.int64)
        for times in self._parts:
            chosen = np.isin(times.threads, threads)
            at = np.searchsorted(threads, times.threads[chosen])
            first_ns[at] = np.minimum(first_ns[at], times.first_ns[chosen])
            last_ns[at] = np.maximum(last_ns[at], times.last_ns[chosen])
        return first_ns.clip(begin_ns), last_ns.clip(begin_ns)

    # --- from a part

    def _made(self, taken: Part) -> tuple[_Times, Spans]:
        part = part_recording(self._tables, taken)
        self._functions.forget_many()
        source = StackSource(part.recording, known=self._functions)
        made = AddingSource(part.recording, source.statuses)
        start_ns, watched = int(self._tables.start["start_ns"]), made.threads
        begin_ns, end_ns = taken.since_ns - start_ns, taken.until_ns - start_ns
        lives = watched.first_ns - start_ns, watched.last_ns - start_ns
        spans = one_after_another(SPAN_DTYPE, [made.with_single_waits(group) for group in made.groups])
        stacks = _Stacks(ProfileStacks(source, self._interner), part.stacks, self._known, end_ns)
        spans["stack"] = stacks.numbers(span_keys(spans))
        spans = _added_up(spans)
        for name in _OTHER_STACKS:
            chosen = np.flatnonzero(spans[name])
            at = spans[name][chosen].astype(np.int64)
            places = at.astype(np.uint64) << np.uint64(32) | source.statuses[at].astype(np.uint64) << np.uint64(8)
            spans[name][chosen] = stacks.numbers(places) + 1
        spans["thread"] = part.threads[spans["thread"]]
        spans["holder"] = np.append(0, part.threads + 1)[spans["holder"]]
        wakers = np.concatenate([[0], part.wakers[1:] + _INTERRUPT, [_TIMER, _INTERRUPT]])
        spans["waker"] = wakers[spans["waker"]]
        spans["start_ns"] += watched.start_ns - start_ns
        spans["wait"][spans["wait"] > 0] += self._wait_count
        self._wait_count = max(self._wait_count, int(spans["wait"].max(initial=0)))
        return _Times(taken, begin_ns, end_ns, part.threads, *lives), spans

    def _waker(self, number: int, has_thread: npt.NDArray[np.int64]) -> Waker:
        if number <= _INTERRUPT:
            return Waker("timer" if number == _TIMER else "interrupt")
        waker = waker_of(self._tables, self._tables.wakers[number - _INTERRUPT - 1])
        return replace(waker, thread=int(has_thread[waker.thread + 1]) - 1)


_OTHER_STACKS = ("waker_stack", "holder_stack")


@dataclass(frozen=True)
class _KnownStacks:
    """Numbers of stacks by their keys in the whole recording, and since when some of their functions have no name."""

    numbers: dict[int, int] = field(default_factory=dict)
    unnamed_ns: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Stacks:
    """Stacks of a part, of which most were numbered for a part before."""

    of_part: ProfileStacks
    recorded: npt.NDArray[np.int64]  # number in the whole recording of each, 0: it has none
    known: _KnownStacks
    now_ns: int

    def numbers(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
        """The place of each key's stack; keys as span_keys() makes them of the part."""
        unique, inverse = np.unique(keys, return_inverse=True)
        return np.array([self._number(key) for key in unique.tolist()], np.uint32)[inverse]

    def _number(self, key: int) -> int:
        stack = key >> 32
        recorded = int(self.recorded[stack])
        whole = recorded << 32 | key & 0xFFFFFFFF
        if whole in self.known.numbers and (recorded or not stack):
            return self.known.numbers[whole]
        number = self.of_part.number(key)
        frames = self.of_part.interner.frames
        is_named = all(
            frames[each].name or frames[each].kind not in _NATIVE for each in self.of_part.interner.stacks[number]
        )
        if is_named or self.now_ns - self.known.unnamed_ns.setdefault(whole, self.now_ns) >= _NAMED_NS:
            self.known.numbers[whole] = number
            self.known.unnamed_ns.pop(whole, None)
        return number


def _added_up(spans: Spans) -> Spans:
    """What is no wait with a row as one span for each stack and state; then the waits, in the order of time."""
    is_wait = (spans["state"] == ThreadState.OFF_CPU) & (spans["wait"] > 0)
    waits = picked(spans, is_wait)
    waits = picked(waits, np.argsort(waits["start_ns"], kind="stable"))
    return one_after_another(SPAN_DTYPE, [added_up(picked(spans, ~is_wait)), waits])


def _go_on(held: Spans, made: Spans, borders_ns: Ints) -> Spans:
    """Adds those of `made` that go on where a held span ended to that one, and returns the others.

    borders_ns: for each of `made` where its thread's part began, if what it did then went on. Later spans of a thread
    come after earlier ones in `held`.
    """
    if not len(held):
        return made
    last = np.full(int(max(held["thread"].max(), made["thread"].max(initial=0))) + 1, -1)
    last[held["thread"]] = np.arange(len(held))
    is_later = (made["start_ns"] == borders_ns) & (made["state"] != ThreadState.ON_CPU)
    later = np.flatnonzero(is_later & (made["how"] != How.SUMMED))
    before = last[made["thread"][later]]
    goes_on = before >= 0
    goes_on &= held["start_ns"][before] + held["duration_ns"][before] == made["start_ns"][later]
    for name in ("state", "holder"):
        goes_on &= held[name][before] == made[name][later]
    later, before = later[goes_on], before[goes_on]
    for name in ("duration_ns", "stands_for_ns"):
        held[name][before] += made[name][later]
    # What it waits for may be known only now.
    for name in ("waker", "waker_stack", "stack", "reason", "lock", "object", "status", "flags"):
        held[name][before] = made[name][later]
    is_kept = np.ones(len(made), np.bool_)
    is_kept[later] = False
    return picked(made, is_kept)


def _numbered_anew(spans: Spans) -> npt.NDArray[np.integer[Any]]:
    """Has spans the places of their stacks among those that they have, which are returned in order."""
    stacks = each_once(np.concatenate([spans["stack"], *(spans[each][spans[each] > 0] - 1 for each in _OTHER_STACKS)]))
    spans["stack"] = np.searchsorted(stacks, spans["stack"])
    for name in _OTHER_STACKS:
        spans[name] = np.where(spans[name] > 0, np.searchsorted(stacks, spans[name] - 1) + 1, 0)
    return stacks


def _cut(spans: Spans, begin_ns: int) -> Spans:
    """Without what was before."""
    before_ns = (begin_ns - spans["start_ns"]).clip(0)
    if not before_ns.any():
        return spans
    kept = picked(spans, before_ns < spans["duration_ns"])
    before_ns = before_ns[before_ns < spans["duration_ns"]]
    kept["start_ns"] += before_ns
    kept["duration_ns"] -= before_ns
    kept["stands_for_ns"] = (kept["stands_for_ns"] - before_ns).clip(0)
    return kept


def _chosen(
    interner: Interner, stacks: npt.NDArray[np.integer[Any]]
) -> tuple[tuple[Frame, ...], tuple[tuple[int, ...], ...]]:
    """(the frames of these stacks, the stacks)"""
    chosen = [interner.stacks[stack] for stack in stacks.tolist()]
    places = {frame: place for place, frame in enumerate(dict.fromkeys(chain.from_iterable(chosen)))}
    found = [tuple(map(places.__getitem__, stack)) for stack in chosen]
    return tuple(map(interner.frames.__getitem__, places)), tuple(found)


def _thread_times(
    tables: Recording, threads: npt.NDArray[np.integer[Any]], spans: Spans, first_ns: Ints, last_ns: Ints
) -> tuple[ThreadTime, ...]:
    """Of spans whose thread is a place in `threads`."""
    shown = spans["flags"] & SpanFlag.HIDDEN == 0
    reason = np.where(spans["state"] == ThreadState.OFF_CPU, spans["reason"], 0).astype(np.int64)
    keys = (spans["thread"].astype(np.int64) << 16 | reason) * _STATES + spans["state"]
    unique, number = np.unique(keys[shown], return_inverse=True)
    ns, counts = (sums_by(number, spans[name][shown], len(unique)) for name in ("duration_ns", "count"))
    by_thread: list[list[tuple[int, int, int, int]]] = [[] for _ in threads]
    for key, time_ns, count in zip(unique.tolist(), ns.tolist(), counts.tolist()):
        by_thread[key // _STATES >> 16].append((key % _STATES, key // _STATES & 0xFFFF, time_ns, count))
    return tuple(
        _thread_time(tables, *row) for row in zip(threads.tolist(), first_ns.tolist(), last_ns.tolist(), by_thread)
    )


def _thread_time(
    tables: Recording, index: int, first_ns: int, last_ns: int, rows: list[tuple[int, int, int, int]]
) -> ThreadTime:
    thread = tables.threads[index]
    process = tables.processes[thread.process]
    waits = sorted(((ns, count, reason) for state, reason, ns, count in rows if state == ThreadState.OFF_CPU))[::-1]
    return ThreadTime(
        process.pid,  # type: ignore[arg-type]
        thread.tid,  # type: ignore[arg-type]
        process.name,
        thread.shown_name(process),
        first_ns,
        last_ns,
        sum(ns for state, _, ns, _ in rows if state == ThreadState.ON_CPU),
        sum(ns for state, _, ns, _ in rows if state == ThreadState.RUNQUEUE),
        sum(ns for ns, _, _ in waits),
        sum(count for state, _, _, count in rows if state == ThreadState.ON_CPU),
        sum(count for _, count, _ in waits),
        tuple((reason_text(reason), ns) for ns, _, reason in waits),
        namespace_pid=process.namespace_pid,
        cgroup=process.cgroup,
        is_kernel_thread=process.is_kernel_thread,
        rank=process.rank,
        given_process_name=process.own_name,
        parent_pid=process.parent_pid,
    )
