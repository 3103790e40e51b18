"""The time of groups in slices of a recording."""

from __future__ import annotations

import pytest

from bpfprof.model.profile import Profile
from bpfprof.model.spans import SpanFlag
from bpfprof.query.compare.slices import GROUPINGS, SLICE_COUNT, Slices, sliced
from tests.unit.render.profiles import (
    MS,
    OFF_CPU,
    ON_CPU,
    READY,
    RUNQUEUE,
    ProfileBuilder,
    empty_profile,
    kernel,
    native,
    python,
    training_profile,
    wait,
)

MAIN, WORK = python("main", line=1), python("work", line=7)


def profile() -> Profile:
    """64 ms of work, a slice each: main calls work, which computes in C and waits; two threads do nothing."""
    made = ProfileBuilder()
    thread, stuck, pool = made.thread(1, "worker"), made.thread(2), made.thread(3)
    made.spend(thread, ON_CPU, 20 * MS, [MAIN, WORK, native("sum", "/usr/lib/libk.so")])
    made.spend(thread, ON_CPU, 12 * MS, [MAIN, python("work", line=8)])
    made.wait(thread, 32 * MS, [MAIN, WORK, kernel("read"), wait("disk")])
    made.wait(stuck, 64 * MS, [python("join"), wait("lock")])
    made.spend(pool, ON_CPU, 4 * MS, [MAIN])
    made.spend(pool, RUNQUEUE, 10 * MS, [MAIN, READY])
    made.spend(pool, OFF_CPU, 50 * MS, [python("get"), wait("lock")], flags=SpanFlag.IDLE)
    return made.build()


def sums_ms(found: Slices) -> dict[str, list[float]]:
    """First words of the key -> CPU own and total, wait own and total."""
    times = found.times.sum(axis=-1).reshape(-1, 4) / MS
    return {str(key[0] or key[1]): row for key, row in zip(found.keys, times.round(6).tolist())}


def test_own_and_total_time() -> None:
    found = sliced(profile(), "function")
    assert sums_ms(found) == {
        "work": [32, 32, 32, 32],
        "main": [4, 36, 0, 32],
        "sum": [0, 20, 0, 0],
        "read": [0, 0, 0, 32],
    }
    assert found.work_ns.sum() == 68 * MS and found.stuck_threads == 1 and found.left_out == 0


def test_a_span_is_cut_at_the_borders_of_slices() -> None:
    found = sliced(profile(), "function")
    work = found.times[found.keys.index(("work", "/srv/app/train.py", 0))] / MS
    assert work[0, 0].round(6).tolist() == [1] * 32 + [0] * 32
    assert work[1, 1].round(6).tolist() == [0] * 32 + [1] * 32
    assert found.work_ns.shape == (SLICE_COUNT,) and found.work_ns[:4].tolist() == [2 * MS] * 4


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("thread", {"python": [36, 36, 32, 32]}),
        ("process", {"python": [36, 36, 32, 32]}),
        ("reason", {"on a CPU": [36, 36, 0, 0], "disk": [0, 0, 32, 32]}),
        ("library", {"own code": [16, 36, 32, 32], "libk.so": [20, 20, 0, 0], "kernel": [0, 0, 0, 32]}),
        ("file", {"/srv/app/train.py": [36, 36, 32, 32], "libk.so": [0, 20, 0, 0], "[kernel]": [0, 0, 0, 32]}),
    ],
)
def test_groupings(by: str, expected: dict[str, list[float]]) -> None:
    found = sliced(profile(), by)
    if by == "thread":
        assert {key[1] for key in found.keys} == {"worker", "python"}
        assert found.times[:, :, 0].sum(axis=(0, 2)).tolist() == [36 * MS, 32 * MS]
    else:
        assert sums_ms(found) == expected


def test_lines_apart() -> None:
    found = sliced(profile(), "line")
    assert {key[2] for key in found.keys if key[0] == "work"} == {7, 8}


@pytest.mark.parametrize("by", GROUPINGS)
def test_nothing_and_much(by: str) -> None:
    assert sliced(empty_profile(), by).keys == ()
    found = sliced(training_profile(), by)
    assert found.keys and (found.times >= 0).all()
    assert found.times[:, :, 0].sum() <= found.work_ns.sum() + 1
