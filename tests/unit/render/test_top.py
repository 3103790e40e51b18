"""The screen of `top`: it fits every terminal, and shows what was asked for."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.query.answer.moment import Moment, SinceStart, closer, moment_of, sums_of
from bpfprof.query.threads.at_end import NowGroup
from bpfprof.query.work.shares import IDLE
from bpfprof.render.columns import width
from bpfprof.render.top import MODES, SORTS, TopLook, TopState, closer_lines, shown_places, top_lines
from tests.unit.render.profiles import (
    MS,
    ON_CPU,
    ProfileBuilder,
    deep_profile,
    empty_profile,
    hostile_profile,
    python,
    training_profile,
    wait,
    waiting_profile,
)

PROFILES = [training_profile, empty_profile, hostile_profile, deep_profile, waiting_profile]
SIZES = [(60, 12), (80, 24), (100, 30), (200, 50), (40, 8), (20, 3)]
CODES = re.compile(r"\x1b\[\d+m")


def state_of(moment: Moment, **values) -> TopState:
    trends = {place.key: [0.1, 0.5, 0.2] for place in moment.places}
    return TopState(moment.places, moment.shares, trends, 74, 0.02, 2, **values)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(("columns", "rows"), SIZES)
@pytest.mark.parametrize("threads", [False, True])
def test_it_fits_the_screen(profile, columns: int, rows: int, threads: bool) -> None:
    moment = moment_of(profile())
    lines = top_lines(moment, state_of(moment), TopLook(columns, rows, threads=threads))
    assert len(lines) <= rows
    assert max(map(width, lines)) <= columns
    assert not any(ord(char) < 32 or ord(char) == 127 for line in lines for char in line)


def test_colour_changes_no_letter() -> None:
    moment = moment_of(training_profile())
    plain, coloured = (top_lines(moment, state_of(moment), TopLook(has_color=color)) for color in (False, True))
    assert [CODES.sub("", line) for line in coloured] == plain and coloured != plain


def test_the_title_says_what_is_watched_and_for_how_long() -> None:
    moment = moment_of(training_profile())
    title = top_lines(moment, state_of(moment), TopLook())[0]
    assert title.startswith("bpfprof top  ") and " 01:14 " in title and "of 2 CPUs" in title


def many_places(count: int) -> Moment:
    made = ProfileBuilder()
    thread = made.thread(10, "worker_3", pid=10)
    for number in range(count):
        made.spend(thread, ON_CPU, (count - number) * MS, [python(f"f{number}")])
    profile = made.build()
    return moment_of(profile, {(10, 10): ThreadState.ON_CPU})


def test_cpu_time_that_others_waited_for_counts_in_the_title() -> None:
    made = ProfileBuilder()
    parent, child = made.thread(1, "MainThread", pid=1), made.thread(2, "MainThread", pid=2)
    made.spend(child, ON_CPU, 900 * MS, [python("work")])
    made.wait(parent, 1_000 * MS, [python("main"), wait("child")], waker=made.thread_waker(child))
    profile = made.build()
    profile = replace(profile, info=replace(profile.info, duration_ns=1_000 * MS))
    moment = moment_of(profile)
    title = top_lines(moment, state_of(moment), TopLook())[0]
    assert "0.90 of 2 CPUs   2 threads" in title
    (one, *_) = top_lines(many_places(1), state_of(many_places(1)), TopLook())
    assert one.endswith(" 1 thread")


@pytest.mark.parametrize("rows", [12, 16, 30])
def test_the_chosen_function_is_in_sight(rows: int) -> None:
    moment = many_places(60)
    keys = [place.key for place in shown_places(moment.places, TopLook())]
    for chosen in (keys[0], keys[20], keys[59]):
        lines = top_lines(moment, state_of(moment), TopLook(60, rows, chosen=chosen))
        marked = [line for line in lines if line.startswith(">")]
        assert len(marked) == 1 and f" {chosen[0]} " in marked[0] and len(lines) == rows
    assert not any(line.startswith(">") for line in top_lines(moment, state_of(moment), TopLook(60, rows)))


@pytest.mark.parametrize(("columns", "rows", "is_there"), [(60, 12, True), (100, 30, True), (60, 11, False)])
def test_what_threads_do_now_stands_above_the_keys(columns: int, rows: int, is_there: bool) -> None:
    moment = many_places(3)
    look = TopLook(columns, rows)
    found = [line for line in top_lines(moment, state_of(moment), look) if line.startswith("now ")]
    assert found == ["now  worker_3 █ CPU"] * is_there
    (line,) = [it for it in top_lines(moment, state_of(moment), TopLook(ascii_only=True)) if it.startswith("now ")]
    assert line == "now  worker_3 # CPU"


def test_threads_that_there_is_no_room_for_are_left_out() -> None:
    moment = many_places(3)
    groups = [NowGroup(f"a thread with a name of its own {letter}", 2, IDLE) for letter in "abcdefgh"]
    lines = top_lines(replace(moment, now=groups), state_of(moment), TopLook(60, 12))
    (line,) = [line for line in lines if line.startswith("now ")]
    assert line.endswith("░ idle  …") and 30 < width(line) <= 60


def test_a_trend_ends_now() -> None:
    moment = many_places(1)
    lines = top_lines(moment, state_of(moment), TopLook(120, 30))
    (heading,) = [line for line in lines if line.endswith("trend")]
    (row,) = [line for line in lines if " f0 " in line]
    assert row.endswith(" ▂█▄") and width(row) == 120 and heading.index("trend") == 110


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("mode", MODES)
def test_rows_are_in_the_order_that_was_asked_for(sort: str, mode: str) -> None:
    moment = moment_of(waiting_profile())
    places = shown_places(moment.places, TopLook(sort=sort, mode=mode))
    by_mode = {"CPU": lambda it: it.cpu_ns, "waits": lambda it: it.wait_ns, "GIL": lambda it: it.gil_ns}
    by_sort = {"own": lambda it: it.own_ns, "total": lambda it: it.total_ns, "wait": lambda it: it.wait_ns}
    if mode in by_mode:
        assert all(by_mode[mode](place) > 0 for place in places)
    key = by_sort[sort] if mode == "all" or (mode == "waits" and sort == "total") else by_mode[mode]
    assert [key(place) for place in places] == sorted((key(place) for place in places), reverse=True)


def test_only_functions_with_a_word_are_shown() -> None:
    moment = moment_of(training_profile())
    names = {place.frame.name for place in shown_places(moment.places, TopLook())}
    word = next(iter(names))[1:5]
    found = {place.frame.name for place in shown_places(moment.places, TopLook(only=word.upper()))}
    assert found and found == {name for name in names if word in name} | {
        place.frame.name for place in moment.places if word.lower() in place.frame.file.lower()
    }


def test_moments_add_up_since_the_start() -> None:
    moment, since = moment_of(waiting_profile()), SinceStart()
    since.add(moment)
    once, shares = since.with_last(None)
    assert shares == list(moment.all_shares)
    assert {it.key: it.own_ns for it in once} == {it.key: it.own_ns for it in moment.places}
    twice, shares = since.with_last(moment)
    assert shares == [2 * ns for ns in moment.all_shares]
    assert {it.key: it.own_ns for it in twice} == {it.key: 2 * it.own_ns for it in moment.places}
    assert {it.key: it.own_ns for it in since.with_last(None)[0]} == {it.key: it.own_ns for it in moment.places}


@pytest.mark.parametrize("profile", PROFILES)
def test_what_is_added_up_is_what_a_moment_has(profile) -> None:
    moment, sums = moment_of(profile()), sums_of(profile())
    assert (sums.all_shares, sums.places) == (moment.all_shares, moment.places)


@pytest.mark.parametrize("profile", [training_profile, waiting_profile, hostile_profile])
def test_a_function_looked_at_closer(profile) -> None:
    given: Profile = profile()
    moment = moment_of(given)
    for place in moment.places:
        found = closer(moment, place.key)
        assert sum(sum(row[1:]) for row in found.lines) == place.own_ns
        assert sum(ns for _, ns in found.reasons) == place.wait_ns
        text = {place.frame.file: ("x = '\x1b[31m'\n" * 2000, "")}
        for line in closer_lines(place, found, moment.whole_ns, 100, text):
            assert not any(ord(char) < 32 or ord(char) == 127 for char in line)


def test_what_is_since_the_start_and_what_is_of_the_last_seconds_is_named() -> None:
    moment = moment_of(training_profile())
    lines = top_lines(moment, state_of(moment), TopLook(since_start=True))
    assert lines[1].startswith("since start") and lines[2].startswith("last ") and ": " in lines[2], lines[:5]


def test_when_the_next_moment_comes_late_that_is_said() -> None:
    moment = moment_of(training_profile())
    assert "next in 7 s" in top_lines(moment, state_of(moment, next_s=7), TopLook())[-1]
    assert "next in" not in top_lines(moment, state_of(moment, next_s=1), TopLook())[-1]
