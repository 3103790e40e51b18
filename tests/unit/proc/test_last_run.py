"""How long a thread has slept, against the clock; and that the one who asks is left where it was."""

from __future__ import annotations

import os
import threading
import time

import pytest

from bpfprof.model.ids import Pid, Tid
from bpfprof.proc.last_run import seconds_since_run
from bpfprof.proc.tasks import scheduler_text, thread_status


def test_it_is_the_time_since_the_thread_began_to_sleep() -> None:
    pid, asked = Pid(os.getpid()), threading.Event()
    if b"se.exec_start" not in scheduler_text(pid, Tid(pid)):
        pytest.skip("no CONFIG_SCHED_DEBUG")
    thread = threading.Thread(target=asked.wait, daemon=True)
    thread.start()
    tid, cpus = Tid(thread.native_id or 0), os.sched_getaffinity(0)
    try:
        while (status := thread_status(pid, tid)) is None or status.run_state != "S":
            pass
        begin_s = time.monotonic()
        first = seconds_since_run(pid, [tid])[tid]
        time.sleep(0.3)
        second = seconds_since_run(pid, [tid])[tid]
        passed_s = time.monotonic() - begin_s
    finally:
        asked.set()
        thread.join()
    assert 0.2 < second - first < passed_s + 0.1
    assert os.sched_getaffinity(0) == cpus
    assert seconds_since_run(pid, [Tid((1 << 22) - 1)]) == {}  # there is none
