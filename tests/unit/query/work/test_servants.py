"""Threads that serve nobody are idle: told by what they do and who waits for them, not by their names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bpfprof.model.frames import Frame
from bpfprof.model.profile import Profile
from bpfprof.query.tables.groups import group_waits
from bpfprof.query.work.shares import DEVICE, IDLE, NET, OTHER
from bpfprof.query.work.table import work_of
from tests.unit.render.profiles import MS, OFF_CPU, ON_CPU, ProfileBuilder, native, python, wait

MAIN = python("main", line=3)
JOIN = [MAIN, python("Queue.get", "/usr/lib/python3.11/queue.py", 171)]
POLL = [native("clone3"), native("", "/usr/lib/libcuda.so.1"), native("poll"), wait("device")]
IOCTL = [native("clone3"), native("work", "/srv/libdriver.so"), native("ioctl"), wait("syscall ioctl")]


def of_thread(profile: Profile, thread: int) -> dict[int, int]:
    rows = work_of(profile).rows
    rows = rows[rows["thread"] == thread]
    return {share: int(rows["ns"][rows["share"] == share].sum()) for share in set(rows["share"].tolist())}


def test_a_drivers_thread_that_polls_is_idle() -> None:
    made = ProfileBuilder()
    main, poller = made.thread(100, "MainThread"), made.thread(101, "any name")
    for _ in range(20):
        made.spend(main, ON_CPU, 100 * MS, [MAIN])
        made.spend(poller, OFF_CPU, 100 * MS, POLL)
    assert of_thread(made.build(), poller) == {IDLE: 2_000 * MS}


LIBTORCH, LIBUV = "/v/torch/lib/libtorch_cpu.so", "/v/uvloop/loop.cpython-312.so"
AUTOGRAD = [
    native("clone3"),
    native("torch::autograd::Engine::thread_main(std::shared_ptr<GraphTask> const&)", LIBTORCH),
    native("torch::autograd::ReadyQueue::pop()", LIBTORCH),
    native("pthread_cond_wait"),
    wait("lock"),
]
POOL = [native("clone3"), native("worker", LIBUV), native("uv_cond_wait", LIBUV), wait("lock")]


@pytest.mark.parametrize("stack", [AUTOGRAD, POOL], ids=["autograd", "libuv"])
@pytest.mark.parametrize("waited_ms", [0, 10])
def test_a_worker_that_waits_for_work_is_idle_unless_it_is_waited_for(stack: list[Frame], waited_ms: int) -> None:
    made = ProfileBuilder()
    main, worker = made.thread(100, "MainThread"), made.thread(101)
    for _ in range(20):
        made.spend(main, ON_CPU, (100 - waited_ms) * MS, [MAIN])
        if waited_ms:
            made.wait(main, waited_ms * MS, [*JOIN, wait("lock")], waker=made.thread_waker(worker))
        made.spend(worker, OFF_CPU, 95 * MS, stack)
        made.spend(worker, ON_CPU, 5 * MS, stack[:2])
    assert of_thread(made.build(), worker).get(IDLE, 0) == (0 if waited_ms else 1_900 * MS)


def test_a_thread_of_the_kernel_waits_for_work_where_no_python_runs_either() -> None:
    made = ProfileBuilder()
    worker, server = made.thread(2, "kworker/0:1", pid=2, process="kworker/0:1"), made.thread(300, pid=300)
    made.threads[worker] = replace(made.threads[worker], is_kernel_thread=True)
    for thread in (worker, server):
        made.spend(thread, OFF_CPU, 100 * MS, [native("main", "/srv/server"), wait("net")])
    profile = made.build()
    assert (of_thread(profile, worker), of_thread(profile, server)) == ({IDLE: 100 * MS}, {NET: 100 * MS})


def test_one_that_works_is_not() -> None:
    polls = [native("clone3"), native("", "/srv/libfeeder.so"), *POLL[2:]]
    made = ProfileBuilder()
    main, poller = made.thread(100, "MainThread"), made.thread(101)
    for _ in range(20):
        made.spend(main, ON_CPU, 100 * MS, [MAIN])
        made.spend(poller, OFF_CPU, 60 * MS, polls)
        made.spend(poller, ON_CPU, 40 * MS, polls[:-1])
    assert of_thread(made.build(), poller)[DEVICE] == 1_200 * MS


def test_nor_one_that_is_waited_for() -> None:
    made = ProfileBuilder()
    main, worker = made.thread(100, "MainThread"), made.thread(101)
    for _ in range(20):
        made.spend(worker, OFF_CPU, 95 * MS, IOCTL)
        made.spend(worker, ON_CPU, 5 * MS, IOCTL[:-1])
        made.wait(main, 100 * MS, [*JOIN, wait("lock")], waker=made.thread_waker(worker))
    assert of_thread(made.build(), worker)[OTHER] == 1_900 * MS


def test_nor_one_of_which_that_is_not_known() -> None:
    made = ProfileBuilder()
    main, worker = made.thread(100, "MainThread"), made.thread(101)
    made.spend(main, OFF_CPU, 1_000 * MS, [*JOIN, wait("lock")])
    made.spend(main, ON_CPU, 1_000 * MS, [MAIN])
    for _ in range(20):
        made.spend(worker, OFF_CPU, 100 * MS, IOCTL)
    assert IDLE not in of_thread(made.build(), worker)


def test_off_the_cpu_what_they_wait_for_is_apart() -> None:
    """In a process that runs Python; what waits for a disk has something to do, and so may a thread of a C program."""
    made = ProfileBuilder()
    main, poller, reader = made.thread(100, "MainThread"), made.thread(101), made.thread(102)
    other, thread = made.thread(200, "server", pid=200), made.thread(201, pid=200)
    read = [native("clone3"), native("read", "/srv/libdriver.so"), wait("disk")]
    for _ in range(20):
        made.wait(main, 100 * MS, [MAIN, wait("sleep")])
        made.wait(poller, 100 * MS, POLL)
        made.wait(reader, 100 * MS, read)
        made.wait(other, 100 * MS, [native("main"), wait("net")])
        made.wait(thread, 100 * MS, [native("clone3"), native("work", "/srv/server"), wait("net")])
    profile = made.build()
    found = group_waits(profile, "thread", 10, idle_threads=work_of(profile).serve_nobody)
    assert sorted(group.threads[0].value for group in found.groups) == [main, reader, other, thread]
    assert [group.threads[0].value for group in found.idle] == [poller]
