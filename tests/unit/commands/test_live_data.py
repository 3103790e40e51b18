"""What a live view shows: the last seconds, and sums in which nothing is missing, however long a part is."""

from __future__ import annotations

import pytest

from bpfprof.commands import live_data
from bpfprof.commands.live_data import LiveData
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.query.answer.moment import moment_of
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
