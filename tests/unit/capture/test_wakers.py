"""Ids of who ends waits and of who holds the GIL, to places in the recording's tables."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from bpfprof import abi
from bpfprof.abi.dtypes import EVENT_DTYPE, THREAD_DTYPE
from bpfprof.array_types import NDArray
from bpfprof.capture import wakers
from bpfprof.capture.processes import Processes
from bpfprof.capture.wakers import Wakers
from bpfprof.proc import tasks
from tests.unit.capture.taken import new_rows

UNKNOWN, THREAD, INTERRUPT, SOFT_INTERRUPT = (
    int(abi.ENUMS["bp_waker_kind"][f"BP_WAKER_{name}"]) for name in ("UNKNOWN", "THREAD", "INTERRUPT", "SOFT_INTERRUPT")
)
PID, OTHER_PID = 100, 200
Rows = NDArray[np.void]


@dataclass
class Machine:
    """The processes that run: pid -> tid -> the thread's ids, ours first, that of its own pid namespace last."""

    threads: dict[int, dict[int, tuple[int, ...]]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)  # of processes and threads, by id
    listings: Counter[int] = field(default_factory=Counter)
    processes: Any = field(
        default_factory=lambda: SimpleNamespace(by_pid={}, threads=SimpleNamespace(index_of={}, count=0))
    )
    now: float = 1000.0

    def later(self) -> None:
        """What was remembered is looked at anew."""
        self.now += wakers._REMEMBERED_S

    def list_threads(self, pid: int) -> list[int]:
        self.listings[pid] += 1
        return sorted(self.threads.get(pid, {}))

    def namespace_tids(self, pid: int, tid: int) -> tuple[int, ...]:
        return self.threads.get(pid, {}).get(tid, ())

    def process_name(self, pid: int) -> str:
        return self.names.get(pid, "")

    def thread_name(self, pid: int, tid: int) -> str:
        return self.names.get(tid, "")

    def watch(self, pid: int, *tids: int, name: str = "target") -> None:
        """Makes them targets; the next threads of the recording."""
        self.processes.by_pid[pid] = SimpleNamespace(name=name)
        for tid in tids:
            self.processes.threads.index_of[tid] = self.processes.threads.count
            self.processes.threads.count += 1


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    for name in ("list_threads", "namespace_tids", "process_name", "thread_name"):
        monkeypatch.setattr(tasks, name, getattr(machine, name))
    monkeypatch.setattr(time, "monotonic", lambda: machine.now)
    return machine


@pytest.fixture
def table(machine: Machine) -> Wakers:
    return Wakers(cast(Processes, machine.processes))


def ended_by(*ids: tuple[int, int], kind: int = THREAD) -> Rows:
    """A wait for each (pid, tid) that ended one."""
    events = np.zeros(len(ids), EVENT_DTYPE)
    events["waker_kind"] = kind
    events["waker_tgid"], events["waker_tid"] = np.array(ids, np.uint32).reshape(-1, 2).T
    return events


def held_by(*ids: tuple[int, int], dtype: np.dtype[np.void] = EVENT_DTYPE) -> Rows:
    """A wait for each (pid of who waits, holder's own id)."""
    events = np.zeros(len(ids), dtype)
    events["tgid"], events["holder"] = np.array(ids, np.uint32).reshape(-1, 2).T
    return events


# --- who ended a wait


def test_places_are_given_once(machine: Machine, table: Wakers) -> None:
    machine.watch(PID, 100, 101)
    first = table.places(ended_by((PID, 101), (OTHER_PID, 207), (PID, 101))).tolist()
    assert sorted(first) == [1, 1, 2] and first[0] == first[2]
    rows = new_rows(table, "wakers")
    assert [row["index"] for row in rows] == [0, 1] and new_rows(table, "wakers") == []
    again = table.places(ended_by((OTHER_PID, 207), (PID, 101), (PID, 100))).tolist()
    assert again == [first[1], first[0], 3]
    assert [row["index"] for row in new_rows(table, "wakers")] == [2]


def test_rows_say_who_it_was(machine: Machine, table: Wakers) -> None:
    machine.watch(PID, 100, 101, name="train.py")
    machine.names |= {PID: "python3", 101: "loader", OTHER_PID: "redis-server", 207: "io_thd_1"}
    places = table.places(ended_by((PID, 101), (OTHER_PID, 207), (300, 301)))
    rows = {row["index"] + 1: row for row in new_rows(table, "wakers")}
    assert [rows[place] for place in places.tolist()] == [
        {"index": places[0] - 1, "thread": 2, "pid": PID, "tid": 101, "process_name": "train.py", "name": "loader"},
        {
            **{"index": places[1] - 1, "thread": 0, "pid": OTHER_PID, "tid": 207},
            **{"process_name": "redis-server", "name": "io_thd_1"},
        },
        {"index": places[2] - 1, "thread": 0, "pid": 300, "tid": 301, "process_name": "", "name": ""},
    ]


