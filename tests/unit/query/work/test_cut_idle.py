"""Idle time of an event loop, cut where requests were waited for: of single spans, of sums, and of their pieces."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from bpfprof.account.added_up import AddedUp
from bpfprof.model.profile import Profile
from bpfprof.model.rows import Rows, picked
from bpfprof.model.spans import How, SpanFlag, ThreadState
from bpfprof.profile.kept import KeptSpans
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import Bools
from bpfprof.query.work.shares import IDLE
from bpfprof.query.work.table import work_of, worked_single_pieces, worked_spans
from tests.unit.query.work.test_requests import HANDLER, LIBRARY, LOOP, SERVER, SERVES, service
from tests.unit.render.profiles import MS, ProfileBuilder, python

PARTS = 10
ASKS = [
    SERVES,
    *[(number, 90 * number, 90 * number + 40 + number, "sleep", (SERVER, HANDLER)) for number in range(1, 20)],
    *[(number, 100 * number, 100 * number + 30, "socket", (SERVER, HANDLER, LIBRARY)) for number in range(20, 40)],
]


def server(loops: int = 1) -> Profile:
    """Event loops, in processes of their own, that idle for 4 s: in short waits, ended by one of two wakers, between
    which they compute."""
    asked, made = service(*ASKS), ProfileBuilder()
    chance = np.random.default_rng(1)
    for number in range(loops):
        thread = made.thread(100 + number, "MainThread", pid=100 + number)
        wakers = [made.waker("timer"), made.waker("interrupt")]
        for _ in range(200):
            made.spend(thread, ThreadState.ON_CPU, int(chance.integers(1, MS)), [python("step", line=3)])
            waker = wakers[int(chance.integers(2))]
            made.wait(thread, int(chance.integers(20 * MS)), LOOP, flags=SpanFlag.IDLE, waker=waker)
    profile, spans = made.build(), asked.task_spans.copy()
    stacks = [made.stack([asked.frames[frame] for frame in asked.stacks[stack]]) for stack in spans["stack"]]
    spans["stack"] = stacks
    tasks = [replace(task, pid=100 + number) for number in range(loops) for task in asked.tasks]
    copies = []
    for number in range(loops):
        copies.append(spans.copy())
        copies[-1]["task"] += number * len(asked.tasks)
    frames, all_stacks = tuple(made.interner.frames), tuple(made.interner.stacks)
    return replace(profile, tasks=tuple(tasks), task_spans=np.concatenate(copies), frames=frames, stacks=all_stacks)


def as_sums(profile: Profile) -> Profile:
    """The same, with spans that are alike as one, and their pieces beside them."""
    assert profile.spans is not None
    single, kept = KeptSpans(True, True), KeptSpans(True, True)
    single.add(profile.spans)
    spans, nothing = single.spans, np.zeros(len(single.spans), np.int64)
    kept.add_sums(spans, AddedUp(spans, nothing, nothing > 0, single.times.copy(), single.pieces.copy()))
    return replace(profile, spans=kept.spans, wait_times=kept.times, pieces=kept.pieces, span_holders=kept.holders)


def spent(rows: Rows, spans: Rows, is_idle: Bools, of: Ints | None = None) -> Counter[tuple[int, int, bool]]:
    """Nanoseconds by thread, stack and whether it was idle; of: the span of each row, if that is not its own."""
    found = Counter[tuple[int, int, bool]]()
    of = np.arange(len(rows)) if of is None else of
    for span, ns in zip(of.tolist(), rows["stands_for_ns"].tolist()):
        found[int(spans["thread"][span]), int(spans["stack"][span]), bool(is_idle[span])] += ns
    return found


def assert_near(found: Counter, expected: Counter, tolerance_ns: int) -> None:
    for key in found.keys() | expected.keys():
        assert abs(found[key] - expected[key]) <= tolerance_ns, key


@pytest.mark.parametrize("loops", [1, 2])
def test_sums_are_cut_as_single_spans_are(loops: int) -> None:
    single = server(loops)
    sums = as_sums(single)
    assert single.spans is not None and sums.spans is not None and len(sums.spans) < len(single.spans) / 10
    of_single, of_sums = work_of(single), work_of(sums)
    assert len(of_single.served) == len(of_sums.served) == loops
    assert of_sums.share_ns().tolist() == pytest.approx(of_single.share_ns().tolist(), abs=loops)
    (spans, is_idle), cut_singly = worked_spans(sums, of_sums), worked_spans(single, of_single)
    assert_near(spent(spans, spans, is_idle), spent(cut_singly[0], *cut_singly), 1)
    assert spans["stands_for_ns"].sum() == single.spans["stands_for_ns"].sum()
    assert spans["stands_for_ns"][is_idle].sum() == of_sums.share_ns()[IDLE]


@pytest.mark.parametrize("loops", [1, 2])
def test_pieces_are_cut_when_they_were(loops: int) -> None:
    single = server(loops)
    sums = as_sums(single)
    by_span, idle = worked_spans(single, work_of(single))
    spans, is_idle, some = worked_single_pieces(sums, work_of(sums))
    pieces = np.concatenate(list(some))
    span = pieces["span"].astype(np.int64)
    thread, end_ns = spans["thread"][span], pieces["start_ns"] + pieces["duration_ns"]
    assert (np.diff(thread.astype(np.int64)) >= 0).all() and (pieces["duration_ns"] >= 0).all()
    is_next = np.diff(thread) == 0
    assert (pieces["start_ns"][1:] == end_ns[:-1])[is_next].all(), "without gap, in the order of time"
    for name in ("duration_ns", "stands_for_ns"):
        assert np.bincount(span, pieces[name], len(spans)).tolist() == spans[name].tolist()
    assert not pieces["count"][span >= len(sums.spans)].any(), "a wait that was cut counts once"
    edges = np.linspace(0, end_ns.max() + 1, PARTS + 1)
    for begin, end in zip(edges, edges[1:]):
        of_part = np.flatnonzero((pieces["start_ns"] >= begin) & (pieces["start_ns"] < end))
        found = spent(picked(pieces, of_part), spans, is_idle, span[of_part])
        own = np.flatnonzero((by_span["start_ns"] >= begin) & (by_span["start_ns"] < end))
        # What begins at a border may begin behind it.
        assert_near(found, spent(picked(by_span, own), by_span, idle, own), 1_000)


def test_waits_without_a_moment_are_of_requests_as_the_rest_of_the_time_is() -> None:
    """A loop idles for 2 s in waits that were only added up, 1.2 s of which somebody waits for something."""
    profile = as_sums(
        service(SERVES, *[(it, 200 * it, 200 * it + 150, "sleep", (SERVER, HANDLER)) for it in range(1, 9)])
    )
    assert profile.spans is not None
    spans = profile.spans.copy()
    spans["how"] = How.SUMMED
    summed = replace(profile, spans=spans, wait_times=profile.wait_times[:0])
    (served,) = work_of(summed).served
    assert served.ns == pytest.approx(1_200 * MS, rel=0.001)
    assert work_of(summed).share_ns().tolist() == work_of(profile).share_ns().tolist()
