"""Asyncio tasks of a recording: as spans of a profile, collapsed text, a speedscope file and a table."""

from __future__ import annotations

import json
import re

import pytest

from bpfprof.model.profile import Profile
from bpfprof.model.samples import TaskState
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ON_CPU, ProfileOptions, SpanFilter
from bpfprof.render.formats import RenderOptions
from bpfprof.render.speedscope import render_speedscope
from bpfprof.render.task_table import render_tasks
from tests.unit.recording.hand_made import START_NS, HandMade
from tests.unit.render.profiles import collapsed_text

SECOND_NS = 1_000_000_000
ASYNCIO = "/usr/lib/python3.12/asyncio"


def made() -> HandMade:
    """Ten seconds: `fetch` reads a socket and sleeps, `main` waits for it, and two tasks without a name sleep."""
    made = HandMade()
    made.process(100)
    made.thread(100)
    fetch, main = made.code("fetch", filename="/app/web.py"), made.code("main", filename="/app/web.py")
    read = made.code("StreamReader.read", filename=f"{ASYNCIO}/streams.py")
    sleep = made.code("sleep", filename=f"{ASYNCIO}/tasks.py")
    reads, sleeps = made.stack((read, 4, 0), (fetch, 4, 0)), made.stack((sleep, 4, 0), (fetch, 4, 0))
    waits = made.stack((main, 4, 0))
    one, two, *others = [made.task(name) for name in ("fetch;1", "main", "Task-3", "Task-4")]

    def wait(task: int, begin_s: float, end_s: float, stack: int, **values: int) -> None:
        begin_ns, end_ns = (START_NS + int(each * SECOND_NS) for each in (begin_s, end_s))
        made.task_wait(task, begin_ns, end_ns, stack, "Task" if task == two else "_asyncio.Future", **values)

    wait(one, 1, 4, reads, awaited_by=two + 1, awaited_by_count=1)
    wait(one, 4, 5, 0, state=TaskState.RUNNING)
    wait(one, 6, 8, sleeps, awaited_by=two + 1, awaited_by_count=1)
    wait(one, 8, 8.5, sleeps, state=TaskState.READY)
    wait(two, 0, 12, waits)  # a look speaks for more than the recording has
    for task in others:
        wait(task, 2, 3, sleeps, seen_ns=SECOND_NS // 2)
    made.end = {"end_ns": START_NS + 10 * SECOND_NS, "tasks_missed": {"changed while they were read": 3}}
    return made


def profile(**wanted: object) -> Profile:
    return build_profile(made().recording(), ProfileOptions(True, filter=SpanFilter(**wanted)))  # type: ignore[arg-type]


def tasks_in(text: str) -> dict[str, int]:
    """Lines of tasks, without the files of their functions."""
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if ";task " in line]
    return {re.sub(r" \([^;]*\.py[^;]*\)", "", line): int(weight) for line, weight in lines}


def test_collapsed() -> None:
    process = "process python (100)"
    assert tasks_in(collapsed_text(profile(), RenderOptions())) == {
        f"{process};task fetch:1;fetch;StreamReader.read;[await: socket]": 3_000_000,
        f"{process};task fetch:1;fetch;sleep;[await: sleep]": 2_000_000,
        f"{process};task fetch:1;fetch;sleep;[await: ready]": 500_000,
        f"{process};task main;main;[await: task]": 10_000_000,
        f"{process};task Task-3;fetch;sleep;[await: sleep]": 500_000,
        f"{process};task Task-4;fetch;sleep;[await: sleep]": 500_000,
    }


def test_threads_keep_their_time() -> None:
    found = profile()
    assert [thread.wall_ns for thread in found.threads] == [10 * SECOND_NS]
    assert int(found.weights["total_ns"].sum()) <= 10 * SECOND_NS


@pytest.mark.parametrize(
    ("wanted", "seconds"),
    [
        ({}, 17.5),
        ({"window_ns": (3 * SECOND_NS, 7 * SECOND_NS)}, 7.0),  # running tasks are counted too
        ({"reasons": ("socket",)}, 3.0),
        ({"reasons": ("gil",)}, 0.0),
        ({"function": re.compile("Stream")}, 3.0),
        ({"process": re.compile("other")}, 0.0),
        ({"thread": re.compile("main")}, 0.0),
        ({"states": ON_CPU}, 0.0),
        ({"min_block_ns": 3 * SECOND_NS}, 13.0),
    ],
)
def test_filters(wanted: dict[str, object], seconds: float) -> None:
    assert int(profile(**wanted).task_spans["stands_for_ns"].sum()) == pytest.approx(seconds * 1e9)


def test_speedscope_has_a_profile_of_each_task() -> None:
    profiles = json.loads(render_speedscope(profile(), RenderOptions()))["profiles"]
    found = {each["name"]: each for each in profiles}
    fetch = found["process python (100) / task fetch;1"]
    assert (fetch["startValue"], fetch["endValue"]) == (SECOND_NS, 8_500_000_000)
    assert fetch["weights"] == [3 * SECOND_NS, 2 * SECOND_NS, 2 * SECOND_NS, SECOND_NS // 2]
    assert fetch["samples"][1] == []
    assert len(found) == 6


def test_table() -> None:
    text = render_tasks(profile(), RenderOptions())
    blocks = {block.splitlines()[0]: block for block in text.split("\n\n")}
    assert list(blocks)[2:5] == [
        "task main, process python (100)",
        "task fetch;1, process python (100)",
        "tasks of fetch (web.py:1) (2 tasks), process python (100)",
    ]
    fetch = blocks["task fetch;1, process python (100)"]
    assert "5.000 s" in fetch and "ready 500.0 ms, running 1.000 s" in fetch
    assert "socket    fetch (web.py:1)" in fetch and "awaited by task main" in fetch
    assert "asyncio tasks not seen: changed while they were read 3" in text.replace("\n  ", " ")
    limited = render_tasks(profile(), RenderOptions(limit=1))
    assert "and 2 more groups, together 6.000 s (--limit shows more)" in limited
    assert "no asyncio tasks" in render_tasks(profile(reasons=("gil",)), RenderOptions())
