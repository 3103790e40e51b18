"""When asyncio tasks are looked at: processes in, rows of tasks and of their waits out.

A look speaks for the time around it, half way to the looks before and after.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from bpfprof.capture.process import Process
from bpfprof.capture.stacks import StackTable
from bpfprof.capture.task_rows import TaskRows, TaskTable
from bpfprof.cpython.asyncio_layouts import ASYNCIO_LAYOUTS
from bpfprof.cpython.asyncio_lists import TASK_LIMIT, TaskLists
from bpfprof.cpython.asyncio_tasks import TaskReader
from bpfprof.cpython.layout import FREE_THREADED
from bpfprof.cpython.objects import Objects
from bpfprof.dataclass import dataclass
from bpfprof.proc.memory import ProcessMemory

# Between two looks, as a part of the period asked for. Programs wait for round times: were it a round part of these,
# looks would always meet the same waits. The golden ratio is the furthest from all such parts: (9 + 0.618...) / 10.
_STEP = 0.9618034
_FIND_FIRST_S, _FIND_LAST_S = 0.1, 2.0  # between two looks for them, more each time: most import asyncio early
_EMPTY_LONGER, _EMPTY_S = 1.1, 0.5  # between two looks where there are none, so many times longer each time, up to that
# Times what was spent: tasks cost at most 5% of a CPU a process, and to find out whether there are any 0.5% in all.
_REST, _FIND_REST = 19, 200


@dataclass
class _Watched:
    """A process that runs Python, by its memory: after an exec that is another.

    covered_ns: looks have spoken for its tasks up to then.
    """

    memory: ProcessMemory
    lists: TaskLists
    reader: TaskReader | None = None
    rows: TaskRows | None = None
    covered_ns: int = 0
    due_s: float = 0.0
    find_due_s: float = 0.0
    find_after_s: float = _FIND_FIRST_S
    empty_s: float = 0.0  # between two looks, where there is no task

    @property
    def next_s(self) -> float:
        """When to look again, for tasks or for lists of them."""
        return self.find_due_s if self.reader is None else min(self.find_due_s, self.due_s)


class AsyncTasks:
    """`due_s`: when to look next, time.monotonic()."""

    def __init__(self, rate_hz: int, start_ns: int, stacks: StackTable) -> None:
        """rate_hz 0: never."""
        self._step_ns = round(_STEP * 1e9 / max(1, rate_hz))
        self.due_s = start_ns / 1e9 if rate_hz else float("inf")
        self.table = TaskTable(stacks)
        self._watched: dict[int, _Watched] = {}  # by the process's index
        self._torn_count = self._cut_count = self._other_count = 0

    @property
    def missed(self) -> dict[str, int]:
        """What was not seen: sentence -> how often."""
        counts = {
            "changed while they were read": self._torn_count,
            f"beyond {TASK_LIMIT:,} of a process": self._cut_count,
            "processes whose asyncio is not known": self._other_count,
        }
        return {text: count for text, count in counts.items() if count}

    def look(self, processes: Iterable[Process], is_over: Callable[[], bool] = lambda: False) -> None:
        """At all tasks, until it is over; then it is known when the next look is due."""
        self._look(processes, time.monotonic_ns() + self._step_ns // 2, is_over)
        step_s, now_s = self._step_ns / 1e9, time.monotonic()
        first_s = min((each.next_s for each in self._watched.values()), default=now_s)
        self.due_s = max(max(self.due_s, now_s - step_s) + step_s, min(first_s, now_s + _EMPTY_S))

    def hurry(self) -> None:
        """A process was born, or runs another program."""
        if self.due_s != float("inf"):
            self.due_s = min(self.due_s, time.monotonic() + self._step_ns / 1e9)

    def finish(self, processes: Iterable[Process], is_over: Callable[[], bool]) -> None:
        """One more look, which speaks for what is left, at as many as there is time for."""
        try:
            if self.due_s != float("inf"):
                self._look(processes, time.monotonic_ns(), is_over, is_last=True)
        finally:
            for index in list(self._watched):
                self._forget(index)

    def _look(
        self, processes: Iterable[Process], end_ns: int, is_over: Callable[[], bool], is_last: bool = False
    ) -> None:
        """is_last: whatever it costs."""
        seen = set()
        for process in processes:
            if is_over():
                return
            found = process.interpreter
            if found is None or process.memory is None or found.layout.version not in ASYNCIO_LAYOUTS:
                continue
            if found.build == FREE_THREADED:  # other layouts
                continue
            watched = self._watched.get(process.index)
            if watched is None or watched.memory is not process.memory:
                self._forget(process.index)
                lists = TaskLists(process.pid, Objects(process.memory, found.layout), found.runtime_address)
                watched = self._watched[process.index] = _Watched(process.memory, lists)
            seen.add(process.index)
            if is_last:
                watched.due_s = watched.find_due_s = 0.0
            self._look_at(process, watched, end_ns)
        for index in self._watched.keys() - seen:
            self._forget(index)

    def _look_at(self, process: Process, watched: _Watched, end_ns: int) -> None:
        begin_s = time.monotonic()
        if watched.find_due_s <= begin_s:
            self._find(process, watched)
        if watched.reader is None or watched.rows is None or watched.due_s > begin_s or end_ns <= watched.covered_ns:
            return
        begin_s = time.monotonic()
        step_s, look = self._step_ns / 1e9, watched.reader.look()
        if watched.empty_s:  # half way to the look before
            watched.covered_ns = max(watched.covered_ns, end_ns - int(0.5e9 * (step_s + watched.empty_s)))
        watched.rows.add(look, watched.covered_ns, end_ns)
        watched.covered_ns = end_ns
        watched.empty_s = 0.0 if look.views else max(step_s, min(_EMPTY_LONGER * watched.empty_s, _EMPTY_S))
        now_s = time.monotonic()
        watched.due_s = now_s + max(_REST * (now_s - begin_s), watched.empty_s) - step_s

    def _find(self, process: Process, watched: _Watched) -> None:
        begin_s = time.monotonic()
        lists = watched.lists
        if lists.find() and watched.reader is None and lists.layout is not None:
            watched.reader = TaskReader(lists, lists.layout)
            watched.rows = TaskRows(process, watched.reader, self.table)
            watched.covered_ns = time.monotonic_ns() - self._step_ns // 2
        now_s = time.monotonic()
        watched.find_due_s = now_s + max(watched.find_after_s, _FIND_REST * len(self._watched) * (now_s - begin_s))
        watched.find_after_s = min(2 * watched.find_after_s, _FIND_LAST_S)

    def _forget(self, index: int) -> None:
        watched = self._watched.pop(index, None)
        if watched is None:
            return
        if watched.rows is not None:
            watched.rows.finish()
        self._torn_count += watched.reader.torn_count if watched.reader else 0
        self._cut_count += watched.lists.cut_count
        self._other_count += watched.lists.is_other
