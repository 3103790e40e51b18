"""Rows of time by what it was spent in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.ids import Pid
from bpfprof.model.profile import TASK_SPAN_DTYPE, Profile, Task
from bpfprof.model.spans import SpanFlag
from bpfprof.model.states import AWAIT_REASONS
from bpfprof.query.tables.choices import ROW_GROUPINGS, SORTS
from bpfprof.query.tables.rows import Row, rows_by, sorted_rows
from bpfprof.query.work.table import work_of
from tests.unit.render.profiles import (
    MS,
    OFF_CPU,
    ON_CPU,
    READY,
    RUNQUEUE,
    ProfileBuilder,
    kernel,
    native,
    python,
    wait,
)

MAIN, DOT = python("main", line=1), python("dot", "/venv/lib/python3.11/site-packages/numpy/multiarray.py", 7)
BLAS = native("gemm", "/venv/lib/python3.11/site-packages/numpy.libs/libblas.so")
START, SLEEP = native("_start", "/usr/bin/python3.11"), native("nanosleep", "/usr/lib/libc.so.6")


def profile() -> Profile:
    """3 ms in BLAS, 2 in main (1 of them in the interpreter), 4 asleep below main, 1 in a thread of C in the kernel."""
    made = ProfileBuilder()
    thread, other = made.thread(1), made.thread(2)
    made.spend(thread, ON_CPU, 3 * MS, [START, MAIN, DOT, BLAS])
    made.spend(thread, ON_CPU, MS, [START, python("main", line=2)])
    made.spend(thread, ON_CPU, MS, [START, MAIN, native("sum", "/usr/bin/python3.11")])
    made.spend(thread, OFF_CPU, 4 * MS, [START, MAIN, MAIN, SLEEP, kernel("futex"), wait("sleep")])
    made.spend(thread, RUNQUEUE, MS, [START, MAIN, READY])
    made.spend(other, ON_CPU, MS, [SLEEP, kernel("read")])
    made.spend(other, ON_CPU, MS, [Frame(FrameKind.NOT_SAMPLED)])
    return made.build()


def rows(made: Profile, by: str, with_idle: bool = False) -> list[Row]:
    return rows_by(made, work_of(made, by == "waker"), by, with_idle=with_idle)


def times(made: Profile, by: str) -> dict[str, list[float]]:
    """Name -> milliseconds: CPU own and total, ready own and total, waits own and total."""
    return {
        row.name: [ns / MS for own_total in zip(row.own_ns, row.total_ns) for ns in own_total] for row in rows(made, by)
    }


def test_by_function() -> None:
    found = times(profile(), "function")
    assert [*found][:2] == ["main", "dot"], "most time of its own first"
    assert found["dot"] == [3, 3, 0, 0, 0, 0] and found["main"] == [2, 5, 1, 1, 4, 4]
    assert found["gemm"] == [0, 3, 0, 0, 0, 0] and found["_start"] == [0, 5, 0, 1, 0, 4]


def test_by_library() -> None:
    """What the kernel, the interpreter and the C library did is the own time of the library that called them."""
    assert times(profile(), "library") == {
        "own code": [2, 5, 1, 1, 4, 4],
        "numpy": [3, 3, 0, 0, 0, 0],
        "libc.so.6": [1, 1, 0, 0, 0, 4],
        "python": [0, 5, 0, 1, 0, 4],
        "kernel": [0, 1, 0, 0, 0, 4],
    }


def test_code_without_names_is_a_row_for_each_object() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    for offset in (1, 2, 3):
        made.spend(thread, ON_CPU, MS, [native("", "/srv/libstripped.so", offset)])
    assert times(made.build(), "function") == {"libstripped.so (no names)": [3, 3, 0, 0, 0, 0]}


def test_waits_for_work_are_left_out_unless_asked_for() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    made.spend(thread, ON_CPU, MS, [MAIN])
    made.wait(thread, 5 * MS, [MAIN, wait("lock")], flags=SpanFlag.IDLE)
    (row,), (with_idle,) = rows(made.build(), "function"), rows(made.build(), "function", with_idle=True)
    assert (row.own_ns, with_idle.own_ns) == ((MS, 0, 0), (MS, 0, 5 * MS))
    assert with_idle.reasons == {"lock": 5 * MS}


def test_by_waker() -> None:
    made = ProfileBuilder()
    first, second = made.thread(1, "first"), made.thread(2, "second")
    made.spend(second, ON_CPU, 9 * MS, [MAIN])
    waker, other = made.thread_waker(second), made.waker(pid=7, tid=8, process_name="db", thread_name="io")
    made.wait(first, 3 * MS, [MAIN, wait("lock")], waker=waker)
    made.wait(first, 2 * MS, [MAIN, wait("net")], waker=waker)
    made.wait(first, 4 * MS, [MAIN, wait("net")], waker=other)
    made.wait(first, MS, [MAIN, wait("disk")])
    found = {row.name: (row.own_ns[2], row.count, row.reasons) for row in rows(made.build(), "waker")}
    assert found == {
        "thread second (2) of python (100)": (5 * MS, 2, {"lock": 3 * MS, "net": 2 * MS}),
        "thread io (8) of db (7)": (4 * MS, 1, {"net": 4 * MS}),
        "not known": (MS, 1, {"disk": MS}),
    }


def test_by_task() -> None:
    made = ProfileBuilder()
    made.thread(1)
    stack = made.stack([python("fetch", line=3), Frame(FrameKind.AWAIT, "socket")])
    spans = np.zeros(3, TASK_SPAN_DTYPE)
    spans["task"], spans["stack"], spans["stands_for_ns"] = (0, 0, 1), stack, (3 * MS, 2 * MS, 7 * MS)
    spans["reason"], spans["is_running"] = AWAIT_REASONS.index("socket"), (False, True, False)
    tasks = (Task(Pid(100), "python", "poller"), Task(Pid(100), "python", "Task-2"))
    given = replace(made.build(), tasks=tasks, task_spans=spans)
    assert [(row.name, row.own_ns, row.count, row.reasons) for row in rows(given, "task")] == [
        ("tasks of fetch", (0, 0, 7 * MS), 1, {"socket": 7 * MS}),
        ("poller", (2 * MS, 0, 3 * MS), 1, {"socket": 3 * MS}),
    ]


@pytest.mark.parametrize("sort", SORTS)
def test_order(sort: str) -> None:
    found = sorted_rows(rows(profile(), "function"), sort)
    assert len(found) == len(rows(profile(), "function"))
    first = {"own": "main", "total": "main", "cpu": "dot", "ready": "main", "wait": "main", "count": "main"}
    assert found[0].name == first.get(sort, min(row.name for row in found))
    if sort == "total":
        assert [sum(row.total_ns) for row in found] == sorted((sum(row.total_ns) for row in found), reverse=True)


@pytest.mark.parametrize("by", ROW_GROUPINGS)
def test_nothing_was_seen(by: str) -> None:
    assert rows(ProfileBuilder().build(), by) == []
