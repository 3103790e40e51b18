"""A part of a profile is what a profile of that part of the recording is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bpfprof.profile.window import part_of
from tests.unit.profile.test_filters import mixed
from tests.unit.profile.views import assert_adds_up, built, spent_ms
from tests.unit.recording.hand_made import MS, START_NS


@pytest.mark.parametrize("seed", range(10))
def test_a_part_has_the_times_of_a_report_of_it(seed: int) -> None:
    begin, end = sorted(np.random.default_rng(seed).integers(0, 60 * MS, 2).tolist())
    window = begin, end + 1
    whole, wanted = built(mixed()), built(mixed(), window_ns=window)
    part = part_of(whole, window, np.ones(3, np.bool_))
    assert_adds_up(part)
    assert part.info.start_ns == START_NS + begin and part.info.duration_ns == end + 1 - begin
    for index, (thread, same) in enumerate(zip(part.threads, wanted.threads)):
        limits = {"first_ns": same.first_ns - begin, "last_ns": same.last_ns - begin}
        assert dict(thread.off_by_reason) == dict(same.off_by_reason)
        assert thread == replace(same, **limits, off_by_reason=thread.off_by_reason)
        assert spent_ms(part, index) == spent_ms(wanted, index)


def test_threads_that_are_not_chosen_are_no_wakers_and_no_holders_either() -> None:
    whole = built(mixed())
    part = part_of(whole, (0, 60 * MS), np.array([True, False, True]))
    assert_adds_up(part)
    assert [thread.thread_name for thread in part.threads] == ["main", "worker"]
    assert part.spans is not None and not part.spans["holder"].any() and whole.spans is not None
    places = {-1: -1, 0: 0, 1: -1, 2: 1}
    assert [waker.thread for waker in part.wakers] == [places[waker.thread] for waker in whole.wakers]


def test_a_wait_that_the_part_does_not_end_was_ended_by_nobody() -> None:
    whole = built(mixed())
    for end_ms, has_waker in ((15, False), (25, True)):
        spans = part_of(whole, (0, end_ms * MS), np.ones(3, np.bool_)).spans
        assert spans is not None
        assert bool((spans["waker"][spans["thread"] == 0] > 0).any()) == has_waker
