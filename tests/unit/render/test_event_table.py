"""The block of what was counted beside the clock, and collapsed stacks weighted by it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bpfprof.model.profile import EVENT_WEIGHT_DTYPE, Profile
from bpfprof.render.event_table import count_text
from bpfprof.render.formats import RenderOptions
from bpfprof.render.table import render_table
from tests.unit.render.profiles import MS, ON_CPU, ProfileBuilder, collapsed_text, native, python

OPTIONS = RenderOptions(function_only=True)


def counted(*events: str, dividend: int = 3_000_000_000) -> Profile:
    """In touch() and the C it calls so many of the first event and a billion of the second, in idle() 10 and 0."""
    made = ProfileBuilder()
    thread = made.thread(7)
    touch, idle = [python("main"), python("touch"), native("memset")], [python("main"), python("idle")]
    for stack in (touch, idle):
        made.spend(thread, ON_CPU, MS, stack)
    profile = made.build()
    stacks = [made.stack(touch), made.stack(idle)]
    rows = [(0, 0, stacks[0], 3, dividend), (1, 0, stacks[0], 1, 10**9), (0, 0, stacks[1], 1, 10)]
    kept = [row for row in rows if row[0] < len(events)]
    return replace(profile, events=events, event_weights=np.array(kept, EVENT_WEIGHT_DTYPE))


def block(profile: Profile) -> list[list[str]]:
    """Words of the lines of the block, its heading left out."""
    blocks = [part.splitlines() for part in render_table(profile, OPTIONS).split("\n\n")]
    (found,) = [part for part in blocks if part[0].startswith("events by function")]
    assert all(len(line) <= 100 for line in found)
    return [line.split() for line in found[1:]]


def test_no_events_no_block() -> None:
    assert "events by function" not in render_table(replace(counted(), events=()), OPTIONS)


def test_one_event() -> None:
    head, total, first, second = block(counted("page-faults", dividend=30))
    assert head == ["page-faults", "share", "function"] and total == ["40", "100.0%", "(all)"]
    assert first == ["30", "75.0%", "touch", "(train.py)"] and second == ["10", "25.0%", "idle", "(train.py)"]


def test_events_in_no_function_go_by_half() -> None:
    profile = counted("page-faults", dividend=30)
    for count, functions in ((50, ["touch", "(no", "idle"]), (70, ["(no", "touch", "idle"])):
        rows = [*profile.event_weights.tolist(), (0, 0, len(profile.stacks), 1, count)]
        with_one = replace(
            profile, stacks=(*profile.stacks, ()), event_weights=np.array(rows, profile.event_weights.dtype)
        )
        assert [line[2] for line in block(with_one)[2:]] == functions


def test_instructions_per_cycle() -> None:
    legend, head, total, first, second = block(counted("instructions", "cycles"))
    assert legend == ["IPC:", "instructions", "per", "cycle"]
    assert head == ["instructions", "cycles", "share", "IPC", "function"]
    assert (
        total == ["3", "G", "1", "G", "100.0%", "3", "(all)"]
        and first[5] == "3"
        and second[:4] == ["10", "0", "<0.1%", "-"]
    )


def test_a_well_known_ratio_is_right_in_any_order() -> None:
    legend, _, total, *_ = block(counted("cycles", "instructions", dividend=4 * 10**9))
    assert legend == ["IPC:", "instructions", "per", "cycle"] and total[5] == "0.25"


def test_others_are_the_first_per_the_second() -> None:
    legend, _, total, *_ = block(counted("page-faults", "context-switches", dividend=5 * 10**9))
    assert legend == ["ratio:", "page-faults", "per", "context-switch"] and total[5] == "5"


def test_functions_are_limited() -> None:
    lines = render_table(counted("page-faults"), replace(OPTIONS, limit=1)).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("events by function"))
    assert "touch" in lines[at + 3] and not lines[at + 4]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (9_999_999, "9,999,999"), (12_345_678, "12.35 M"), (3_456_789_012, "3.457 G"), (10**15, "1000 T")],
)
def test_counts_fit_their_column(count: int, text: str) -> None:
    assert count_text(count) == text and len(text) <= 9


def test_collapsed_stacks_in_events() -> None:
    text = collapsed_text(counted("page-faults", dividend=30), replace(OPTIONS, event="page-faults"))
    base = "process python (100);thread python (7);main (train.py)"
    assert text.splitlines() == [f"{base};idle (train.py) 10", f"{base};touch (train.py);memset (libc.so.6) 30"]
