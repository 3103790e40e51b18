"""The priority of bpfprof's own threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from bpfprof.proc import own_process
from bpfprof.proc.own_process import all_usual, go_first_for

LONG_S = 60.0


def now() -> tuple[int, int]:
    return os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root raises priorities")
def test_all_go_first_with_what_they_start_until_all_are_as_before() -> None:
    before, found = now(), list[bool]()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        go_first_for(LONG_S, other.pid)
        try:
            is_first = os.sched_getscheduler(0) == os.SCHED_RR or now()[1] == -20
            assert is_first and os.sched_getscheduler(other.pid) == os.sched_getscheduler(0)
            started = threading.Thread(target=lambda: found.append(now() != before))
            started.start()
            started.join()
        finally:
            all_usual(other.pid)
        assert found == [True] and now() == before and os.sched_getscheduler(other.pid) == before[0]
        other.communicate(b"\n")


def test_memory_that_was_freed_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Now and then: what is in use behind it would keep it. Where the libc cannot, nothing is done."""
    calls: list[int] = []
    monkeypatch.setattr(own_process, "_given_back_s", -1e9)
    monkeypatch.setattr(own_process.ctypes, "CDLL", lambda _: SimpleNamespace(malloc_trim=calls.append))
    own_process.give_back_memory()
    own_process.give_back_memory()
    assert calls == [0]
    monkeypatch.setattr(own_process, "_given_back_s", -1e9)
    monkeypatch.setattr(own_process.ctypes, "CDLL", lambda _: SimpleNamespace())
    own_process.give_back_memory()
