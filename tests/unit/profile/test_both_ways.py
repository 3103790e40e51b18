"""Spans that are alike as one, and their times beside: every view is the one that is made of single spans."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from bpfprof.account import spans as account_spans
from bpfprof.model import rows as model_rows
from bpfprof.model.profile import Interner, Profile
from bpfprof.model.spans import How
from bpfprof.profile import build
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions, SpanFilter
from bpfprof.profile.stacks import ProfileStacks
from bpfprof.query.compare.slices import GROUPINGS, sliced
from bpfprof.query.waits.lock_holders import lock_waits
from bpfprof.query.work.table import work_of
from bpfprof.recording.contents import Recording
from bpfprof.recording.reader import read_recording
from bpfprof.render.formats import FORMATS, Format, RenderOptions, find_format
from bpfprof.render.intervals import MIXED, intervals_of
from tests.recordings.kept import content
from tests.unit.profile.test_many_waits import many_waits
from tests.unit.recording.hand_made import FUTEX, MS, NANOSLEEP, HandMade, Story, small

EVERYTHING = SpanFilter()
TEXTS = [known for known in FORMATS if known.needs_spans and known.name not in ("pprof", "parquet")]


def contended() -> Recording:
    """Four threads that wait for one lock in turns, sleep, run, and have short waits of both kinds."""
    made = HandMade()
    made.process(100)
    stacks = [made.stack((made.code(name), 0, 0)) for name in ("take", "rest", "count")]
    for number in range(4):
        waker = made.waker(number, 100, 100 + number)
        story = Story.begin(made)
        for turn in range(30):
            story.run((2 + number) * MS, (MS, stacks[2]))
            given = {"waker": waker, "waker_kind": 1, "waker_stack": stacks[0], "args": (0xABC0, 128, 0)}
            story.block((3 + turn % 5) * MS, turn % 3 * MS, stacks[0], FUTEX, **given)
            story.run(MS).block((1 + turn % 2) * MS, 0, stacks[1], NANOSLEEP)
        story.run(MS).total()
        made.end = {"end_ns": max(story.now_ns, (made.end or {}).get("end_ns", 0))}
    return made.recording()


def profiles(recording: Recording, known: Format, span_filter: SpanFilter = EVERYTHING) -> tuple[Profile, Profile]:
    """(of single spans, as the format asks for); stacks have the same numbers in both, whichever came first."""
    options = ProfileOptions(
        with_spans=True,
        adds_up=known.adds_up,
        with_pieces=known.with_pieces,
        has_whole_waits=known.has_whole_waits,
        filter=span_filter,
    )
    as_asked = build_profile(recording, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "ProfileStacks", lambda source: ProfileStacks(source, Interner.of(as_asked)))
        return build_profile(recording, ProfileOptions(with_spans=True, filter=span_filter)), as_asked


WINDOWS = [None, (0, 400 * MS), (31 * MS, 31 * MS + 1), (17 * MS, 10_000 * MS)]


@pytest.mark.parametrize("window", WINDOWS, ids=["all", "begin", "a moment", "end"])
@pytest.mark.parametrize("known", TEXTS, ids=lambda known: known.name)
@pytest.mark.parametrize("make", [contended, lambda: small().recording()], ids=["contended", "small"])
def test_views_are_those_of_single_spans(
    known: Format, make: Callable[[], Recording], window: tuple[int, int] | None
) -> None:
    single, asked = profiles(make(), known, SpanFilter(window_ns=window))
    assert known.render(asked, RenderOptions()) == known.render(single, RenderOptions())


@pytest.mark.parametrize("end_ms", [None, 500, 1_234])
def test_waits_for_the_gil_are_those_of_single_spans(end_ms: int | None) -> None:
    """Of a real program: one wait is many rows, whose stacks differ."""
    known = find_format("waits")
    assert known is not None
    window = None if end_ms is None else (end_ms * MS // 3, end_ms * MS)
    single, asked = profiles(read_recording(io.BytesIO(content("gil"))), known, SpanFilter(window_ns=window))
    assert known.render(asked, RenderOptions()) == known.render(single, RenderOptions())


def test_holders_of_locks_are_those_of_single_spans() -> None:
    options = ProfileOptions(with_spans=True, adds_up=True)
    recording = contended()
    single, summed = build_profile(recording, ProfileOptions(with_spans=True)), build_profile(recording, options)
    assert summed.spans is not None and single.spans is not None and len(summed.spans) < len(single.spans)
    found = [lock_waits(each, work_of(each)) for each in (single, summed)]
    assert found[0] == found[1] and found[0][0].ns > 0


@pytest.mark.parametrize("by", GROUPINGS)
def test_slices_are_those_of_single_spans(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they are read in blocks that end within a thread."""
    monkeypatch.setattr(model_rows, "_NEAR_BYTES", 2_000)
    recording = contended()
    options = ProfileOptions(with_spans=True, adds_up=True, with_pieces=True)
    one, other = (sliced(build_profile(recording, it), by) for it in (ProfileOptions(with_spans=True), options))
    assert (one.keys, one.stuck_threads) == (other.keys, other.stuck_threads)
    assert np.allclose(one.times, other.times, atol=1) and np.allclose(one.work_ns, other.work_ns, atol=1)


