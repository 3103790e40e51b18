"""Threads that serve nobody are idle: told by what they do and who waits for them, not by their names."""

from __future__ import annotations

from bpfprof.model.profile import Profile
from bpfprof.query.tables.groups import group_waits
from bpfprof.query.work.shares import DEVICE, IDLE, OTHER
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
