"""Threads that did nothing while they were recorded have neither CPU nor run queue, whatever they are."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from bpfprof import abi
from bpfprof.abi.dtypes import THREAD_DTYPE
from bpfprof.capture.row_writer import add_running_time, end_waits_for_cpus
from bpfprof.model.samples import TOTAL_DTYPE
from bpfprof.model.statuses import LastState
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.recording.reader import read_recording
from tests.benchmarks.scheduler_accounts import scheduler_times
from tests.integration.eu_stack import wait_until_asleep
from tests.integration.recorded import PYTHON, bpfprof, needs_root, running

pytestmark = needs_root
ZOMBIE = """
import os
if os.fork() == 0:
    os._exit(0)
os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
print("ready", flush=True)
while not os.read(0, 1): break
"""
_TICK_MS = 10  # CONFIG_HZ is 100 at least: the scheduler's own figures are as old


def switches(tid: int) -> str:
    """Of a thread, with its state; "": it is gone."""
    try:
        lines = Path(f"/proc/{tid}/status").read_text().splitlines()
    except OSError:
        return ""
    return " ".join(line for line in lines if line.startswith(("State:", "voluntary", "nonvoluntary")))


def test_threads_that_did_not_run_were_not_on_a_cpu_nor_in_a_run_queue(tmp_path: Path) -> None:
    """Kernel threads that never ran, threads whose switches the kernel does not tell, stopped ones."""
    stopped = subprocess.Popen([PYTHON, "-S", "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"])
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        before = {tid: (times, switches(tid)) for tid, times in scheduler_times().items()}
        bpfprof("record", "-a", "-S", "-d", 1, "-o", tmp_path / "x.bpfprof")
        after = {tid: (times, switches(tid)) for tid, times in scheduler_times().items()}
    finally:
        stopped.kill()
        stopped.wait()
    with (tmp_path / "x.bpfprof").open("rb") as file:
        profile = build_profile(read_recording(file), ProfileOptions())
    asleep = {tid for tid, seen in before.items() if after.get(tid) == seen and "State:\tR" not in seen[1]}
    assert stopped.pid in asleep
    booked = {
        (thread.thread_name, thread.tid): (thread.on_cpu_ns / 1e6, thread.runqueue_ns / 1e6)
        for thread in profile.threads
        if thread.tid in asleep and max(thread.on_cpu_ns, thread.runqueue_ns) > _TICK_MS * 1e6
    }
    assert not booked, f"(ms on a CPU, on the run queue) {booked}"


@pytest.mark.parametrize(
    ("code", "has_come", "is_denied"),
    [("input()", False, True), ("while True: pass", True, False), ("while True: pass", False, True)],
    ids=["sleeps", "came now", "came long ago"],
)
def test_a_wait_for_a_cpu_that_the_scheduler_denies(code: str, has_come: bool, is_denied: bool) -> None:
    """Of a thread that was woken, was not seen to come, and sleeps, or wants a CPU once more. Of one that has waited
    for all of the time the scheduler says so when it has come."""
    now_ns = time.monotonic_ns()
    with running(PYTHON, "-S", "-c", f"print('ready', flush=True)\n{code}") as target:
        if not has_come and code == "input()":
            wait_until_asleep(target.pid)  # it may have lost its CPU between its line and its wait
        record, row = np.zeros(1, THREAD_DTYPE), np.zeros(1, TOTAL_DTYPE)
        record["state"], record["tgid"] = abi.ThreadState["BP_THREAD_BLOCKED"], target.pid
        ran_ns, delay_ns = scheduler_times()[target.pid]
        record["exec_ns"], record["run_delay_ns"] = max(0, ran_ns - 1_000_000), 0 if has_come else delay_ns
        wait_ns = int(1e6 * _TICK_MS) + delay_ns // 2 if has_come else 1_000_000_000
        row["state"], row["time_ns"] = LastState.BLOCKED, now_ns
        row["wake_ns"], row["since_ns"] = now_ns - wait_ns, now_ns - wait_ns - 1
        assert end_waits_for_cpus(row, record, np.array([target.pid], np.uint32)) == is_denied
    assert (row["wake_ns"][0] == 0) == is_denied


def test_a_zombie_has_no_time(tmp_path: Path) -> None:
    with running(PYTHON, "-S", "-c", ZOMBIE) as target:
        bpfprof("record", "-p", target.pid, "-d", 1, "-o", tmp_path / "x.bpfprof")
    with (tmp_path / "x.bpfprof").open("rb") as file:
        profile = build_profile(read_recording(file), ProfileOptions())
    assert [thread.pid for thread in profile.threads if thread.wall_ns] == [target.pid]


def test_a_thread_of_which_nothing_was_heard() -> None:
    """It slept, or had ended when the kernel side came to know of it: then it ran for no time."""
    now_ns = time.monotonic_ns()
    with subprocess.Popen(["true"]) as ended, running(PYTHON, "-S", "-c", "print('ready', flush=True); input()") as it:
        ended.wait()
        wait_until_asleep(it.pid)
        tids = np.array([ended.pid, it.pid], np.uint32)
        records, rows = np.zeros(2, THREAD_DTYPE), np.zeros(2, TOTAL_DTYPE)
        records["tgid"], records["state"] = tids, abi.ThreadState["BP_THREAD_UNKNOWN"]
        records["exec_ns"][1] = scheduler_times()[it.pid][0]
        records["first_ns"] = records["since_ns"] = rows["since_ns"] = rows["first_ns"] = now_ns - 2_000_000_000
        rows["time_ns"] = now_ns
        assert add_running_time(rows, records, tids) == 0
    assert rows["state"].tolist() == [LastState.DEAD, LastState.BLOCKED]
    assert rows["running_ns"].tolist() == rows["on_cpu_ns"].tolist() == [0, 0]
