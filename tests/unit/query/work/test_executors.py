"""Tasks of an event loop that want more threads than its executor has: what these do is waited for, no idle time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.ids import Pid
from bpfprof.model.profile import TASK_SPAN_DTYPE, Profile, Task
from bpfprof.model.spans import SpanFlag
from bpfprof.model.states import AWAIT_REASONS
from bpfprof.query.answer.verdict import verdict_of
from bpfprof.query.work.table import work_of
from tests.unit.render.profiles import MS, ProfileBuilder, native, python, wait

LIB = "/usr/lib/python3.11"
LOOP = [python("run", f"{LIB}/asyncio/runners.py", 190), native("epoll_wait", "libc.so.6"), wait("poll")]
OF_POOL = (
    python("Thread.run", f"{LIB}/threading.py", 982),
    python("_worker", f"{LIB}/concurrent/futures/thread.py", 83),
)
ITEM = (*OF_POOL, python("_WorkItem.run", f"{LIB}/concurrent/futures/thread.py", 58))
ANYIO = "/v/site-packages/anyio/_backends/_asyncio.py"
OF_ANYIO = (python("WorkerThread.run", ANYIO, 861),)
QUERY = python("query", "/srv/app.py", 3)
GETS = (python("Queue.get", f"{LIB}/queue.py", 171), native("sem_wait", "libc.so.6"), wait("lock"))
HANDLE = python("handle", "/srv/app.py", 6)
ASKS_ANYIO = (HANDLE, python("AsyncIOBackend.run_sync_in_worker_thread", ANYIO, 2441))
SECONDS = 5


def service(
    item: tuple[Frame, ...], tasks: int, coroutines: tuple[Frame, ...], reason: str, busy: int = 2, others: int = 0
) -> Profile:
    """An event loop that idles, two threads of which so many do the item again and again, and tasks that wait; beside
    them other threads that are none of an executor."""
    made = ProfileBuilder()
    made.wait(made.thread(100, "MainThread"), SECONDS * 1000 * MS, LOOP, flags=SpanFlag.IDLE)
    for number in range(2):
        thread = made.thread(101 + number, f"asyncio_{number}")
        frames = (*item, QUERY, native("nanosleep", "libc.so.6"), wait("sleep"))
        for _ in range(SECONDS):
            made.wait(thread, 1000 * MS, list(frames if number < busy else (*item[:-1], *GETS)))
    for number in range(others):
        frames = [python("poll", "/srv/app.py", 40), python("ask", "/srv/app.py", 30), native("recv", "libc.so.6")]
        made.wait(made.thread(200 + number, "poller"), SECONDS * 1000 * MS, [*frames, wait("net")])
    spans = np.zeros(tasks, TASK_SPAN_DTYPE)
    spans["task"], spans["count"] = np.arange(tasks), 1
    for name in ("duration_ns", "stands_for_ns"):
        spans[name] = SECONDS * 1000 * MS
    spans["reason"] = AWAIT_REASONS.index(reason)
    spans["stack"] = made.stack((*coroutines, Frame(FrameKind.AWAIT, reason)))
    names = tuple(Task(Pid(100), "python", f"Task-{number}") for number in range(tasks))
    return replace(made.build(), tasks=names, task_spans=spans)


@pytest.mark.parametrize(
    ("item", "coroutines", "reason"),
    [(ITEM, (HANDLE,), "executor"), (OF_ANYIO, ASKS_ANYIO, "lock"), (OF_ANYIO, ASKS_ANYIO, "future")],
)
def test_who_waits_for_sleeping_threads_of_an_executor(
    item: tuple[Frame, ...], coroutines: tuple[Frame, ...], reason: str
) -> None:
    profile = service(item, 9, coroutines, reason)
    verdict = verdict_of(profile, work_of(profile))
    assert verdict.bound == "sleep" and verdict.where and verdict.where.name == "query"
    assert verdict.sentence.endswith("query (app.py:3); 9 tasks have or want the 2 threads of an executor.")
    assert verdict.advice.startswith("give the executor more threads")


@pytest.mark.parametrize(
    ("tasks", "coroutines", "reason"),
    [(2, (HANDLE,), "executor"), (9, (HANDLE,), "future"), (9, (HANDLE,), "sleep"), (0, (HANDLE,), "executor")],
)
def test_threads_that_are_enough_or_that_no_task_waits_for(
    tasks: int, coroutines: tuple[Frame, ...], reason: str
) -> None:
    """One that looks now and then whether there is something to do may run in an executor, too."""
    profile = service(ITEM, tasks, coroutines, reason)
    verdict = verdict_of(profile, work_of(profile))
    assert verdict.bound == "idle" and "executor" not in verdict.sentence


def test_threads_that_wait_for_work_do_not_count() -> None:
    assert work_of(service(OF_ANYIO, 9, ASKS_ANYIO, "lock", busy=1)).wanted_threads == (9, 1)
    assert work_of(service(OF_ANYIO, 9, ASKS_ANYIO, "lock", busy=0)).wanted_threads is None


def test_where_others_are_what_it_waits_for_they_are_what_is_told() -> None:
    profile = service(ITEM, 9, (HANDLE,), "executor", others=7)
    verdict = verdict_of(profile, work_of(profile))
    assert verdict.bound == "net" and "executor" not in verdict.sentence + verdict.advice
