"""Which stacks are those of threads that have nothing to do: they wait for work, and a report need not show them first.

Told by the Python frames alone. A thread that waits for the answer to something it asked for is not idle.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.stack_functions import Mark, StackFunctions
from bpfprof.model.reasons import REASONS

Bools = npt.NDArray[np.bool_]

# The wait itself counts only with these reasons: else the thread has just been given something to do.
IDLE_REASONS = tuple(reason.word for reason in REASONS if reason.may_idle)

# A stack is idle if its innermost Python frame is one of these: they call what waits in C.
_INNERMOST: tuple[Mark, ...] = (
    ("concurrent/futures/thread.py", "_worker"),  # queue.SimpleQueue.get, the next item
    ("multiprocessing/pool.py", "_handle_tasks"),
    ("socket.py", "accept"),
    ("gunicorn/workers/sync.py", "wait"),
    ("gunicorn/arbiter.py", "sleep"),
    ("sched.py", "run"),
    ("waitress/wasyncore.py", "poll"),
    ("pika/adapters/select_connection.py", "poll"),
    # An event loop in C (uvloop) below the function that runs it.
    ("asyncio/runners.py", "run"),
    ("uvloop/__init__.py", "run"),
)
# Or if one of these calls the second, which does nothing but wait, whatever is called below that.
_CALLS: tuple[tuple[Mark, Mark], ...] = (
    (("asyncio/base_events.py", "_run_once"), ("selectors.py", "select")),
    (("socketserver.py", "serve_forever"), ("selectors.py", "select")),
    # The next request of a connection, up to its first line.
    (("http/server.py", "handle_one_request"), ("socket.py", "readinto")),
    (("wsgiref/simple_server.py", "handle"), ("socket.py", "readinto")),
    (("django/core/servers/basehttp.py", "handle_one_request"), ("socket.py", "readinto")),
    (("gunicorn/workers/gthread.py", "run"), ("selectors.py", "select")),
    (("kombu/asynchronous/hub.py", "create_loop"), ("kombu/utils/eventio.py", "poll")),
    (("twisted/internet/base.py", "mainLoop"), ("twisted/internet/epollreactor.py", "doPoll")),
    (("trio/_core/_run.py", "unrolled_run"), ("trio/_core/_io_epoll.py", "get_events")),
    (("multiprocessing/pool.py", "worker"), ("multiprocessing/queues.py", "get")),
    (("multiprocessing/pool.py", "_handle_results"), ("multiprocessing/connection.py", "recv")),
    (("multiprocessing/pool.py", "_handle_workers"), ("multiprocessing/pool.py", "_wait_for_updates")),
    (("multiprocessing/queues.py", "_feed"), ("threading.py", "wait")),
    (("concurrent/futures/process.py", "_process_worker"), ("multiprocessing/queues.py", "get")),
    (("concurrent/futures/process.py", "wait_result_broken_or_wakeup"), ("multiprocessing/connection.py", "wait")),
    (("torch/utils/data/_utils/worker.py", "_worker_loop"), ("multiprocessing/queues.py", "get")),
    (("threading.py", "run"), ("threading.py", "wait")),  # threading.Timer
)
# Or if it asks a server for the next item, which comes when there is one, and waits there in whatever that calls.
_NEXT_ITEMS = "blpop brpop brpoplpush blmove blmpop bzpopmin bzpopmax bzmpop xread xreadgroup"
_ASKS: tuple[Mark, ...] = (
    *(("redis/commands/core.py", name) for name in _NEXT_ITEMS.split()),
    ("redis/client.py", "try_read"),  # of PubSub.parse_response
)
# Or if a thread or process waits for work in its own outermost function, or in one that this calls at once: then no one
# waits for it either. Thread._bootstrap_inner and Process._bootstrap call run(), which calls the target.
_ROOTS: tuple[Mark, ...] = (("threading.py", "_bootstrap_inner"), ("multiprocessing/process.py", "_bootstrap"))
_WORK_WAITS: tuple[Mark, ...] = (
    ("queue.py", "get"),
    ("multiprocessing/queues.py", "get"),
    ("multiprocessing/connection.py", "recv"),
    ("multiprocessing/connection.py", "recv_bytes"),
)
_FROM_ROOT_FRAMES = 4  # run, the target, one more function, get


def idle_stacks(frames: StackFunctions) -> Bools:
    """For each stack by its number, whether a thread that waits there is idle."""
    is_idle = np.zeros(frames.stack_count + 1, np.bool_)
    if not len(frames.stack):
        return is_idle
    found = np.zeros(len(frames.stack), np.bool_)
    for mark in _INNERMOST:
        found |= frames.are(mark) & frames.is_innermost
    for mark in _ASKS:
        found |= frames.are(mark)
    for caller, callee in _CALLS:
        found[:-1] |= frames.are(callee)[:-1] & frames.are(caller)[1:] & (frames.stack[:-1] == frames.stack[1:])
    root = np.full(len(is_idle), -_FROM_ROOT_FRAMES - 1, np.int64)
    for mark in _ROOTS:
        roots = np.flatnonzero(frames.are(mark))[::-1]  # the innermost of a stack last
        root[frames.stack[roots]] = frames.depth[roots]
    for mark in _WORK_WAITS:
        found |= frames.are(mark) & (frames.depth - root[frames.stack] <= _FROM_ROOT_FRAMES)
    is_idle[frames.stack[found]] = True
    return is_idle


def is_idle_stack(frames: Sequence[tuple[str, str]]) -> bool:
    """The same of one stack: its Python frames as (path, qualified name), innermost first."""

    def has(index: int, mark: Mark) -> bool:
        path, function = frames[index]
        return function.rpartition(".")[2] == mark[1] and ("/" + path).endswith("/" + mark[0])

    if frames and any(has(0, mark) for mark in _INNERMOST):
        return True
    if any(has(index, mark) for index in range(len(frames)) for mark in _ASKS):
        return True
    pairs = range(len(frames) - 1)
    if any(has(index, callee) and has(index + 1, caller) for index in pairs for caller, callee in _CALLS):
        return True
    roots = [index for index in range(len(frames)) if any(has(index, mark) for mark in _ROOTS)]
    first = max(0, roots[0] - _FROM_ROOT_FRAMES) if roots else len(frames)
    return any(has(index, mark) for index in range(first, len(frames)) for mark in _WORK_WAITS)
