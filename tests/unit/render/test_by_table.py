"""The tables by function and by library fit a terminal, whatever the names are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bpfprof.model.profile import Profile
from bpfprof.render.by_table import by_block
from bpfprof.render.columns import width
from bpfprof.render.formats import RenderOptions
from tests.unit.render.profiles import (
    MS,
    ON_CPU,
    ProfileBuilder,
    deep_profile,
    empty_profile,
    hostile_profile,
    native,
    python,
    training_profile,
)


def rows(profile: Profile, by: str, limit: int = 10) -> list[str]:
    return by_block(profile, RenderOptions(by=by, limit=limit))[2:]


@pytest.mark.parametrize("by", ["function", "library"])
@pytest.mark.parametrize("made", [training_profile, hostile_profile, deep_profile, empty_profile])
def test_it_fits(by: str, made: Callable[[], Profile]) -> None:
    lines = by_block(made(), RenderOptions(by=by, limit=1000))
    assert all(line.isprintable() and width(line) <= 100 for line in lines)


def test_only_when_asked_for() -> None:
    assert by_block(training_profile(), RenderOptions()) == []
    assert by_block(training_profile(), RenderOptions(by="waker")) == [], "of waits alone"


def test_columns() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    made.spend(
        thread, ON_CPU, 2 * MS, [python("run"), python("Model.fit", "/v/lib/python3.9/site-packages/fit/m.py", 3)]
    )
    made.spend(thread, ON_CPU, MS, [python("run"), native("", "/v/libx.so", 0x1F)])
    profile = made.build()
    assert [line.split() for line in rows(profile, "function")] == [
        ["0.002", "0.002", "0.000", "0.000", "fit", "fit.m", "Model.fit"],
        ["0.001", "0.003", "0.000", "0.000", "own", "code", "train", "run"],
        ["0.000", "0.001", "0.000", "0.000", "libx.so", "libx.so", "libx.so+0x1f"],
    ]
    assert [line.split()[4:] for line in rows(profile, "library")] == [["fit"], ["libx.so"], ["own", "code"]]
    assert rows(profile, "library", limit=1)[1:] == ["and 2 more (--limit)"]
