"""Which threads are remembered."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from bpfprof.capture.threads import Threads
from bpfprof.kernel.tables import Tables
from bpfprof.model.ids import Pid, Tid


def test_threads_that_ended_are_forgotten_but_not_those_that_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """After execve in another thread the first one's end is told, and its tid goes on."""
    child = subprocess.Popen(["true"])
    child.wait()
    gone, alive = Tid(child.pid), Tid(os.getpid())
    threads = Threads(Tables({}))
    for tid in (gone, alive):
        threads.add(0, Pid(tid), tid, 0, "python")
        threads.give_name(tid, "MainThread")
        threads.ended(tid)
    assert set(threads.index_of) == {gone, alive}, "a wait that it ended may come"
    later_s = time.monotonic() + 31
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    threads.ended(Tid(1 << 30))  # of no thread that is known
    assert threads.index_of == {alive: 1}
