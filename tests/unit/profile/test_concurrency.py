"""How many threads ran at a time: what single spans say, whatever is kept of them."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from bpfprof.account.running import Running
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


@pytest.mark.parametrize("seed", range(20))
def test_who_is_alone_against_a_count_of_every_nanosecond(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance, count = np.random.default_rng(seed), 1 + seed % 6
    monkeypatch.setattr(concurrency, "_MOST_BYTES", 100)
    monkeypatch.setattr(concurrency, "_AT_A_TIME", int(chance.integers(1, 60)))
    start_ns, window = START_NS, (START_NS + 50, START_NS + 550)
    times, is_there = concurrency.ConcurrencyTimes(count, (start_ns, start_ns + 600)), np.zeros((count, 600), np.int64)
    for group in np.array_split(np.arange(count), 2):
        own = [(thread, np.sort(chance.choice(600, 40, replace=False)).reshape(-1, 2).T) for thread in group.tolist()]
        for thread, (begins, ends) in own:
            for begin, end in zip(begins, ends):
                is_there[thread, begin:end] = 1
        found = start_ns + np.concatenate([np.zeros((2, 0), np.int64), *(of_one for _, of_one in own)], axis=1)
        threads = np.repeat(group, 20)
        order = chance.permutation(len(threads))
        times.add(times.changes(Running(found[:, order], threads[order], found[:, order], 0)))
    expected = (is_there * (is_there.sum(axis=0) == 1))[:, 50:550].sum(axis=1)
    at_once = times.found(window)
    assert at_once.alone_ns is not None and at_once.alone_ns.tolist() == expected.tolist()
    levels = np.bincount(is_there.sum(axis=0)[50:550], minlength=count + 1)
    assert {it[0]: it[2] for it in at_once.rows.tolist()} == {it: ns for it, ns in enumerate(levels.tolist()) if ns}


def test_who_is_alone_in_a_recording() -> None:
    made = HandMade()
    made.process()
    for number in range(2):
        story = Story.begin(made, 100 + number, first_ns=START_NS + number * 2 * MS)
        story.run(4 * MS).block(10 * MS, MS).run((5 - 2 * number) * MS).total()
    made.end = {"end_ns": START_NS + 20 * MS}
    found = built(made.recording()).concurrency
    assert found is not None and found.alone_ns is not None
    assert found.alone_ns.tolist() == [4 * MS, 2 * MS], "a thread that waits for a CPU could run"


@pytest.mark.parametrize("wanted", [{"thread": re.compile("")}, {"process": re.compile("")}])
def test_who_is_alone_among_threads_that_were_chosen_is_not_told(wanted: dict[str, re.Pattern[str]]) -> None:
    everything, chosen = built(contended()).concurrency, built(contended(), **wanted).concurrency
    assert everything is not None and everything.alone_ns is not None
    assert chosen is not None and chosen.alone_ns is None
    assert chosen.rows.tolist() == everything.rows.tolist()


def test_who_is_alone_is_not_told_where_there_are_too_many_threads_for_the_time() -> None:
    one = np.array([[1], [3]])
    for count, is_told in ((1 << 13, True), ((1 << 13) + 1, False)):
        times = concurrency.ConcurrencyTimes(count, (0, (1 << 49) - 1))
        times.add(times.changes(Running(one, np.array([count - 1]), one, 0)))
        found = times.found((0, 10))
        assert found.rows.tolist() == [(0, 8, 8), (1, 2, 2)]
        assert (found.alone_ns is not None and found.alone_ns[-1] == 2) if is_told else found.alone_ns is None


@pytest.mark.parametrize("times", [(-(1 << 63), 5), (5, (1 << 63) - 1), ((1 << 62) + 1, (1 << 62) + 9)])
def test_times_of_a_damaged_recording_are_those_that_it_may_have(times: tuple[int, int]) -> None:
    found = concurrency.ConcurrencyTimes(2, (0, 10))
    found.add(found.changes(Running(np.array(times).reshape(2, 1), np.array([1]), np.zeros((2, 0), np.int64), 0)))
    (alone,) = found.found((0, 10)).alone_ns[1:].tolist()  # type: ignore[index]
    assert alone == (5 if 5 in times else 0)


def test_the_longest_time_that_two_threads_have_room_for() -> None:
    end_ns = (1 << 61) - 1
    found = concurrency.ConcurrencyTimes(2, (0, end_ns))
    times = np.array([[0, end_ns - 5], [9, end_ns]])
    found.add(found.changes(Running(times, np.array([0, 1]), times, 0)))
    at_once = found.found((0, end_ns))
    assert at_once.rows.tolist()[1:] == [(1, 14, 14)]
    assert at_once.alone_ns is not None and at_once.alone_ns.tolist() == [9, 5]


def test_without_any_thread_there_is_nothing() -> None:
    made = HandMade()
    made.process()
    profile = built(made.recording())
    assert profile.concurrency is not None and not len(profile.concurrency.rows)
