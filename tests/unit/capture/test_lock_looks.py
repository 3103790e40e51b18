"""Looks at threads that wait: which of those for the GIL and for one of several threads are a deadlock."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from bpfprof import abi
from bpfprof.abi.dtypes import THREAD_DTYPE
from bpfprof.capture import lock_looks
from bpfprof.capture.lock_looks import _Look, _of_the_gil, _with_knots, look_at_waits
from bpfprof.capture.now import is_at_the_gil
from bpfprof.capture.pace import Pace
from bpfprof.capture.process import Process
from bpfprof.capture.processes import Processes
from bpfprof.capture.session import Session
from bpfprof.code.maps import NativeCode
from bpfprof.kernel.events import ThreadTable
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.now import GIL, WAITING, ThreadNow, WaitsFor
from bpfprof.proc.memory import ProcessMemory, TimeIsOverError, reads_until
from bpfprof.recording.writer import Sink

PID = Pid(1)


def look(tid: int, kind: str, holder: int | None = None, could: tuple[int, ...] = (), is_idle: bool = False) -> _Look:
    of_several = tuple((PID, Tid(each)) for each in could)
    wanted = WaitsFor(kind, "", Tid(holder) if holder else None, PID if holder else None, could=of_several)
    return _Look(0, 1, PID, Tid(tid), wanted, is_idle)


def test_who_wants_the_gil_whose_holder_waits_for_it_is_kept() -> None:
    """Its own wait is a new one each 5 ms; the holder's is not."""
    wants, holder = look(2, GIL, 1), look(1, "lock", 2)
    assert _of_the_gil([wants, holder], [holder]) == [wants]
    through = look(3, "lock", 2)
    assert _of_the_gil([wants, look(1, "lock", 3), through], [look(1, "lock", 3), through]) == [wants]


def test_who_wants_the_gil_whose_holder_goes_on_or_waits_for_others_is_not() -> None:
    wants = look(2, GIL, 1)
    assert not _of_the_gil([wants], [])
    assert not _of_the_gil([wants], [look(1, "lock", 3)])
    assert not _of_the_gil([wants], [look(1, "lock", 3), look(3, "lock", 1)])
    assert not _of_the_gil([wants], [wants, look(1, "lock", 2)]), "it is kept already"


def thread(tid: int, holds_gil: bool = False, wanted: WaitsFor | None = None) -> ThreadNow:
    return ThreadNow(Tid(tid), "", WAITING, "lock", None, False, holds_gil, wanted, [])


def test_a_second_look_is_for_a_lock_of_who_has_the_gil_alone() -> None:
    """A look takes 10 to 30 ms of CPU time, and the end of a recording waits for it."""
    at_lock, joins = (WaitsFor(kind, "", Tid(2), PID) for kind in ("lock", "thread"))
    assert is_at_the_gil([thread(1, True, at_lock), thread(2)])
    assert not is_at_the_gil([thread(1, True, at_lock), thread(2, wanted=WaitsFor(GIL, "GIL", Tid(1), PID))])
    assert not is_at_the_gil([thread(1, True, joins), thread(2)]), "a join has given it back"
    assert not is_at_the_gil([thread(1, False, at_lock), thread(2)]) and not is_at_the_gil([thread(1, True), thread(2)])


def test_who_is_idle_is_left_out_unless_it_is_in_a_knot() -> None:
    parent, child = look(1, "socket", could=(1, 2)), look(2, "socket", could=(1, 2), is_idle=True)
    kept = {it.tid: it.waits_for.held_by_tid for it in _with_knots([parent, child, look(3, "pipe", is_idle=True)])}
    assert kept == {1: 2, 2: 1}
    alone = _with_knots([parent, look(3, "lock")])
    assert [(it.tid, it.waits_for.held_by_tid) for it in alone] == [(1, None), (3, None)]


@pytest.mark.parametrize("ends", [True, False])
def test_a_process_may_end_between_looks(ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffers are drained then, which tells of it."""
    pids = [Pid(os.getpid()), Pid(os.getppid())]
    looked: list[Pid] = []
    drains: list[int] = []
    records = np.zeros(2, THREAD_DTYPE)
    records["tgid"], records["state"], records["since_ns"] = pids, abi.ThreadState["BP_THREAD_UNKNOWN"], 1
    table = cast(ThreadTable, SimpleNamespace(read=lambda: (np.array(pids, np.uint32), records)))
    processes = SimpleNamespace(by_pid={pid: SimpleNamespace(pid=pid, interpreter=object()) for pid in pids})

    def waiting_now(process: Process, _code: NativeCode | None) -> list[ThreadNow]:
        looked.append(process.pid)
        return []

    monkeypatch.setattr(lock_looks, "waiting_now", waiting_now)

    def drain() -> None:
        drains.append(len(drains))
        if ends and len(drains) == 2:
            processes.by_pid.clear()

    left_out = look_at_waits(cast(Processes, processes), table, cast(Sink, None), lambda: False, meanwhile=drain)
    assert (left_out, len(looked), len(drains)) == (0, 1 if ends else 2, 2)


def test_a_drain_between_looks_is_not_cut_when_their_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has taken out of the buffers would be lost."""
    session, read = Session.__new__(Session), bytearray(8)
    session.pace = Pace(of_all=False)
    found: list[bytes | None] = []
    with ProcessMemory(Pid(os.getpid())) as memory:
        monkeypatch.setattr(Session, "_drain", lambda _: found.append(memory.read(id(read), 8)))
        with reads_until(lambda: True):
            session._drain_when_due()
            with pytest.raises(TimeIsOverError):
                memory.read(id(read), 8)
    assert found[0] is not None
