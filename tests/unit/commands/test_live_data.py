"""What a live view shows: the last seconds, and sums in which nothing is missing, however long a part is."""

from __future__ import annotations

import pytest

from bpfprof.commands import live_data
from bpfprof.commands.live_data import LiveData
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.query.moment import moment_of
from bpfprof.recording.part import GrowingRecording
from tests.unit.profile.test_live import PART_NS, grown, random_recording


@pytest.mark.parametrize("seed", [0, 2, 4, 6])  # whose parts end at one moment for all threads
@pytest.mark.parametrize("window_parts", [0.5, 1, 2.5, 100])
def test_nothing_is_missing_since_the_start(seed: int, window_parts: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_data, "_WINDOW_NS", int(window_parts * PART_NS))
    recorded = random_recording(seed, has_short=False)
    data = LiveData(grown(recorded, seed), 0)
    assert data.shown(False) is None and data.shown(True) is None
    assert not data.take(), "the names of the last part are not here yet"
    assert data.take() and not data.take()
    assert data.shown(True) is not None
    data.take()  # what was lacking is there now
    shown = data.shown(True)
    whole = moment_of(build_profile(recorded[0], ProfileOptions(with_spans=True)))
    assert shown is not None and sum(shown.shares) == sum(whole.all_shares)
    last = data.shown(False)
    assert last is not None and sum(last.shares) <= sum(shown.shares)


def test_after_a_reset_there_is_nothing() -> None:
    growing = grown(random_recording(1), 1)
    data = LiveData(growing, 0)
    data.take()
    data.take()
    data.reset()
    assert isinstance(growing, GrowingRecording) and data.shown(False) is None and data.shown(True) is None


@pytest.mark.parametrize("window_parts", [1, 2.5, 3])
def test_a_moment_that_is_all_there_is_is_not_made_again(window_parts: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As top has it, which takes a part at a time: the sums are those of moments that are made anew."""
    monkeypatch.setattr(live_data, "_WINDOW_NS", int(window_parts * PART_NS))
    made: list[int] = []
    monkeypatch.setattr(live_data, "moment_of", lambda *asked: made.append(1) or moment_of(*asked))
    sums = []
    for forgets in (False, True):
        growing = grown(random_recording(4, has_short=False), 4)
        parts = growing.take_parts()
        monkeypatch.setattr(growing, "take_parts", lambda parts=parts: [parts.pop(0)] if parts else [])
        data, count = LiveData(growing, 0), len(made)
        while parts or data._parts:
            data.take()
            data._moment_end_ns = -1 if forgets else data._moment_end_ns
        data.shown(True)
        data.take()
        shown = data.shown(True)
        assert shown is not None
        sums.append((shown.shares, {it.key: it.own_ns for it in shown.places}, len(made) - count))
    assert sums[0][:2] == sums[1][:2] and sums[0][2] < sums[1][2]
