"""Profiles of a recording that goes on: what they hold is what a recording of the same time holds."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest

from bpfprof.model.frames import Frame
from bpfprof.model.profile import Profile
from bpfprof.model.samples import LOCK_HOLDER_DTYPE, SHORT_DTYPE
from bpfprof.model.spans import ThreadState
from bpfprof.model.statuses import LastState
from bpfprof.profile.build import build_profile
from bpfprof.profile.live import LiveSpans
from bpfprof.profile.options import ProfileOptions, SpanFilter
from bpfprof.profile.stacks import ProfileStacks
from bpfprof.recording.contents import Recording
from bpfprof.recording.part import LOOKED, PART_END, STACKS_KEPT, GrowingRecording, part_recording
from bpfprof.recording.whole import write_recording
from tests.unit.account.invariants import assert_covers
from tests.unit.recording.hand_made import FUTEX, MS, ON_CPU, START_NS, UNKNOWN, HandMade, Story, small

PART_NS = 50 * MS
PARTS = 8
KINDS = ("samples", "waits", "totals")


def random_recording(seed: int, has_short: bool = True) -> tuple[Recording, list[int]]:
    """Three threads, looked at each PART_NS, in whatever they do then; and how many short waits had been by then."""
    short_counts = [0]
    chance, made = np.random.default_rng(seed), HandMade()
    made.process(100)
    stacks = [made.stack((made.code(f"f{number}"), 0, 1)) for number in range(4)]
    stories = [Story.begin(made, 100 + number) for number in range(3)]
    for part in range(1, PARTS + 1):
        for story in stories:
            _live_until(story, START_NS + part * PART_NS, stacks, chance, has_short)
            story.total()
        short_counts.append(len(made.short_waits))
    made.end = {"end_ns": START_NS + PARTS * PART_NS}
    return made.recording(), short_counts


def _live_until(story: Story, border_ns: int, stacks: list[int], chance: np.random.Generator, has_short: bool) -> None:
    if story.state != UNKNOWN and chance.random() < 0.8:
        story.go_on(min(int(chance.integers(1, 2 * PART_NS)), border_ns - story.now_ns))
    while story.now_ns < border_ns:
        left_ns = border_ns - story.now_ns
        ns, stack = min(int(chance.integers(1, 30 * MS)), left_ns), int(chance.choice(stacks))
        if story.state not in (ON_CPU, UNKNOWN):
            story.run(ns, *[(int(at), stack) for at in np.sort(chance.integers(0, ns, 2))])
        elif chance.random() < 0.2:
            story.preempt(ns, stack)
        elif has_short and chance.random() < 0.3 and ns + 1 < left_ns:
            story.block_short(ns, syscall=FUTEX).run(1)
        else:
            story.block(ns, stack=stack)


def grown(recorded: tuple[Recording, list[int]], seed: int = 0) -> GrowingRecording:
    """The same, as it comes while it is recorded; each part ends for some threads where their state began."""
    recording, short_counts = recorded
    growing, rows, chance = GrowingRecording(), {kind: getattr(recording, kind) for kind in KINDS}, Random(seed)
    given = {kind: np.zeros(len(rows[kind]), np.bool_) for kind in KINDS}
    write_recording(recording, growing)
    for kind in (*KINDS, "short_waits"):
        growing.tables.clear(kind)
    last_ns = int(recording.end["end_ns"])
    before_ns = [START_NS] * len(recording.threads)
    for part, until_ns in enumerate(range(START_NS + PART_NS, last_ns + 1, PART_NS)):
        totals = rows["totals"][rows["totals"]["time_ns"] == until_ns]
        since_ns = dict(zip(totals["thread"].tolist(), totals["since_ns"].tolist()))
        may = until_ns < last_ns and seed % 2
        ends_ns = [
            since if may and chance.random() < 0.7 and since > before else until_ns
            for before, since in zip(before_ns, map(since_ns.get, range(len(before_ns))))
        ]
        before_ns = ends_ns
        short = recording.short_waits[short_counts[part] : short_counts[part + 1]]
        growing.write("short_waits", arrays={"rows": short})
        for kind in KINDS:
            limit_of = {"waits": since_ns, "samples": dict(enumerate(ends_ns))}.get(kind, {})
            limit = np.array([limit_of.get(it, until_ns) for it in rows[kind]["thread"].tolist()], np.uint64)
            comes = (rows[kind]["time_ns"] <= limit) & ~given[kind]
            growing.write(kind, arrays={"rows": rows[kind][comes]})
            given[kind] |= comes
        ends = {"threads": np.arange(len(ends_ns)), "ends_ns": np.array(ends_ns)}
        growing.write(PART_END, {"time_ns": until_ns}, {"rows": np.zeros(0, SHORT_DTYPE), **ends})
    return growing


def live(growing: GrowingRecording, most_ns: int) -> LiveSpans:
    spans = LiveSpans(growing.tables)
    for part in growing.take_parts():
        spans.add(part, most_ns)
    return spans


def waits_of(profile: Profile) -> Counter[tuple[int, str, tuple[Frame, ...], int]]:
    """(thread, reason, stack, duration) of each wait with a row."""
    assert profile.spans is not None
    rows = profile.spans[(profile.spans["state"] == ThreadState.OFF_CPU) & (profile.spans["wait"] > 0)]
    return Counter(
        (
            int(profile.threads[row["thread"]].tid),
            int(row["reason"]),
            tuple(profile.frames[frame] for frame in profile.stacks[row["stack"]]),
            int(row["duration_ns"]),
        )
        for row in rows
    )


@pytest.mark.parametrize("seed", range(20))
def test_parts_together_are_the_whole(seed: int) -> None:
    recorded = random_recording(seed)
    whole, found = (
        build_profile(recorded[0], ProfileOptions(with_spans=True)),
        live(grown(recorded, seed), 10**12).profile(),
    )
    assert found.info.duration_ns == whole.info.duration_ns
    assert waits_of(found) == waits_of(whole)
    for mine, other in zip(found.threads, whole.threads, strict=True):
        assert (mine.tid, mine.first_ns, mine.last_ns) == (other.tid, other.first_ns, other.last_ns)
        assert mine.on_cpu_ns == other.on_cpu_ns and mine.runqueue_ns == other.runqueue_ns
        assert mine.off_cpu_ns == other.off_cpu_ns
        assert mine.on_cpu_ns + mine.runqueue_ns + mine.off_cpu_ns == mine.wall_ns


@pytest.mark.parametrize("seed", range(10))
def test_the_last_parts_are_the_end_of_the_whole(seed: int) -> None:
    """Without short waits: when within a burst they were is not known."""
    recorded = random_recording(seed, has_short=False)
    window = (PARTS - 3) * PART_NS, PARTS * PART_NS
    options = ProfileOptions(with_spans=True, filter=SpanFilter(window_ns=window))
    whole, found = build_profile(recorded[0], options), live(grown(recorded, seed), 3 * PART_NS).profile()
    assert found.info.duration_ns == 3 * PART_NS
    assert waits_of(found) == waits_of(whole)
    assert [it.on_cpu_ns for it in found.threads] == [it.on_cpu_ns for it in whole.threads if it.wall_ns]


def with_short_threads() -> GrowingRecording:
    """A thread that goes on, and in each part one that is born, ends a wait of the first one, and ends.

    A third one is told in each part to have ended, as a process is that nobody has waited for.
    """
    made = HandMade()
    made.process(100)
    stack = made.stack((made.code("f"), 0, 1))
    first, ended = Story.begin(made, 100), Story.begin(made, 101)
    ended.run(MS).die()
    for part in range(PARTS):
        ended.now_ns = START_NS + (part + 1) * PART_NS
        ended.total()
        short = Story.begin(made, 200 + part, first_ns=START_NS + part * PART_NS + MS)
        short.run(10 * MS, (5 * MS, stack)).block(10 * MS, stack=stack).run(5 * MS).die()
        waker = made.waker(thread=short.thread, pid=100, tid=200 + part, name=f"short-{part}")
        first.run(10 * MS, (MS, stack)).block(20 * MS, stack=stack, waker=waker).run(20 * MS).total()
    made.end = {"end_ns": START_NS + PARTS * PART_NS}
    return grown((made.recording(), [0] * (PARTS + 1)))


def of_last_parts(growing: GrowingRecording, forgets: bool) -> Profile:
    """Of the last three, after all before; forgets: what is given up, as it goes on."""
    spans = LiveSpans(growing.tables)
    for part in growing.take_parts():
        assert len(part.before) <= 3  # the first, and who ended in the part before
        spans.add(part, 3 * PART_NS)
        if forgets:
            growing.forget(spans.since_ns)
    return spans.profile()


def test_threads_that_ended_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which changes nothing of what is shown: a program that starts one for each request has millions of them."""
    monkeypatch.setattr("bpfprof.recording.forgetting._LATE_NS", PART_NS)
    growing = [with_short_threads(), with_short_threads()]
    kept, forgotten = (of_last_parts(of_it, bool(forgets)) for forgets, of_it in enumerate(growing))
    assert waits_of(kept) == waits_of(forgotten) and kept.wakers == forgotten.wakers
    assert [it.on_cpu_ns for it in kept.threads] == [it.on_cpu_ns for it in forgotten.threads]
    assert [it.tid for it in forgotten.threads] == [100, *range(205, 208)]
    known = [bool(thread.tid) for thread in growing[1].tables.threads]
    assert known == [True, True, *[False] * 4, *[True] * 4]
    assert [bool(waker.name) for waker in growing[1].tables.wakers] == known[2:]


