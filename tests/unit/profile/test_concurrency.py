"""How many threads ran at a time: what single spans say, whatever is kept of them."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.profile import concurrency
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions, SpanFilter
from bpfprof.recording.contents import Recording
from tests.unit.profile.test_both_ways import contended
from tests.unit.recording.hand_made import MS, START_NS, HandMade, Story

ON_CPU, READY = {ThreadState.ON_CPU}, {ThreadState.ON_CPU, ThreadState.RUNQUEUE}


def built(recording: Recording, **wanted: object) -> Profile:
    options = ProfileOptions(with_spans=True, with_concurrency=True, filter=SpanFilter(**wanted))
    return build_profile(recording, options)


def found_ns(profile: Profile) -> tuple[dict[int, int], dict[int, int]]:
    assert profile.concurrency is not None
    rows = profile.concurrency.rows.tolist()
    return {it[0]: it[1] for it in rows if it[1]}, {it[0]: it[2] for it in rows if it[2]}


def of_spans(profile: Profile, states: set[ThreadState]) -> dict[int, int]:
    """Moment by moment."""
    assert profile.spans is not None
    shown = [thread for thread in profile.threads if thread.wall_ns > 0]
    begin, end = min(it.first_ns for it in shown), max(it.last_ns for it in shown)
    changes = Counter({begin: 0, end: 0})
    for row in profile.spans[np.isin(profile.spans["state"], [*states])]:
        if profile.threads[row["thread"]].wall_ns > 0:
            changes[int(row["start_ns"])] += 1
            changes[int(row["start_ns"] + row["duration_ns"])] -= 1
    found: Counter[int] = Counter()
    moments, level = sorted(changes), 0
    for moment, after in zip(moments, moments[1:]):
        level += changes[moment]
        found[level] += after - moment
    return {number: ns for number, ns in found.items() if ns}


def assert_as_spans(profile: Profile) -> None:
    assert found_ns(profile) == (of_spans(profile, ON_CPU), of_spans(profile, READY))


def test_is_that_of_single_spans() -> None:
    profile = built(contended())
    assert_as_spans(profile)
    assert max(found_ns(profile)[1]) == 4


def test_of_a_window() -> None:
    assert_as_spans(built(contended(), window_ns=(11 * MS, 200 * MS)))


def test_of_some_threads() -> None:
    made = HandMade()
    made.process()
    for number in range(3):
        story = Story.begin(made, 100 + number, first_ns=START_NS + number * MS)
        story.run((3 + number) * MS).block(4 * MS, MS).run((22 - 2 * number) * MS).total()
    made.end = {"end_ns": START_NS + 30 * MS}
    profile = built(made.recording(), thread=re.compile("10[12]"))
    assert_as_spans(profile)
    assert found_ns(profile) == ({0: 3 * MS, 1: 5 * MS, 2: 21 * MS}, {0: 2 * MS, 1: 5 * MS, 2: 22 * MS})


def test_of_a_part_of_what_threads_did_there_is_none() -> None:
    assert built(contended(), function=re.compile("take")).concurrency is None
    assert built(contended(), reasons=("lock",)).concurrency is None
    assert built(contended(), states=frozenset(ThreadState)).concurrency is not None


def test_is_the_same_where_changes_are_in_a_file_and_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = found_ns(built(contended()))
    monkeypatch.setattr(concurrency, "_MOST_BYTES", 100)
    monkeypatch.setattr(concurrency, "_AT_A_TIME", 10)
    assert found_ns(built(contended())) == expected


def test_short_waits_are_spread_and_the_sums_are_those_of_the_threads() -> None:
    made = HandMade()
    made.process()
    stack = made.stack((made.code("work"), 0, 0))
    for number in range(2):
        story = Story.begin(made, 100 + number)
        for _ in range(50):
            story.run(3 * MS, (MS, stack)).block_short(2 * MS, MS)
            story.run(MS, stolen=MS).block(5 * MS, 2 * MS, stack)
        story.run(MS).total()
    made.end = {"end_ns": story.now_ns}
    made.short(0, 100 * MS, 50 * MS, 50)
    made.short(1, 100 * MS, 50 * MS, 50)
    profile = built(made.recording())
    on_cpu, runnable = found_ns(profile)
    assert profile.concurrency is not None and profile.concurrency.spread_ns == 400 * MS
    assert sum(number * ns for number, ns in on_cpu.items()) == sum(it.on_cpu_ns for it in profile.threads)
    # Each of 2 x 51 bursts is rounded to a nanosecond.
    all_ns = sum(it.on_cpu_ns + it.runqueue_ns for it in profile.threads)
    assert abs(sum(number * ns for number, ns in runnable.items()) - all_ns) <= 102
    assert sum(on_cpu.values()) == sum(runnable.values()) == profile.threads[0].wall_ns


def test_without_any_thread_there_is_nothing() -> None:
    made = HandMade()
    made.process()
    profile = built(made.recording())
    assert profile.concurrency is not None and not len(profile.concurrency.rows)
