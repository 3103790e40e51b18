"""What cuts a wait for the targets short, beside their end."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time

from bpfprof.capture.stop import StopRequest
from bpfprof.capture.targets import Targets
from bpfprof.model.ids import Pid

_LONG_S, _SOON_S = 60.0, 30.0  # a busy machine takes its time


def test_another_thread_has_something_for_it() -> None:
    targets, begin_s = Targets(()), time.monotonic()
    other = threading.Timer(0.05, targets.wake)
    other.start()
    assert not targets.all_ended(_LONG_S) and targets.is_told
    assert time.monotonic() - begin_s < _SOON_S
    other.join()
    assert not targets.all_ended(0.0) and not targets.is_told and not targets.pause(0.0)  # once
    for _ in range(1 << 17):  # more than its pipe holds
        targets.wake()
    assert targets.pause(_LONG_S)
    assert not targets.all_ended(_LONG_S) and targets.is_told
    targets.close()


def test_births_can_wait_where_an_end_cannot() -> None:
    """Of a ring of the kernel side, for which a pipe stands."""
    births, tell = os.pipe()
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    targets = Targets.open((Pid(child.pid),))
    targets.wake_on(births)
    os.write(tell, b"x")
    begin_s = time.monotonic()
    assert not targets.pause(0.2) and time.monotonic() - begin_s >= 0.2
    assert not targets.all_ended(_LONG_S) and targets.woken_by == {births}
    child.communicate()
    assert targets.pause(_LONG_S) and targets.all_ended(_LONG_S)
    assert not targets.pause(0.0)
    targets.close()
    os.close(births)
    os.close(tell)


def test_a_signal_that_asks_for_an_end() -> None:
    targets, begin_s = Targets(()), time.monotonic()
    with StopRequest() as stop:
        targets.wake_while(stop.fd)
        main = threading.main_thread().ident or 0
        other = threading.Timer(0.05, lambda: signal.pthread_kill(main, signal.SIGTERM))
        other.start()
        assert not targets.all_ended(_LONG_S) and not targets.is_told
        assert time.monotonic() - begin_s < _SOON_S
        assert stop.requested and stop.count == 1
        begin_s = time.monotonic()
        targets.all_ended(0.2)
        assert time.monotonic() - begin_s >= 0.2  # it was taken
        other.join()
        fd = stop.fd
    assert stop.fd < 0 <= fd
    targets.close()
