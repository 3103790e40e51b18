"""How a recording ends that does not hold what was asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bpfprof.commands.recording import _shortcoming
from tests.unit.render.profiles import waiting_profile


def test_what_is_whole_has_no_shortcoming() -> None:
    assert _shortcoming(waiting_profile(), True, 0) is None


def test_a_recording_that_is_not_whole_is_said_and_its_exit_code_is_5() -> None:
    profile = waiting_profile()
    profile = replace(profile, quality=replace(profile.quality, unfinished="it has no end"))
    found = _shortcoming(profile, True, 0)
    assert found is not None and (found.exit_code, str(found)) == (5, "the recording is not whole: it has no end")


def test_of_what_was_not_looked_at_the_lost_events_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = _shortcoming(None, False, 1234)
    assert found is not None and found.exit_code == 5 and "1,234 events were lost" in str(found)
    assert _shortcoming(None, False, 0) is None and "no time for a summary" in capsys.readouterr().err
