"""Waits that one of several threads could end, where all of these wait for each other."""

from __future__ import annotations

import pytest

from bpfprof.capture.knots import knots
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.now import WaitsFor

PARENT, CHILD, FEEDER = 10, 20, 21  # threads; the last two are of process 20


def one_of(*tids: int, has_end: bool = False) -> WaitsFor:
    could = tuple((process_of(tid), Tid(tid)) for tid in tids)
    return WaitsFor("pipe", "fd 3: pipe:[9]", could=could, has_end=has_end)


def held_by(tid: int, kind: str = "thread") -> WaitsFor:
    return WaitsFor(kind, "", Tid(tid), process_of(tid))


def process_of(tid: int) -> Pid:
    return Pid(tid // 10 * 10)


def found(waits: dict[int, WaitsFor]) -> dict[int, int]:
    told = {Tid(tid): (process_of(tid), wanted) for tid, wanted in waits.items()}
    return {int(tid): int(other) for tid, (_, other) in knots(told).items()}


JOINED_BEFORE_IT_READ = {PARENT: one_of(CHILD, FEEDER), CHILD: held_by(FEEDER), FEEDER: one_of(PARENT, CHILD, FEEDER)}


def test_a_queue_that_nobody_reads() -> None:
    assert found(JOINED_BEFORE_IT_READ) == {PARENT: CHILD, FEEDER: PARENT}


@pytest.mark.parametrize("tid", JOINED_BEFORE_IT_READ)
def test_whoever_does_something_else_could_end_it(tid: int) -> None:
    for other in (None, WaitsFor("lock", "lock #1"), one_of(*(PARENT, CHILD), has_end=True)):
        waits = {**JOINED_BEFORE_IT_READ, tid: other}
        assert found({key: wanted for key, wanted in waits.items() if wanted is not None}) == {}


def test_what_is_not_known_is_no_knot() -> None:
    assert found({}) == found({PARENT: one_of(30)}) == found({PARENT: held_by(CHILD), CHILD: held_by(PARENT)}) == {}


def test_two_that_wait_for_each_other_beside_those_who_go_on() -> None:
    waits = {PARENT: one_of(PARENT, CHILD), CHILD: one_of(PARENT, CHILD), 30: one_of(40), 31: one_of(PARENT, 40)}
    assert found(waits) == {PARENT: CHILD, CHILD: PARENT}
