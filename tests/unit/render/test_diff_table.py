"""Differences as a table and as JSON."""

from __future__ import annotations

import json

import pytest

from bpfprof.query.compare.differences import Change, Difference, Differences
from bpfprof.query.compare.slices import GROUPINGS
from bpfprof.render.diff_table import DiffLook, render_diff_json, render_diff_table, sentence

NOTHING = Change(0, 0, 0, 1)
SLOWER = Change(0.3, 0.33, 0.005, 24, needed=0.015, is_found=True)
FASTER = Change(0.4, 0.37, 0.004, 24, needed=0.012, is_found=True)
NOISE = Change(0.02, 0.021, 0.01, 24, needed=0.03)
NEW = Change(0, 0.05, 0.004, 24, needed=0.012, is_found=True)


def row(name: str, cpu: Change, wait: Change = NOTHING, file: str = "/srv/app/a.py", line: int = 0) -> Difference:
    return Difference((name, file, line), cpu, cpu, wait, wait)


def compared(*rows: Difference, counts: tuple[int, int] = (1, 2)) -> Differences:
    return Differences(rows, (9.5, 20.25), counts, False, 1, 3)


ALL = compared(row("f", SLOWER), row("g", FASTER, NOISE), row("h", NOTHING, NEW), row("Pool.get", NOISE, SLOWER))


def test_the_answer_comes_first() -> None:
    lines = render_diff_table(ALL, DiffLook(), ["quality: fine"]).splitlines()
    text = " ".join(each.strip() for each in lines)
    assert text.startswith("h (a.py) is new in waits: 0.0500 s; f (a.py) got slower by 10.0% (±1.7%); Pool.get (a.py) ")
    assert "waits longer by 10.0% (±1.7%); and 1 more" in text
    assert "before 9.50 s in 1 recording; after 20.25 s in 2 recordings; 1 thread left out" in text
    assert "3 groups with least time left out" in text and lines[-1].strip() == "quality: fine"
    assert "   0.3000    0.3300    +0.0300*   0.0050   +10.0%     +0.0300  CPU   f (a.py)" in lines
    assert all(len(line) <= 100 for line in lines)


def test_what_was_not_found_and_could_have_been() -> None:
    assert sentence(compared(row("g", NOISE), row("h", NOTHING)), DiffLook()) == (
        "no difference beyond noise: none of 1 function changed by more than chance explains; "
        "of g (a.py), the largest, a change of 150% or more would have been found"
    )
    assert "Several recordings" in sentence(compared(row("g", NOISE), counts=(1, 1)), DiffLook())
    assert sentence(compared(), DiffLook()) == "no difference beyond noise: nothing takes time enough to tell"
    assert "\n" in render_diff_table(compared(), DiffLook(), [])


def test_rows_shown() -> None:
    text = render_diff_table(ALL, DiffLook(limit=2), [])
    assert "and 4 more (--limit)" in text and "ascii" not in text
    assert "+-1.7%" in sentence(ALL, DiffLook(ascii_only=True))


def test_what_only_has_another_share_says_so() -> None:
    left = Change(0.3, 0.36, 0.005, 20.0, 0.02, left=0.055)
    lines = render_diff_table(compared(row("f", SLOWER), row("g", left)), DiffLook(), []).splitlines()
    marked = next(line for line in lines if "g (a.py)" in line)
    assert "+0.0600~" in marked and any(line.startswith("~ only its share differs") for line in lines)
    assert "g (a.py)" not in lines[0]


def test_what_fail_over_counts_is_marked() -> None:
    doubtful = Change(0.3, 0.312, 0.005, 20.0, 0.02)
    found = compared(row("f", doubtful), row("g", NOTHING))
    lines = render_diff_table(found, DiffLook(), []).splitlines()
    assert any("+0.0120+" in line and "f (a.py)" in line for line in lines) and doubtful.is_slower(3)
    assert any(line.startswith("+ slower by more than twice its error, which --fail-over counts") for line in lines)
    assert "though 1 by more than twice its error" in sentence(found, DiffLook())


def test_colours_say_which_way() -> None:
    lines = render_diff_table(ALL, DiffLook(is_coloured=True), []).splitlines()
    coloured = {line[:5]: line for line in lines if "\x1b" in line}
    assert set(coloured) == {"\x1b[31m", "\x1b[32m"} and "g (a.py)" in coloured["\x1b[32m"]
    assert all(line.endswith("\x1b[0m") for line in coloured.values())
    assert "\x1b" not in render_diff_table(ALL, DiffLook(), [])


def test_the_contract_of_json() -> None:
    found = json.loads(render_diff_json(compared(row("f", SLOWER, line=7)), DiffLook("line"), ["q"]))
    assert found["verdict"]["is_beyond_noise"] and found["verdict"]["sentence"].startswith("f (a.py:7) got slower")
    assert found["normalised"]["by"] == "second of work" and found["normalised"]["after_work_s"] == 20.25
    first = found["rows"][0]
    assert (first["function"], first["file"], first["line"]) == ("f", "/srv/app/a.py", 7)
    expected = {"before_s": 0.3, "after_s": 0.33, "difference_s": 0.03, "error_s": 0.005}
    assert expected.items() <= first.items() and expected.items() <= first["cpu"].items()
    assert first["total"] == expected and first["cpu"]["is_beyond_noise"] and not first["wait"]["is_beyond_noise"]


@pytest.mark.parametrize("by", GROUPINGS)
def test_names_cannot_act_on_a_terminal(by: str) -> None:
    evil = "\x1b[31m;\n\u202e\udc80"
    found = compared(row(evil, SLOWER, file=f"/{evil}"), row("", NEW, file=""))
    text = render_diff_table(found, DiffLook(by), [evil])
    assert "\x1b" not in text and "\u202e" not in text and "\udc80" not in text
    assert json.loads(render_diff_json(found, DiffLook(by), [evil]))["rows"]