@pytest.mark.parametrize("kind", [UNKNOWN, INTERRUPT, SOFT_INTERRUPT])
def test_what_is_no_thread_has_no_place(table: Wakers, kind: int) -> None:
    """Ids in such an event may be of a wait before it."""
    assert table.places(ended_by((PID, 101), kind=kind)).tolist() == [0]
    assert new_rows(table, "wakers") == []


def test_kinds_are_told_apart_in_one_batch(table: Wakers) -> None:
    events = ended_by((PID, 101), (PID, 101), (PID, 102), (PID, 102))
    events["waker_kind"] = INTERRUPT, THREAD, SOFT_INTERRUPT, THREAD
    assert table.places(events).tolist() == [0, 1, 0, 2]


def test_no_events(table: Wakers) -> None:
    assert table.places(ended_by()).tolist() == [] and table.holders(held_by()).tolist() == []


def test_a_thread_id_that_was_given_again_has_a_place_of_its_own(machine: Machine, table: Wakers) -> None:
    machine.watch(PID, 101)
    table.places(ended_by((PID, 101)))
    machine.watch(PID, 101)
    assert table.places(ended_by((PID, 101))).tolist() == [2]
    del machine.processes.threads.index_of[101]
    assert table.places(ended_by((PID, 101))).tolist() == [3]
    assert [row["thread"] for row in new_rows(table, "wakers")] == [1, 2, 0]


def test_the_same_thread_id_in_two_processes(table: Wakers) -> None:
    """The second process took the id after the first had ended."""
    assert table.places(ended_by((PID, 101), (OTHER_PID, 101))).tolist() == [1, 2]


def test_the_largest_ids(table: Wakers) -> None:
    largest = (1 << 32) - 1
    assert table.places(ended_by((largest, largest), (largest, 0), (0, largest))).tolist() == [1, 2, 3]
    assert {(row["pid"], row["tid"]) for row in new_rows(table, "wakers")} == {
        (largest, largest),
        (largest, 0),
        (0, largest),
    }


def test_a_machine_that_makes_threads_for_ever(table: Wakers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakers, "_NAMED_LIMIT", 10)
    found = [table.places(ended_by((PID, 1000 + n))).tolist()[0] for n in range(25)]
    assert found == list(range(1, 26)) and len(new_rows(table, "wakers")) == 25
    assert table.places(ended_by((PID, 1024))).tolist() == [25], "what was seen lately keeps its place"
    (forgotten,) = table.places(ended_by((PID, 1000))).tolist()
    assert forgotten == 26 and [row["index"] for row in new_rows(table, "wakers")] == [25], (
        "places are never given again"
    )


# --- who held the GIL


def test_holders_outside_a_namespace(machine: Machine, table: Wakers) -> None:
    machine.threads[PID] = {100: (100,), 101: (101,), 102: (102,)}
    machine.watch(PID, 100, 101)
    assert table.holders(held_by((PID, 101), (PID, 0), (PID, 100), (PID, 102), (PID, 101))).tolist() == [2, 0, 1, 0, 2]
    assert not machine.listings, "the ids are ours"


def test_holders_in_a_namespace(machine: Machine, table: Wakers) -> None:
    machine.threads = {PID: {100: (100, 1), 101: (101, 7)}, OTHER_PID: {200: (200, 50, 1), 207: (207, 57, 7)}}
    machine.watch(PID, 100, 101)
    machine.watch(OTHER_PID, 200, 207)
    assert table.holders(held_by((PID, 7), (OTHER_PID, 7), (PID, 1), (OTHER_PID, 1))).tolist() == [2, 4, 1, 3]
    assert table.holders(held_by((PID, 57), (OTHER_PID, 50))).tolist() == [0, 0], "of a namespace between"


def test_records_of_threads_have_holders_too(machine: Machine, table: Wakers) -> None:
    machine.threads[PID] = {100: (100, 1), 101: (101, 7)}
    machine.watch(PID, 101)
    assert table.holders(held_by((PID, 7), (PID, 0), dtype=THREAD_DTYPE)).tolist() == [1, 0]


