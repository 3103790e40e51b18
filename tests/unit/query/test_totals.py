"""Own and total time of functions and libraries."""

from __future__ import annotations

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.profile import Profile
from bpfprof.query.origins import origins
from bpfprof.query.totals import Totals, by_function, by_library
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


def times(rows: list[Totals], names: list[str]) -> dict[str, list[float]]:
    """Name -> milliseconds: on-CPU own and total, off-CPU own and total."""
    return {
        names[row.frame]: [ns / MS for ns in (row.cpu_own_ns, row.cpu_total_ns, row.wait_own_ns, row.wait_total_ns)]
        for row in rows
    }


def test_by_function() -> None:
    found = by_function(profile())
    by_name = times(found, [frame.name for frame in profile().frames])
    assert list(by_name)[:2] == ["dot", "main"], "most CPU time of its own first"
    assert by_name["dot"] == [3, 3, 0, 0] and by_name["main"] == [2, 5, 4, 4]
    assert by_name["gemm"] == [0, 3, 0, 0] and by_name["_start"] == [0, 5, 0, 4]


def test_by_library() -> None:
    found = by_library(profile())
    by_name = times(found, [origin.library for origin in origins(profile().frames)])
    assert by_name == {
        "numpy": [3, 3, 0, 0],
        "own code": [2, 5, 4, 4],
        "libc.so.6": [1, 1, 0, 4],
        "python": [0, 5, 0, 4],
        "kernel": [0, 1, 0, 4],
    }


def test_nothing_was_seen() -> None:
    empty = ProfileBuilder().build()
    assert by_function(empty) == by_library(empty) == []