def with_short_processes() -> GrowingRecording:
    """A process that goes on, and in each part one of two threads, with a code object of its own, that ends."""
    made = HandMade()
    made.process(100)
    stack = made.stack((made.code("f"), 0, 1))
    first = Story.begin(made, 100)
    for part in range(PARTS):
        process = made.process(200 + part)
        address = made.native(made.file("lib.so"), ("g", "", 0, 0))
        own = made.stack((made.code(f"main_{part}", process=process), 0, 1), process=process, native=[address])
        for number in range(2):
            born_ns = START_NS + part * PART_NS + MS
            of_it = Story.begin(made, 200 + part + 1000 * number, process=process, first_ns=born_ns)
            of_it.run(10 * MS, (5 * MS, own)).block(10 * MS, stack=own).run(5 * MS).die()
        first.run(10 * MS, (MS, stack)).block(20 * MS, stack=stack).run(20 * MS).total()
    made.end = {"end_ns": START_NS + PARTS * PART_NS}
    return grown((made.recording(), [0] * (PARTS + 1)))


def test_processes_that_ended_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """With their code and their stacks; which changes nothing of what is shown."""
    monkeypatch.setattr("bpfprof.recording.forgetting._LATE_NS", PART_NS)
    monkeypatch.setattr("bpfprof.recording.forgetting._MORE", 0)
    monkeypatch.setattr("bpfprof.recording.forgetting._FEW_STACKS", -1)
    growing = [with_short_processes(), with_short_processes()]
    kept, forgotten = (of_last_parts(of_it, bool(forgets)) for forgets, of_it in enumerate(growing))
    assert waits_of(kept) == waits_of(forgotten) and kept.frames == forgotten.frames
    assert [it.on_cpu_ns for it in kept.threads] == [it.on_cpu_ns for it in forgotten.threads]
    tables = growing[1].tables
    known = [bool(process.pid) for process in tables.processes]
    assert known == [True, *[False] * (len(known) - 5), *[True] * 4]
    assert [bool(code.qualname) for code in tables.codes] == known
    has_frames = [row["python_count"] > 0 and row["native_count"] == (row["process"] > 0) for row in tables.stacks]
    assert has_frames == known
    assert len(tables.python_frames) == sum(known) and len(tables.native_frames) == sum(known) - 1


