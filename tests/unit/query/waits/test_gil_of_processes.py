"""Waits for the GIL, by process."""

from __future__ import annotations

from dataclasses import replace

from bpfprof.query.waits.chains import convoys
from bpfprof.render.formats import RenderOptions
from bpfprof.render.gil_table import gil_block
from tests.unit.render.profiles import MS, ProfileBuilder, python, wait


def test_a_convoy_is_as_long_as_threads_wait_together() -> None:
    made = ProfileBuilder()
    for number in range(4):
        thread = made.thread(101 + number, f"worker_{number}", first_ns=100 * MS if number == 3 else 0)
        made.wait(thread, 30 * MS, [python("f"), wait("gil")])
    alone = made.thread(201, pid=200)
    made.wait(alone, 10 * MS, [python("f"), wait("gil")])
    made.wait(alone, 5 * MS, [python("f"), wait("sleep")])
    profile = made.build()
    assert convoys(profile) == {100: 2.0, 200: 1.0}, "three for 30 ms, and one for 30 ms later"
    assert convoys(replace(profile, spans=None)) == {}


def test_threads_of_one_role_are_one_row() -> None:
    made = ProfileBuilder()
    hog = made.thread(100, "hog")
    made.wait(hog, 100 * MS, [python("spin", "/srv/a.py", 3), wait("sleep")])
    for number in range(4):
        thread = made.thread(101 + number, f"worker_{number}")
        made.wait(thread, 25 * MS, [python("f"), wait("gil")], behind=[(1, hog, [python("spin", "/srv/a.py", 3)])])
        made.wait(thread, 75 * MS, [python("f"), wait("sleep")])
    assert gil_block(made.build(), RenderOptions()) == [
        "waits for the GIL",
        "python (100): 100.0 ms of 4 threads, 25% of their time; while one waited, 4.0 did on average",
        "worker_0..3 (4 threads): 100.0 ms for the GIL; held 100% in spin (a.py:3) of thread hog (100)",
    ]


def test_of_many_small_holders_one_is_named() -> None:
    made = ProfileBuilder()
    holders = [made.thread(100 + number, f"{chr(97 + number)}_holder") for number in range(10)]
    waiter = made.thread(1, "main")
    for number, holder in enumerate(holders):
        at = [python(f"f{number}", "/srv/a.py", number + 1)]
        made.wait(waiter, (10 + number) * MS, [python("f"), wait("gil")], behind=[(1, holder, at)])
    (line, rest) = gil_block(made.build(), RenderOptions())[-2:]
    assert line == "main (1): 145.0 ms for the GIL; held 13% in f9 (a.py:10) of thread j_holder (109)"
    assert rest == "    and 9 others, 87%"