def test_a_thread_that_began_later(machine: Machine, table: Wakers) -> None:
    machine.threads[PID] = {100: (100, 1)}
    machine.watch(PID, 100)
    assert table.holders(held_by((PID, 1))).tolist() == [1]
    machine.threads[PID][101] = (101, 7)
    machine.watch(PID, 101)
    machine.later()
    assert table.holders(held_by((PID, 7))).tolist() == [2]


def test_a_holder_that_is_gone_keeps_its_id(machine: Machine, table: Wakers) -> None:
    """Outside a namespace the id says who it was; the table of threads knows it longer than /proc does."""
    machine.watch(PID, 100, 101)
    machine.threads[PID] = {100: (100,)}
    assert table.holders(held_by((PID, 101))).tolist() == [2]


def test_a_process_that_is_gone_keeps_its_ids(machine: Machine, table: Wakers) -> None:
    """What is left of its events is read after its end."""
    machine.threads = {PID: {100: (100,), 101: (101,)}, OTHER_PID: {207: (207, 7), 200: (200, 1)}}
    machine.watch(PID, 101)
    machine.watch(OTHER_PID, 207)
    assert table.holders(held_by((PID, 101), (OTHER_PID, 7))).tolist() == [1, 2]
    machine.threads = {}
    machine.later()
    assert table.holders(held_by((PID, 101), (OTHER_PID, 7))).tolist() == [1, 2]


def test_a_process_that_was_gone_before_it_was_looked_at(machine: Machine, table: Wakers) -> None:
    """Whether its ids are ours is not known: they are not taken to be."""
    machine.watch(PID, 101)
    assert table.holders(held_by((PID, 101))).tolist() == [0]


def test_a_process_id_that_was_given_again(machine: Machine, table: Wakers) -> None:
    """The second process is in a namespace of its own, or the first one was."""
    for threads, inner in (({100: (100,)}, 100), ({100: (100, 7)}, 7), ({100: (100,)}, 100)):
        machine.threads[PID] = threads
        machine.watch(PID, 100)
        machine.later()
        assert table.holders(held_by((PID, inner))).tolist() == [machine.processes.threads.count]
        assert table.holders(held_by((PID, 107 - inner))).tolist() == [0]


def test_right_after_the_machine_was_started(machine: Machine, table: Wakers) -> None:
    machine.threads[PID], machine.now = {100: (100, 1)}, 0.0
    machine.watch(PID, 100)
    assert table.holders(held_by((PID, 1))).tolist() == [1]


def test_a_holder_that_is_gone_is_looked_for_once(machine: Machine, table: Wakers) -> None:
    machine.threads[PID] = {100: (100, 1)}
    for _ in range(5):
        assert table.holders(held_by((PID, 7))).tolist() == [0]
    assert machine.listings[PID] == 1


def test_a_holder_that_was_seen_before_it_went(machine: Machine, table: Wakers) -> None:
    machine.threads[PID] = {100: (100, 1), 101: (101, 7)}
    machine.watch(PID, 101)
    assert table.holders(held_by((PID, 7))).tolist() == [1]
    machine.threads[PID] = {}
    assert table.holders(held_by((PID, 7))).tolist() == [1]


def test_a_holder_that_is_gone_is_no_thread_of_another_namespace(machine: Machine, table: Wakers) -> None:
    """7 in the namespace of PID is not our 7, which is a kernel thread, say."""
    machine.threads = {PID: {100: (100, 1)}, 7: {7: (7,)}}
    machine.watch(PID, 100)
    machine.watch(7, 7, name="kworker/0:0")
    assert table.holders(held_by((PID, 7))).tolist() == [0]


def test_an_id_of_a_namespace_that_was_given_again(machine: Machine, table: Wakers) -> None:
    machine.threads[PID] = {100: (100, 1), 101: (101, 7)}
    machine.watch(PID, 100, 101)
    assert table.holders(held_by((PID, 7))).tolist() == [2]
    machine.threads[PID] = {100: (100, 1), 155: (155, 7)}
    del machine.processes.threads.index_of[101]
    machine.watch(PID, 155)
    machine.later()
    assert table.holders(held_by((PID, 7))).tolist() == [3]


def test_a_machine_that_makes_processes_for_ever(
    machine: Machine, table: Wakers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakers, "_INNER_LIMIT", 10)
    for pid in range(1000, 1100):
        machine.threads[pid] = {pid: (pid,)}
        table.holders(held_by((pid, pid)))
    assert len(table._inner) <= 10