def with_other_stacks() -> GrowingRecording:
    """A thread that has no stack in two parts, and one that waits all the time since before the first."""
    made = HandMade()
    made.process(100)
    first, waiting = Story.begin(made, 100), Story.begin(made, 101)
    long = made.stack((made.code("long"), 0, 1), native=[made.native(made.file("lib.so"), ("g", "", 0, 0))])
    waiting.run(MS).block(0, stack=long)
    for part in range(PARTS):
        stack = made.stack((made.code(f"f{part}"), 0, 1))
        first.run(10 * MS, (MS, stack)).block(20 * MS, stack=stack).run(20 * MS).total()
        waiting.go_on(START_NS + (part + 1) * PART_NS - waiting.now_ns).total()
    made.end = {"end_ns": START_NS + PARTS * PART_NS}
    return grown((made.recording(), [0] * (PARTS + 1)))


def test_stacks_that_do_not_come_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """But not those of parts that are shown, among them one that a thread waits with; others are not written yet."""
    monkeypatch.setattr("bpfprof.recording.forgetting._MORE", 0)
    monkeypatch.setattr("bpfprof.recording.forgetting._FEW_STACKS", -1)
    growing = [with_other_stacks(), with_other_stacks()]
    count = len(growing[1].tables.stacks)
    growing[1].write(STACKS_KEPT, arrays={"stacks": np.array([3, count + 2, count + 4], np.uint32)})
    kept, forgotten = (of_last_parts(of_it, bool(forgets)) for forgets, of_it in enumerate(growing))
    assert waits_of(kept) == waits_of(forgotten) and kept.frames == forgotten.frames and len(kept.frames) > 4
    of_parts = [False] * (PARTS - 3) + [True] * 3
    of_parts[1] = True  # it may come again
    assert growing[1].tables.stacks["python_count"].tolist() == [1, *of_parts]
    assert growing[0].tables.stacks["python_count"].all()


