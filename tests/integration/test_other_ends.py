"""Who has the other end of a pipe or a socket that a thread waits at: of its own process, and others."""

from __future__ import annotations

import pytest

from bpfprof.capture.now import process_now
from bpfprof.capture.polled import OPEN_ENDS
from bpfprof.model.ids import Pid, Tid
from bpfprof.proc import tasks
from tests.integration.eu_stack import wait_until_asleep
from tests.integration.recorded import ALL_INTERPRETERS, needs_root, running

pytestmark = needs_root
VERSIONS = [it for it in ("3.8", "debian-3.11", "3.13") if it in ALL_INTERPRETERS]

SOURCE = """import os, socket, sys, threading, time
def beside(count=1):
    for _ in range(count):
        threading.Thread(target=time.sleep, args=(60,), name="beside", daemon=True).start()
def child(*closed):
    if not os.fork():
        time.sleep(60)
    for end in closed:
        os.close(end)
def fill(end):
    while True:
        os.write(end, bytes(4096))
r, w = os.pipe()
one, other = socket.socketpair()
{before}
print("ready", flush=True)
{hangs}
"""
READS, FILLS, RECEIVES = "os.read(r, 1)", "fill(w)", "one.recv(1)"
# What is before, and what hangs -> who has the other end.
CASES = {
    ("beside()", READS): "beside",
    ("beside()", FILLS): "beside",
    ("beside()", RECEIVES): "beside",
    ("child()", READS): "child",
    ("child(w)", READS): "child",
    ("child(r)", FILLS): "child",
    ("child(other.detach())", RECEIVES): "child",
    ("beside(2)", READS): None,
    ("beside(2)", FILLS): None,
    ("beside(2)", RECEIVES): None,
    ("beside(); child()", READS): None,
    ("", READS): "nobody",
    ("", FILLS): "nobody",
    ("", RECEIVES): "nobody",
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("before", "hangs"), CASES)
def test_who_has_the_other_end(before: str, hangs: str, version: str) -> None:
    with running(ALL_INTERPRETERS[version], "-c", SOURCE.format(before=before, hangs=hangs)) as target:
        wait_until_asleep(target.pid)
        OPEN_ENDS.expire()
        threads = {thread.tid: thread for thread in process_now(Pid(target.pid)).threads}
        children = tasks.children(Pid(target.pid))
    wanted = threads[Tid(target.pid)].waits_for
    assert wanted is not None
    named = "nobody" if wanted.nobody else "child" if wanted.held_by_pid in children else None
    if wanted.held_by_tid in threads:
        named = threads[wanted.held_by_tid].name
    assert named == CASES[before, hangs], wanted
