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
    pid, cpus = Pid(os.getpid()), os.sched_getaffinity(0)
    if b"se.exec_start" not in scheduler_text(pid, Tid(pid)):
        pytest.skip("no CONFIG_SCHED_DEBUG")
    told_s = 0.0
    for _ in range(30):
        asked = threading.Event()
        thread = threading.Thread(target=asked.wait, daemon=True)
        thread.start()
        tid = Tid(thread.native_id or 0)
        try:
            while (status := thread_status(pid, tid)) is None or status.run_state != "S":
                pass
            begin_s = time.monotonic()
            first = seconds_since_run(pid, [tid])
            time.sleep(0.3)
            second = seconds_since_run(pid, [tid])
            passed_s = time.monotonic() - begin_s
        finally:
            asked.set()
            thread.join()
        # Not known of a thread that the kernel moved to another CPU as it fell asleep: 1 in 10,000 beside other work.
        if tid not in first or tid not in second:
            continue
        told_s = second[tid] - first[tid]
        assert told_s < passed_s + 0.1
        # The scheduler's clock leaves out interrupts, and what a virtual machine has not of its CPU.
        if told_s > 0.2:
            break
    assert told_s > 0.2
    assert os.sched_getaffinity(0) == cpus
    assert seconds_since_run(pid, [Tid((1 << 22) - 1)]) == {}  # there is none