@pytest.mark.parametrize("seed", range(5))
def test_what_is_known_of_stacks_is_given_up(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which changes nothing of what is shown."""
    kept = live(grown(random_recording(seed), seed), 3 * PART_NS).profile()
    monkeypatch.setattr("bpfprof.profile.live._MANY_HELD", 0)
    monkeypatch.setattr("bpfprof.profile.live._MORE", 0)
    found = live(grown(random_recording(seed), seed), 3 * PART_NS).profile()
    assert waits_of(kept) == waits_of(found)
    assert kept.threads == found.threads


@pytest.mark.parametrize("seed", range(5))
def test_what_threads_do_at_the_end_is_what_their_totals_say(seed: int) -> None:
    recording, _ = recorded = random_recording(seed)
    state_of = {LastState.ON_CPU: ThreadState.ON_CPU, LastState.RUNNABLE: ThreadState.RUNQUEUE}
    last = recording.totals[recording.totals["time_ns"] == recording.totals["time_ns"].max()]
    expected = {
        (100, int(recording.threads[row["thread"]].tid)): state_of.get(row["state"], ThreadState.OFF_CPU)
        for row in last
        if row["state"] not in (LastState.UNKNOWN, LastState.DEAD)
    }
    assert live(grown(recorded, seed), 3 * PART_NS).states() == expected and expected


@pytest.mark.parametrize("seed", range(10))
def test_who_has_what_is_known_for_as_long_as_they_wait(seed: int) -> None:
    """Of those that wait since before they were looked at, until the next look."""
    recorded = random_recording(seed)
    growing = grown(recorded, seed)
    parts = live(growing, 10**12)
    looked_ns = START_NS + PARTS * PART_NS - 10 * MS
    rows = np.array([(looked_ns, looked_ns + MS, thread, 1, 0) for thread in range(3)], LOCK_HOLDER_DTYPE)
    growing.write(LOOKED)
    growing.write("lock_holders", arrays={"rows": rows})
    profile = parts.profile()
    spans = profile.spans
    assert spans is not None and len(profile.threads) == 3
    last = [spans[spans["thread"] == thread][-1] for thread in range(3)]
    begun = [it["state"] == ThreadState.OFF_CPU and it["start_ns"] <= looked_ns - START_NS for it in last]
    assert profile.lock_holders["thread"].tolist() == [thread for thread in range(3) if begun[thread]]
    growing.write(LOOKED)
    assert not len(parts.profile().lock_holders)


@pytest.mark.parametrize("seed", range(5))
def test_of_the_last_parts_a_recording_can_be_made(seed: int) -> None:
    spans = live(grown(random_recording(seed)), 3 * PART_NS)
    whole = build_profile(spans.recording(), ProfileOptions(with_spans=True))
    assert waits_of(whole) == waits_of(spans.profile())
    assert sum(it.on_cpu_ns for it in whole.threads) == sum(it.on_cpu_ns for it in spans.profile().threads)


def test_functions_that_never_get_a_name_are_not_looked_up_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    made, chance, added = HandMade(), np.random.default_rng(1), []
    made.process(100)
    stack = made.stack((made.code("f"), 0, 1), native=[made.native(made.file("/usr/lib/stripped.so"))])
    story = Story.begin(made, 100)
    for part in range(1, PARTS + 1):
        _live_until(story, START_NS + part * PART_NS, [stack], chance, has_short=False)
        story.total()
    made.end = {"end_ns": START_NS + PARTS * PART_NS}
    add = ProfileStacks._add
    monkeypatch.setattr(ProfileStacks, "_add", lambda *key: added.append(key) or add(*key))
    monkeypatch.setattr("bpfprof.profile.live._NAMED_NS", 3 * PART_NS)
    growing = grown((made.recording(), [0] * (PARTS + 1)))
    spans, counts = LiveSpans(growing.tables), []
    for part in growing.take_parts():
        added.clear()
        spans.add(part, 10**12)
        counts.append(len(added))
    assert min(counts[:3]) > 0 and counts[-1] == 0, counts


def test_a_recording_is_written_again_as_it_was_read() -> None:
    class Bytes:
        """A Sink that can be read."""

        def __init__(self) -> None:
            self.recording = Recording()
            self.write = self.recording.write

    sink = Bytes()
    before = small().recording()
    write_recording(before, sink)
    after = sink.recording
    for name in ("start", "end", "processes", "threads", "codes", "files", "wakers"):
        assert getattr(after, name) == getattr(before, name), name
    for name in ("stacks", "python_frames", "native_frames", "natives", "samples", "waits", "totals", "events"):
        assert (getattr(after, name) == getattr(before, name)).all(), name
    named = [[recording.texts[it] for it in recording.names["function"]] for recording in (before, after)]
    assert named[0] == named[1]


@pytest.mark.parametrize("seed", range(4))
def test_what_is_learnt_of_a_wait_after_its_part_makes_no_time(seed: int) -> None:
    """That it ended some microseconds earlier than was told, which its thread had on the CPU then."""
    recording, short_counts = random_recording(seed)
    for kind in KINDS:
        rows = getattr(recording, kind).copy()
        setattr(recording, kind, rows)
        rows["on_cpu_ns"][(rows["time_ns"] > START_NS + 3 * PART_NS) & (rows["on_cpu_ns"] > 0)] += 30_000
    for part in grown((recording, short_counts), seed).take_parts():
        assert_covers(part_recording(recording, part).recording)