def test_a_timeline_read_in_blocks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    recording, known = contended(), find_format("chrome")
    assert known is not None
    single, asked = profiles(recording, known)
    monkeypatch.setattr(model_rows, "_NEAR_BYTES", 2_000)
    assert known.render(asked, RenderOptions()) == known.render(single, RenderOptions())


def test_what_is_folded_while_it_is_read_loses_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_rows, "_NEAR_BYTES", 100_000)
    monkeypatch.setattr("bpfprof.render.intervals._BUCKETS", (64, 16))
    recording = read_recording(io.BytesIO(many_waits(20_000)))
    options = ProfileOptions(with_spans=True, adds_up=True, with_pieces=True)
    profile = build_profile(recording, options)
    work = work_of(profile)
    whole, folded = intervals_of(profile, work), intervals_of(profile, work, 1_500)
    assert folded.short_ns and not whole.short_ns and len(folded.rows) < len(whole.rows) / 4
    assert (folded.rows["state"] == MIXED).any()
    for name in ("duration_ns", "weight_ns", "state_ns"):
        assert (folded.rows[name].sum(axis=0) == whole.rows[name].sum(axis=0)).all()


def test_speedscope_says_what_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals_of, "__defaults__", (1_500,))
    known = find_format("speedscope")
    assert known is not None
    _, profile = profiles(read_recording(io.BytesIO(many_waits(20_000))), known)
    content = json.loads(str(known.render(profile, RenderOptions())))
    names = [frame["name"] for frame in content["shared"]["frames"]]
    assert "[short intervals: waiting]" in names and "are one)" in content["name"]
    everyone, *threads = content["profiles"]
    assert sum(everyone["weights"]) == sum(sum(each["weights"]) for each in threads)


@pytest.mark.parametrize("most", [1 << 16, 10], ids=["short waits in each gap", "one behind the other"])
@pytest.mark.parametrize("waits", [0, 20_000])
def test_times_of_single_spans_are_those_of_their_sums(waits: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_spans, "_MOST_CELLS", most)
    recording = read_recording(io.BytesIO(many_waits(waits))) if waits else contended()
    profile = build_profile(recording, ProfileOptions(with_spans=True, adds_up=True, with_pieces=True))
    spans, pieces = profile.spans, profile.pieces
    assert spans is not None and pieces is not None and len(pieces) > 2 * len(spans)
    for name in ("duration_ns", "stands_for_ns", "count"):
        assert (np.bincount(pieces["span"], pieces[name], len(spans)) == spans[name]).all()
    for index, thread in enumerate(profile.threads):
        own = pieces[spans["thread"][pieces["span"]] == index]
        begin_ns, end_ns = own["start_ns"], own["start_ns"] + own["duration_ns"]
        assert (begin_ns[1:] == end_ns[:-1]).all()
        assert (begin_ns[0], end_ns[-1]) == (thread.first_ns, thread.last_ns)


def test_what_no_wait_of_its_own_is_of_is_one_in_each_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large recording, where it is asked for: time on a CPU and of short waits, of one span."""
    recording = contended()
    both = ProfileOptions(with_spans=True, adds_up=True, with_pieces=True, piece_parts=16)
    single = build_profile(recording, both)
    monkeypatch.setattr("bpfprof.recording.contents.MOST_BYTES", 1)
    profile = build_profile(recording, both)
    assert single.spans is not None and single.pieces is not None and not single.pieces_ns
    assert profile.spans is not None and profile.pieces is not None
    assert profile.pieces_ns == profile.info.duration_ns // 16
    assert profile.spans.tobytes() == single.spans.tobytes()
    assert len(profile.pieces) < len(single.pieces)
    for name in ("duration_ns", "stands_for_ns", "count"):
        sums = [np.bincount(each["span"], each[name], len(profile.spans)) for each in (single.pieces, profile.pieces)]
        assert (sums[0] == sums[1]).all()
    # When short waits were is not known; all else is in its part of the time.
    is_known = profile.spans["how"] != How.SUMMED
    cells = []
    for pieces in (single.pieces, profile.pieces):
        pieces = pieces[is_known[pieces["span"]]]
        at = pieces["span"].astype(np.int64) * 17 + pieces["start_ns"] // profile.pieces_ns
        cells.append(np.bincount(at, pieces["duration_ns"], 17 * len(profile.spans)))
    assert (cells[0] == cells[1]).all()
    waits = [pieces[pieces["wait"] > 0] for pieces in (single.pieces, profile.pieces)]
    assert np.sort(waits[0]).tobytes() == np.sort(waits[1]).tobytes()
    # A window is looked at more closely.
    window = (0, profile.info.duration_ns // 2)
    of_window = build_profile(recording, replace(both, filter=SpanFilter(window_ns=window)))
    assert of_window.pieces_ns == profile.info.duration_ns // 2 // 16
    assert not build_profile(recording, replace(both, adds_up=False)).pieces_ns
