"""The tree in a terminal: it fits, colour changes no letter, and its lines add up."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from bpfprof.model.profile import Profile
from bpfprof.model.spans import SpanFlag
from bpfprof.render.columns import width
from bpfprof.render.formats import RenderOptions
from bpfprof.render.tree import render_tree
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
    wait,
    waiting_profile,
)

PROFILES = [training_profile, empty_profile, hostile_profile, deep_profile, waiting_profile]
CODES = re.compile(r"\x1b\[\d+m")


def lines(profile: Profile, **options: object) -> list[str]:
    return render_tree(profile, RenderOptions(**options)).splitlines()  # type: ignore[arg-type]


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("columns", [20, 60, 71, 80, 100, 140, 300])
@pytest.mark.parametrize("options", [{}, {"details": True}, {"limit": 5}, {"full_filenames": True}])
def test_it_fits_the_terminal(profile, columns: int, options: dict[str, object]) -> None:
    found = lines(profile(), columns=columns, **options)
    assert max(map(width, found)) <= min(max(columns, 60), 140)
    assert not any(line != line.rstrip() for line in found)
    assert all(char.isprintable() for line in found for char in line)


@pytest.mark.parametrize("profile", PROFILES)
def test_colour_changes_no_letter(profile) -> None:
    given = profile()
    assert [CODES.sub("", line) for line in lines(given, has_color=True)] == lines(given)


@pytest.mark.parametrize("profile", [training_profile, waiting_profile, deep_profile])
def test_without_utf8_it_is_ascii(profile) -> None:
    assert render_tree(profile(), RenderOptions(ascii_only=True)).isascii()


def figures(line: str) -> list[float]:
    return [float(word) if word not in ("-", "") else 0.0 for word in (line[:7].strip(), *line[13:33].split())]


@pytest.mark.parametrize("options", [{}, {"limit": 3}, {"details": True}, {"with_idle": True}])
def test_lines_below_one_add_up_to_it(options: dict[str, object]) -> None:
    found = lines(training_profile(), **options)
    tree = found[found.index(next(line for line in found if "calls" in line)) + 1 :]
    tree = tree[: tree.index("")]
    depths = [len(re.match(r"[├└│ ]*", line[35:]).group()) // 2 for line in tree]  # type: ignore[union-attr]
    for number, depth in enumerate(depths):
        below = []
        for other in range(number + 1, len(tree)):
            if depths[other] <= depth:
                break
            below += [figures(tree[other])] if depths[other] == depth + 1 else []
        if below:
            assert [sum(column) for column in zip(*below)] == pytest.approx(figures(tree[number]), abs=0.02)


def test_a_wait_ends_in_its_reason_on_the_line_of_its_function() -> None:
    made = ProfileBuilder()
    thread = made.thread(100, "MainThread")
    get = [python("main", line=3), python("Lock.acquire", "/usr/lib/python3.11/lock.py", 9), native("sem_wait")]
    made.wait(thread, 90 * MS, [*get, wait("lock")], lock=0x1000)
    made.spend(thread, ON_CPU, 10 * MS, [python("main", line=5)])
    found = lines(made.build(), columns=120)
    (line,) = [line for line in found if "Lock.acquire" in line]
    assert line.endswith("Lock.acquire  lock.py:9  waiting: lock #1  … 1 frame of libc.so.6")
    assert "[itself]" in "".join(found) and "main  train.py:3" in "".join(found)


def test_what_is_small_is_left_out_and_told() -> None:
    made = ProfileBuilder()
    thread = made.thread(100, "MainThread")
    made.spend(thread, ON_CPU, 1_000 * MS, [python("main"), python("large")])
    for number in range(5):
        made.spend(thread, ON_CPU, MS, [python("main"), python(f"small{number}")])
    profile = made.build()
    assert "5 smaller calls left out, 0.005 s (0.5%); more with --limit" in lines(profile)
    (rest,) = [line for line in lines(profile, limit=2) if "smaller call" in line]
    assert figures(rest) == [1.0, 1.0, 0.0, 0.0] or rest.split()[-4:] == ["…", "6", "smaller", "calls"]
    assert "small4" in "".join(lines(profile, limit=20))


def test_idle_threads_are_told_and_hidden() -> None:
    made = ProfileBuilder()
    for number in range(3):
        thread = made.thread(101 + number, f"pool_{number}")
        made.spend(thread, ON_CPU, 10 * MS, [python("work")])
        made.wait(thread, 90 * MS, [python("get"), wait("lock")], flags=SpanFlag.IDLE)
    profile = made.build()
    told = "beside it 0.270 s of waits for work (--idle shows them): pool_0..2"
    assert told in lines(profile, merge="role") and told not in lines(profile, merge="role", hide_idle=True)
    assert not any("waits for work" in line for line in lines(profile, with_idle=True))
    assert any(line.endswith("get  train.py  waiting: work") for line in lines(profile, with_idle=True))


def test_what_was_asked_for_is_said() -> None:
    assert "only thread x" in lines(replace(training_profile(), filter_text=", thread x"))
