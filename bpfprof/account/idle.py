"""Which stacks are those of threads that have nothing to do: they wait for work, and a report need not show them first.

Told by the Python frames alone. A thread that waits for the answer to something it asked for is not idle.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bpfprof import array_types as npt
from bpfprof.recording.reader import Recording
from bpfprof.recording.tables import RecordedCode

Bools = npt.NDArray[np.bool_]
_Mark = tuple[str, str]  # (end of the file's path, function without its class)

# The wait itself counts only with these reasons: else the thread has just been given something to do.
IDLE_REASONS = ("lock", "poll", "net", "pipe", "sleep")

# A stack is idle if its innermost Python frame is one of these: they call what waits in C.
_INNERMOST: tuple[_Mark, ...] = (
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
_CALLS: tuple[tuple[_Mark, _Mark], ...] = (
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
_ASKS: tuple[_Mark, ...] = (
    *(("redis/commands/core.py", name) for name in _NEXT_ITEMS.split()),
    ("redis/client.py", "try_read"),  # of PubSub.parse_response
)
# Or if a thread or process waits for work in its own outermost function, or in one that this calls at once: then no one
# waits for it either. Thread._bootstrap_inner and Process._bootstrap call run(), which calls the target.
_ROOTS: tuple[_Mark, ...] = (("threading.py", "_bootstrap_inner"), ("multiprocessing/process.py", "_bootstrap"))
_WORK_WAITS: tuple[_Mark, ...] = (
    ("queue.py", "get"),
    ("multiprocessing/queues.py", "get"),
    ("multiprocessing/connection.py", "recv"),
    ("multiprocessing/connection.py", "recv_bytes"),
)
_FROM_ROOT_FRAMES = 4  # run, the target, one more function, get


def idle_stacks(recording: Recording) -> Bools:
    """Of each stack by its number, whether a thread that waits there is idle."""
    stacks, frames = recording.stacks, _Frames(recording)
    is_idle = np.zeros(len(stacks) + 1, np.bool_)
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

    def has(index: int, mark: _Mark) -> bool:
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


class _Frames:
    """All Python frames of the recording that are functions, leaf first stack by stack. depth: 0 for the outermost."""

    def __init__(self, recording: Recording) -> None:
        stacks = recording.stacks
        counts = stacks["python_count"].astype(np.int64)
        rows = recording.python_frames[: int(counts.sum())]
        stack = np.repeat(np.arange(1, len(stacks) + 1), counts)
        # Where an entry of the interpreter is a frame of its own, it is none of a function.
        first_mark = np.array(
            [256 if it.shim_is_python or it.python is None else it.entry_marks_from for it in recording.processes]
            or [256]
        )
        process = np.minimum(stacks["process"], len(first_mark) - 1)
        kept = rows["mark"] < first_mark[process][stack - 1]
        self._codes, self.stack = rows["code"][kept].astype(np.int64), stack[kept]
        self._code_rows = [RecordedCode(0, "", "", 0, "", b""), *recording.codes]
        self._codes[self._codes >= len(self._code_rows)] = 0
        self.is_innermost = np.append(True, self.stack[1:] != self.stack[:-1])[: len(self.stack)]
        ends = np.searchsorted(self.stack, self.stack, side="right")
        self.depth = ends - 1 - np.arange(len(self.stack))
        self._by_function: dict[str, list[int]] = {}
        for index, code in enumerate(self._code_rows):
            self._by_function.setdefault(code.qualname.rpartition(".")[2], []).append(index)

    def are(self, mark: _Mark) -> Bools:
        """Of each frame, whether it has this mark."""
        tail, function = mark
        is_marked = np.zeros(len(self._code_rows), np.bool_)
        candidates = self._by_function.get(function, [])
        is_marked[[it for it in candidates if ("/" + self._code_rows[it].filename).endswith("/" + tail)]] = True
        return np.asarray(is_marked[self._codes])
