"""Which waits are those of threads that have nothing to do."""

from __future__ import annotations

import pytest

from bpfprof.model.syscalls import syscall_numbers
from bpfprof.query.work.waits import find_waits
from tests.unit.profile.views import built
from tests.unit.recording.hand_made import FUTEX, IOCTL, MS, HandMade, Story


def are_idle(made: HandMade, end_ms: float) -> list[bool]:
    """For each wait."""
    return find_waits(built(made, end_ms)).rows["is_idle"].tolist()


POOL, QUEUE, THREADING = "/usr/lib/python3.12/concurrent/futures/thread.py", "/x/queue.py", "/x/threading.py"
LOOP, SELECTORS, SOCKET = "/x/asyncio/base_events.py", "/x/selectors.py", "/x/socket.py"
THREAD_ROOT = [("Thread._bootstrap", THREADING), ("Thread._bootstrap_inner", THREADING), ("Thread.run", THREADING)]
GET = [("Queue.get", QUEUE), ("Condition.wait", THREADING)]
RUN_ONCE = ("BaseEventLoop._run_once", LOOP)
EPOLL, READ = (next(iter(syscall_numbers(name))) for name in ("epoll_wait", "recvfrom"))
PROCESS = "/usr/lib/python3.12/multiprocessing/process.py"
CHILD = ("BaseProcess._bootstrap", PROCESS)
RECEIVE = ("Connection.recv", "/usr/lib/python3.12/multiprocessing/connection.py")
PIN = "/v/site-packages/torch/utils/data/_utils/pin_memory.py"
PIN_MEMORY = [("_pin_memory_loop", PIN), ("_pin_memory_loop.<locals>.do_one_step", PIN)]
TAKE = [("Queue.get", "/usr/lib/python3.12/multiprocessing/queues.py"), RECEIVE]
REDIS = "/v/site-packages/redis/commands/core.py"
HTTP = "/usr/lib/python3.12/http/server.py"


@pytest.mark.parametrize(
    ("frames", "syscall", "is_idle"),
    [
        ([*THREAD_ROOT, ("_worker", POOL)], FUTEX, True),
        ([*THREAD_ROOT, ("_worker", POOL), ("_WorkItem.run", POOL), ("job", "/srv/a.py")], FUTEX, False),
        ([*THREAD_ROOT, ("_worker", "/srv/my_thread.py")], FUTEX, False),
        ([*THREAD_ROOT, ("work", "/srv/a.py"), *GET], FUTEX, True),
        ([*THREAD_ROOT, ("work", "/srv/a.py"), ("next_item", "/srv/a.py"), *GET], FUTEX, True),
        ([*THREAD_ROOT, *[("f", "/srv/a.py")] * 3, *GET], FUTEX, False),
        ([("<module>", "/srv/a.py"), *GET], FUTEX, False),
        ([*THREAD_ROOT, ("work", "/srv/a.py"), *GET], IOCTL, False),
        ([*THREAD_ROOT, *PIN_MEMORY, *TAKE], EPOLL, True),
        ([*THREAD_ROOT, *PIN_MEMORY, ("pin_memory", PIN)], EPOLL, False),
        ([*THREAD_ROOT, *PIN_MEMORY[:1], *PIN_MEMORY, *TAKE], EPOLL, False),
        ([("main", "/srv/a.py"), RUN_ONCE, ("EpollSelector.select", SELECTORS)], EPOLL, True),
        ([("main", "/srv/a.py"), RUN_ONCE, ("Handle._run", "/x/asyncio/events.py")], EPOLL, False),
        ([("main", "/srv/a.py"), ("EpollSelector.select", SELECTORS)], EPOLL, False),
        ([("serve", "/srv/a.py"), ("socket.accept", SOCKET)], next(iter(syscall_numbers("accept4"))), True),
        ([("main", "/srv/a.py"), CHILD, ("Process.run", PROCESS), ("work", "/srv/a.py"), RECEIVE], READ, True),
        ([("main", "/srv/a.py"), ("ask", "/srv/a.py"), RECEIVE], READ, False),
        ([("work", "/srv/a.py"), ("ListCommands.blpop", REDIS), ("read", "/x/redis/connection.py")], READ, True),
        ([("work", "/srv/a.py"), ("BasicKeyCommands.get", REDIS), ("read", "/x/redis/connection.py")], READ, False),
        ([("BaseHTTPRequestHandler.handle_one_request", HTTP), ("SocketIO.readinto", SOCKET)], READ, True),
        (
            [("handle_one_request", HTTP), ("do_POST", "/srv/a.py"), ("SocketIO.readinto", SOCKET)],
            READ,
            False,
        ),
        ([("worker", "/x/multiprocessing/pool.py"), ("SimpleQueue.get", "/x/multiprocessing/queues.py")], FUTEX, True),
    ],
)
def test_idle(made: HandMade, frames: list[tuple[str, str]], syscall: int, is_idle: bool) -> None:
    codes = [made.code(name, filename=file) for name, file in frames]
    busy = made.stack((made.code("busy"), 0, 0))
    stack = made.stack(*((code, 0, 0) for code in reversed(codes)))
    story = Story.begin(made).run(MS).block(MS, stack=busy, syscall=syscall).run(MS)
    story.block(MS, stack=stack, syscall=syscall).run(MS).total()
    assert are_idle(made, 5) == [False, is_idle]


def test_frames_of_the_interpreter_do_not_part_what_belongs_together(made: HandMade) -> None:
    made.processes[0] |= {"version": "3.12.4", "shim_is_python": False, "entry_marks_from": 3}
    once, shim, select = (
        made.code("run._run_once", filename=LOOP),
        made.code("<shim>"),
        made.code("select", filename=SELECTORS),
    )
    stack = made.stack((select, 0, 0), (shim, 0, 3), (once, 0, 0), (shim, 0, 3))
    Story.begin(made).run(MS).block(MS, stack=stack, syscall=EPOLL).run(MS).total()
    assert are_idle(made, 3) == [True]


def test_a_wait_for_the_gil_is_never_idle(made: HandMade) -> None:
    stack = made.stack((made.code("_worker", filename=POOL), 0, 0))
    Story.begin(made).run(MS).block(MS, stack=stack, syscall=FUTEX, flags=2).run(MS).total()
    assert are_idle(made, 3) == [False]
