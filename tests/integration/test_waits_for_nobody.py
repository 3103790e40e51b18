"""Waits for what nobody has, as conditions and semaphores: they are no locks whose holder is not known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bpfprof.capture.now import process_now
from bpfprof.model.ids import Pid, Tid
from tests import packages
from tests.integration.eu_stack import wait_until_asleep
from tests.integration.recorded import ALL_INTERPRETERS, PYTHON, bpfprof, needs_root, running

pytestmark = needs_root
VERSIONS = [it for it in ("3.8", "debian-3.11", "3.13", "sid-3.14") if it in ALL_INTERPRETERS]

SOURCE = """import multiprocessing, os, queue, signal, threading, time
of = multiprocessing.get_context("fork")
def beside(*_):
    threading.Thread(target=time.sleep, args=(60,), name="beside", daemon=True).start()
def killed(lock):
    child = of.Process(target=lambda: (lock.acquire(), os.kill(os.getpid(), 9)))
    child.start()
    child.join()
    return lock
def handled(value):
    signal.signal(signal.SIGTERM, print)
    return value
def notified(condition, taken):
    # It is notified, but its lock is taken by then, by who keeps it.
    def notify():
        with condition:
            condition.notify()
            taken.wait()
    condition.acquire()
    threading.Thread(target=notify, name="beside", daemon=True).start()
    condition.wait()
def joined():
    items = of.JoinableQueue()
    items.put(1)
    items.join()
print("ready", flush=True)
{hangs}
"""
# What hangs -> its kind, whether it is known that nobody who is alive can end it, and who has it.
CASES = {
    "threading.Event().wait()": ("condition", True, ""),
    "handled(threading.Event()).wait()": ("signal", False, ""),
    "beside(); threading.Event().wait()": ("condition", False, ""),
    "beside(); handled(queue.Queue()).get()": ("condition", False, ""),
    "notified(threading.Condition(), threading.Event())": ("lock", False, "beside"),
    "of.Event().wait()": ("condition", False, ""),
    "of.Barrier(2).wait()": ("condition", False, ""),
    "joined()": ("condition", False, ""),
    "of.Semaphore(0).acquire()": ("semaphore", False, ""),
    "lock = killed(of.Semaphore(2)); lock.acquire(); lock.acquire()": ("semaphore", False, ""),
    "killed(of.Lock()).acquire()": ("lock", True, ""),
    "killed(of.BoundedSemaphore(1)).acquire()": ("lock", True, ""),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("hangs", CASES)
def test_what_nobody_has_is_no_lock(hangs: str, version: str) -> None:
    with running(ALL_INTERPRETERS[version], "-c", SOURCE.format(hangs=hangs)) as target:
        wait_until_asleep(target.pid)
        threads = {thread.tid: thread for thread in process_now(Pid(target.pid)).threads}
    wanted = threads[Tid(target.pid)].waits_for
    assert wanted is not None and wanted.name.startswith(("a ", f"{wanted.kind} #"))
    name = threads[wanted.held_by_tid].name if wanted.held_by_tid else ""
    assert (wanted.kind, bool(wanted.nobody), name) == CASES[hangs], wanted


def test_who_waits_for_a_signal_is_idle(tmp_path: Path) -> None:
    path, hangs = tmp_path / "x.bpfprof", "handled(threading.Event()).wait()"
    with running(PYTHON, "-c", SOURCE.format(hangs=hangs)) as target:
        wait_until_asleep(target.pid)
        bpfprof("record", "-p", target.pid, "-d", 1.5, "-o", path)
    report = json.loads(bpfprof("report", path, "-f", "json").stdout)
    assert report["verdict"]["bound"] == "idle" and not any(thread["stuck"] for thread in report["threads"])


def test_greenlets_that_wait_are_said_not_to_be_read() -> None:
    environment = {"PYTHONPATH": packages.folder("3.12", "gevent")}
    source = "import gevent.lock; gevent.spawn_later(60, print); gevent.spawn(print, 'ready', flush=True);"
    source += "gevent.lock.Semaphore(0).acquire()"
    with running(ALL_INTERPRETERS["3.12"], "-c", source, env=environment) as target:
        wait_until_asleep(target.pid)
        said = bpfprof("dump", target.pid).stderr
    assert "greenlets that wait are not read: a hub runs in MainThread" in said
