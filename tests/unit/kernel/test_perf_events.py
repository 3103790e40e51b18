"""Words of a command line to events."""

from __future__ import annotations

import pytest

from bpfprof.kernel.perf_events import EVENTS, parse_events


def test_names_synonyms_and_lists() -> None:
    assert parse_events(()) == ()
    assert parse_events(("page-faults", "cs")) == ("page-faults", "context-switches")
    assert parse_events(("instructions,cpu-cycles", "Cycles, faults")) == ("instructions", "cycles", "page-faults")
    assert parse_events(("llc-loads",)) == ("LLC-loads",)
    assert set(parse_events((",".join(list(EVENTS)[:4]),))) == set(list(EVENTS)[:4])


def test_the_clocks_add_nothing() -> None:
    assert parse_events(("cpu-clock,task-clock", "faults")) == ("page-faults",)


@pytest.mark.parametrize("text", ["page-fault", "cycles,,cs", "", "r01c4"])
def test_others_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="there is no event"):
        parse_events((text,))


def test_too_many() -> None:
    with pytest.raises(ValueError, match="more than 4"):
        parse_events((",".join(list(EVENTS)[:5]),))
