"""Events of the kernel side to rows of the recording."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from bpfprof.abi import dtypes
from bpfprof.capture import rows as made_rows
from bpfprof.capture.numbers import look_up
from bpfprof.capture.process import ProcessCodes
from bpfprof.capture.sleeping import Sleep, Sleeps
from bpfprof.capture.stacks import StackTable
from bpfprof.capture.threads import Threads
from bpfprof.model.samples import HOLDS_GIL, UNSAMPLED
from bpfprof.model.statuses import LastState, Status
from tests.unit.capture.test_stacks import PID, Numbers, Target, index, record

LOST, NOT_TAKEN, NO_PYTHON, OK = Status.STACK_LOST, Status.STACK_NOT_TAKEN, Status.NO_PYTHON, Status.OK
PYTHON_NOT_READY, FAULT = Status.PYTHON_NOT_READY, Status.PYTHON_FRAME_FAULT
BLOCKED, UNKNOWN, ON_CPU, DEAD = LastState.BLOCKED, LastState.UNKNOWN, LastState.ON_CPU, LastState.DEAD


def events(*rows: dict[str, Any], dtype: np.dtype[np.void] = dtypes.EVENT_DTYPE) -> np.ndarray[Any, np.dtype[np.void]]:
    """One event a dict."""
    made = np.zeros(len(rows), dtype)
    for position, row in enumerate(rows):
        for name, value in row.items():
            made[name][position] = value
    return made


def threads(*indices: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(indices, np.int64)


def slept(*looks: Sleep, stacks: StackTable | None = None) -> Sleeps:
    """What was seen of thread 4, the last look first."""
    sleeps = Sleeps(cast(Threads, None), stacks or StackTable(), None)
    sleeps.seen = {4: looks} if looks else {}
    return sleeps


@pytest.fixture
def stacks() -> StackTable:
    """Knows key 77."""
    table, target = StackTable(), Target(leaf=0x1000)
    table.add_records([record(77, target.frame(0x1000))], {PID: ProcessCodes(0, target)}.get)
    return table


def test_threads_are_found_by_tid() -> None:
    tids = np.array([7, 9, 7, 8, 7], np.uint32)
    assert look_up(tids, {7: 0, 8: 5}, -1).tolist() == [0, -1, 0, 5, 0]
    assert len(look_up(tids[:0], {}, -1)) == 0


def test_samples_keep_their_fields(stacks: StackTable) -> None:
    made = events(
        {"time_ns": 10, "on_cpu_ns": 5, "cpu": 3, "stack": 77, "tid": 9, "flags": HOLDS_GIL},
        {"time_ns": 11, "on_cpu_ns": 6, "cpu": 2, "stack": 0, "status": NO_PYTHON},
        {"time_ns": 12, "on_cpu_ns": 7, "cpu": 1, "stack": 555, "status": OK},
    )
    rows = made_rows.samples(made, threads(4, 5, 6), stacks)
    named = rows[["time_ns", "on_cpu_ns", "thread", "stack", "cpu", "status", "flags"]].tolist()
    assert named == [
        (10, 5, 4, index(stacks, 77), 3, OK, HOLDS_GIL),
        (11, 6, 5, 0, 2, NO_PYTHON, 0),
        (12, 7, 6, 0, 1, LOST, 0),
    ]


def test_waits_keep_their_fields(stacks: StackTable) -> None:
    times = {"time_ns": 100, "on_cpu_ns": 5, "blocked_ns": 30, "runqueue_ns": 10, "stolen_ns": 2}
    made = events({**times, "stack": 77, "syscall": 202, "task_state": 1, "args": (1, 2, 1 << 63)})
    (row,) = made_rows.waits(made, threads(4), stacks, slept())
    for name, value in times.items():
        assert row[name] == value, name
    assert (row["stack"], row["syscall"], row["task_state"], row["thread"]) == (1, 202, 1, 4)
    assert row["args"].tolist() == [1, 2, 1 << 63]


# A sleep from 60 to 90, then runnable until 100; what was looked at from user space, and whether it is that sleep.
@pytest.mark.parametrize(("looked_at_ns", "fits"), [(59, False), (60, True), (75, True), (90, True), (91, False)])
def test_a_first_sleep_fills_only_the_sleep_it_was_seen_in(stacks: StackTable, looked_at_ns: int, fits: bool) -> None:
    wait = {"time_ns": 100, "blocked_ns": 30, "runqueue_ns": 10, "status": NOT_TAKEN, "syscall": -1}
    sleeps = slept(Sleep(looked_at_ns, 1, 16, (7, 8, 9)))
    (row,) = made_rows.waits(events(wait), threads(4), stacks, sleeps)
    if fits:
        assert (row["stack"], row["syscall"], row["status"]) == (1, 16, OK)
        assert row["args"].tolist() == [7, 8, 9] and row["task_state"] == 1
    else:
        assert (row["stack"], row["syscall"], row["status"]) == (0, -1, NOT_TAKEN)


def test_a_first_sleep_is_of_its_own_thread(stacks: StackTable) -> None:
    wait = {"time_ns": 100, "blocked_ns": 40, "status": NOT_TAKEN}
    rows = made_rows.waits(events(wait, wait), threads(4, 5), stacks, slept(Sleep(80, 1, 16, (0, 0, 0))))
    assert rows["stack"].tolist() == [1, 0]


def test_a_first_sleep_does_not_replace_what_the_kernel_side_saw(stacks: StackTable) -> None:
    times = {"time_ns": 100, "blocked_ns": 40, "syscall": 202}
    made = events(
        {**times, "stack": 77}, {**times, "status": FAULT}, {**times, "stack": 555}, {**times, "status": NO_PYTHON}
    )
    rows = made_rows.waits(made, threads(4, 4, 4, 4), stacks, slept(Sleep(80, 1, 16, (0, 0, 0))))
    assert rows["status"].tolist() == [OK, FAULT, LOST, OK]
    assert rows["syscall"].tolist() == [202, 202, 202, 16]


@pytest.mark.parametrize(("looked_at_ns", "slept_stack", "fits"), [(80, 1, True), (59, 1, False), (80, 0, False)])
def test_a_first_sleep_has_the_python_frames_that_the_kernel_side_could_not_take(
    stacks: StackTable, looked_at_ns: int, slept_stack: int, fits: bool
) -> None:
    """The interpreter was not known yet when it began."""
    taken = record(78, native=[70], native_status=OK, status=PYTHON_NOT_READY)
    stacks.add_records([taken], {PID: ProcessCodes(0, Target())}.get, Numbers())
    before = index(stacks, 78)
    assert stacks.unfinished == {before} and stacks.take_unfinished_pids() == {PID}
    wait = {"time_ns": 100, "blocked_ns": 30, "runqueue_ns": 10, "stack": 78, "status": OK, "syscall": 230}
    sleeps = slept(Sleep(looked_at_ns, slept_stack, 16, (7, 8, 9)))
    rows = made_rows.waits(events(wait, {**wait, "stack": 77}), threads(4, 4), stacks, sleeps)
    assert rows["stack"].tolist() == [1 if fits else before, index(stacks, 77)]
    assert rows["syscall"].tolist() == [230, 230], "that the kernel side knew"


def test_a_first_sleep_without_a_stack_says_so(stacks: StackTable) -> None:
    wait = {"time_ns": 100, "blocked_ns": 40, "status": NOT_TAKEN}
    (row,) = made_rows.waits(events(wait), threads(4), stacks, slept(Sleep(80, 0, 16, (1, 0, 0))))
    assert (row["stack"], row["status"], row["syscall"]) == (0, NO_PYTHON, 16)


def totals(stacks: StackTable, sleeps: Sleeps, **record: Any) -> np.void:
    made = events({"syscall": -1, **record}, dtype=dtypes.THREAD_DTYPE)
    total: np.void = made_rows.totals(made, threads(4), 1000, stacks, sleeps)[0]
    return total


def test_totals_keep_their_fields(stacks: StackTable) -> None:
    values = {"state": ON_CPU, "since_ns": 900, "on_cpu_ns": 5, "blocked_ns": 6, "runqueue_ns": 7, "stolen_ns": 8}
    values |= {"wait_count": 9, "wake_ns": 3, "first_ns": 2}
    row = totals(stacks, slept(), stack=77, **values)
    assert {name: int(row[name]) for name in values} == values
    assert (row["time_ns"], row["thread"], row["stack"]) == (1000, 4, 1)


def test_a_thread_asleep_since_before_the_start_is_blocked(stacks: StackTable) -> None:
    sleep = slept(Sleep(500, 1, 16, (0, 0, 0)))
    row = totals(stacks, sleep, state=UNKNOWN, since_ns=400, status=NOT_TAKEN)
    assert (row["state"], row["stack"], row["syscall"]) == (BLOCKED, 1, 16)
    row = totals(stacks, slept(), state=UNKNOWN, since_ns=400, status=NOT_TAKEN)
    assert (row["state"], row["stack"]) == (UNKNOWN, 0)


def test_a_thread_that_ran_since_is_not_in_its_first_sleep(stacks: StackTable) -> None:
    sleep = slept(Sleep(500, 1, 16, (0, 0, 0)))
    row = totals(stacks, sleep, state=BLOCKED, since_ns=600, status=NOT_TAKEN)
    assert row["stack"] == 0, "it sleeps since 600, and was looked at before"
    row = totals(stacks, sleep, state=ON_CPU, since_ns=400, status=NOT_TAKEN)
    assert (row["stack"], row["state"]) == (0, ON_CPU)


def test_the_dead_keep_their_totals() -> None:
    made = events({"time_ns": 900, "on_cpu_ns": 5, "blocked_ns": 6, "runqueue_ns": 7, "stolen_ns": 8, "tid": 1})
    (row,) = made_rows.exits(made, threads(4))
    assert (row["state"], row["thread"], row["since_ns"], row["time_ns"]) == (DEAD, 4, 900, 900)
    assert [int(row[f"{name}_ns"]) for name in ("on_cpu", "blocked", "runqueue", "stolen")] == [5, 6, 7, 8]


def test_wakers_and_holders_have_stacks_of_their_own(stacks: StackTable) -> None:
    made = events({"waker_stack": 77, "holder_stack": 77, "holder": 4711, "waker_kind": 1})
    (row,) = made_rows.waits(made, threads(4), stacks, slept())
    assert row["waker_stack"] == row["holder_stack"] == index(stacks, 77)
    assert row["holder"] == 0, "an id of the kernel side is no index"
    assert row["waker_kind"] == 1


def test_sums_of_short_waits_keep_their_fields() -> None:
    made = events(
        {"args": (7, 300, 0), "blocked_ns": 5, "runqueue_ns": 6, "syscall": 1, "task_state": 2, "flags": UNSAMPLED}
    )
    (row,) = made_rows.short_waits(made, threads(3))
    names = ("thread", "arg", "count", "blocked_ns", "runqueue_ns", "syscall", "task_state", "flags")
    assert [int(row[name]) for name in names] == [3, 7, 300, 5, 6, 1, 2, UNSAMPLED]


def test_open_sums_are_those_that_count_something() -> None:
    records = np.zeros(2, dtypes.THREAD_DTYPE)
    records["short_waits"]["count"][0] = [0, 2, 0, 0]
    records["short_waits"]["blocked_ns"][0, 1] = 9
    records["short_waits"]["count"][1] = [1, 0, 0, 1]
    rows = made_rows.open_short_waits(records, threads(5, 6))
    assert rows[["thread", "count", "blocked_ns"]].tolist() == [(5, 2, 9), (6, 1, 0), (6, 1, 0)]
