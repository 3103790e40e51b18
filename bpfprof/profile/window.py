"""A Profile with its spans -> the same of a part of its time, and of some of its threads, without reading it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.profile import Profile, ThreadTime
from bpfprof.model.rows import picked
from bpfprof.model.spans import SpanFlag, ThreadState
from bpfprof.model.states import reason_text
from bpfprof.profile.weights import Rows, account_of, gil_waits_of, weights_of

_OTHER_STACKS = ("waker_stack", "holder_stack")


def part_of(profile: Profile, window_ns: tuple[int, int], has_thread: npt.NDArray[np.bool_]) -> Profile:
    """window_ns: from, to, since the recording began; times of the part count from its own begin. It has those of the
    chosen threads that lived then.

    What is known of the whole recording alone, like what was counted beside the clock, it does not have; its quality is
    that of the recording. Raises ValueError if the profile was built without its spans.
    """
    if profile.spans is None:
        raise ValueError("a part is made of a profile that was built with its spans")
    begin_ns, duration_ns = window_ns[0], window_ns[1] - window_ns[0]
    lives = [each.first_ns < window_ns[1] and each.last_ns > begin_ns for each in profile.threads]
    threads = np.flatnonzero(has_thread & np.array(lives, np.bool_))
    place_of = np.full(len(profile.threads) + 1, -1, np.int64)  # the last is of -1
    place_of[threads] = np.arange(len(threads))
    spans = _cut(picked(profile.spans, place_of[profile.spans["thread"]] >= 0), window_ns)
    spans["thread"] = place_of[spans["thread"]]
    spans["holder"] = place_of[spans["holder"].astype(np.int64) - 1] + 1
    for name in ("waker", "waker_stack"):  # who ends a wait after it is no part of it
        spans[name][spans["start_ns"] + spans["duration_ns"] == duration_ns] = 0
    task_spans = _cut(profile.task_spans, window_ns)
    used = np.unique(
        np.concatenate(
            [spans["stack"], task_spans["stack"], *(spans[one][spans[one] > 0] - 1 for one in _OTHER_STACKS)]
        )
    )
    for rows in (spans, task_spans):
        rows["stack"] = np.searchsorted(used, rows["stack"])
    for name in _OTHER_STACKS:
        spans[name] = np.where(spans[name] > 0, np.searchsorted(used, spans[name] - 1) + 1, 0)
    shown = picked(spans, (spans["flags"] & SpanFlag.HIDDEN == 0) & (spans["state"] != ThreadState.UNKNOWN))
    info, started_ns = profile.info, profile.info.started_unix_ns
    return replace(
        profile,
        info=replace(
            info,
            duration_ns=duration_ns,
            start_ns=info.start_ns + begin_ns,
            started_unix_ns=started_ns + begin_ns * bool(started_ns),
            is_part=True,
            usage={},
            limit_hits={},
            call_libraries=None,
        ),
        threads=_threads([profile.threads[place] for place in threads.tolist()], spans, window_ns),
        stacks=tuple(profile.stacks[stack] for stack in used.tolist()),
        weights=weights_of(shown, shown["stack"]),
        spans=spans,
        gil_waits=gil_waits_of(shown),
        task_spans=task_spans,
        events=(),
        event_weights=profile.event_weights[:0],
        concurrency=None,
        calls=profile.calls[:0],
        wakers=tuple(replace(each, thread=int(place_of[each.thread])) for each in profile.wakers),
        lock_holders=_holders(profile.lock_holders, window_ns, place_of),
        last_waits=(),
    )


def _cut(spans: Rows, window_ns: tuple[int, int]) -> Rows:
    """Spans, also of tasks, of a window; what was under way when it began counts there."""
    begin, end = spans["start_ns"], spans["start_ns"] + spans["duration_ns"]
    kept = picked(spans, (end > window_ns[0]) & (begin < window_ns[1]))
    begin, end = kept["start_ns"].clip(*window_ns), (kept["start_ns"] + kept["duration_ns"]).clip(*window_ns)
    part = np.rint(kept["stands_for_ns"] * ((end - begin) / kept["duration_ns"].clip(1)))
    kept["stands_for_ns"] = np.where(kept["stands_for_ns"] == kept["duration_ns"], end - begin, part)
    kept["count"][kept["start_ns"] < begin] = 1
    kept["start_ns"], kept["duration_ns"] = begin - window_ns[0], end - begin
    return kept


def _holders(rows: Rows, window_ns: tuple[int, int], place_of: npt.NDArray[np.int64]) -> Rows:
    begin, end = (rows[name].astype(np.int64).clip(*window_ns) for name in ("time_ns", "end_ns"))
    threads, holders = place_of[rows["thread"]], place_of[rows["holder"].astype(np.int64) - 1]
    found = rows.copy()
    found["time_ns"], found["end_ns"] = begin - window_ns[0], end - window_ns[0]
    found["thread"], found["holder"] = threads.clip(0), holders + 1
    return picked(found, (end > begin) & (threads >= 0) & (holders >= 0))


def _threads(threads: Sequence[ThreadTime], spans: Rows, window_ns: tuple[int, int]) -> tuple[ThreadTime, ...]:
    """The same threads with the times of these spans."""
    by_thread: list[list[tuple[int, int, int, int]]] = [[] for _ in threads]
    for thread, state, reason, count, total_ns in account_of(spans).tolist():
        by_thread[thread].append((state, total_ns, count, reason))
    begin_ns, found = window_ns[0], []
    for thread, rows in zip(threads, by_thread):
        first_ns, last_ns = max(begin_ns, thread.first_ns), min(window_ns[1], thread.last_ns)
        waits = sorted([row[1:] for row in rows if row[0] == ThreadState.OFF_CPU])[::-1]
        found.append(
            replace(
                thread,
                first_ns=first_ns - begin_ns,
                last_ns=last_ns - begin_ns,
                on_cpu_ns=sum(row[1] for row in rows if row[0] == ThreadState.ON_CPU),
                runqueue_ns=sum(row[1] for row in rows if row[0] == ThreadState.RUNQUEUE),
                off_cpu_ns=sum(ns for ns, _, _ in waits),
                sample_count=sum(row[2] for row in rows if row[0] == ThreadState.ON_CPU),
                wait_count=sum(count for _, count, _ in waits),
                off_by_reason=tuple((reason_text(reason), ns) for ns, _, reason in waits),
                overlap_ns=0,
            )
        )
    return tuple(found)
