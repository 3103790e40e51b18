"""Looks at the asyncio tasks of a process to the rows of a recording: how long each task was seen in one wait."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

import numpy as np

from bpfprof import abi
from bpfprof.capture.process import Process, identity_hash
from bpfprof.capture.stacks import StackTable
from bpfprof.cpython.asyncio_reading import TaskView
from bpfprof.cpython.asyncio_tasks import Look, TaskReader
from bpfprof.cpython.code_objects import CodeObject, read_code_identity
from bpfprof.dataclass import dataclass
from bpfprof.model.samples import TASK_WAIT_DTYPE
from bpfprof.recording.tables import RecordedTask, table_row
from bpfprof.recording.writer import Sink

_LONGEST_ROW_NS = 10_000_000_000  # what goes on is written from time to time
_OWNERS_LIMIT = 200_000
_CALLBACKS_LIMIT = 1000
_NOBODY = 0, 0
_OK = int(abi.Status["BP_OK"])


@dataclass
class Wait:
    """A row of TASK_WAIT_DTYPE, with texts."""

    task: int
    begin_ns: int = 0
    end_ns: int = 0
    seen_ns: int = 0
    count: int = 0
    stack: int = 0
    waits_for: str = ""
    callback: str = ""
    awaited_by: int = 0
    awaited_by_count: int = 0
    state: int = 0

    @property
    def content(self) -> tuple[Any, ...]:
        """What is the same as long as the task goes on waiting."""
        return self.stack, self.waits_for, self.callback, self.awaited_by, self.awaited_by_count, self.state

    def extend(self, begin_ns: int, end_ns: int) -> None:
        """It was seen once more."""
        self.end_ns = end_ns
        self.seen_ns += end_ns - begin_ns
        self.count += 1


@dataclass
class TaskTable:
    """Tasks and their waits that the recording does not have yet."""

    stacks: StackTable
    task_count: int = 0
    _new_tasks: list[dict[str, Any]] = field(default_factory=list)
    _new_waits: list[Wait] = field(default_factory=list)
    _owners: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, process: int, name: str) -> int:
        """The number of a new task."""
        self.task_count += 1
        self._new_tasks.append(table_row(self.task_count - 1, RecordedTask(process, name)))
        return self.task_count - 1

    def add_wait(self, wait: Wait) -> None:
        """A wait that is over, or is to be written before it is."""
        self._new_waits.append(wait)

    def is_inherited(self, process: int, task: int, coroutine: int) -> bool:
        """Whether a task was first seen in another process, of which this one is a fork that has a copy of it."""
        if len(self._owners) >= _OWNERS_LIMIT:
            self._owners.clear()
        return self._owners.setdefault((task, coroutine), process) != process

    def write_new(self, sink: Sink) -> None:
        """What the recording does not have yet; stacks and processes are to be written before."""
        if self._new_tasks:
            sink.write("tasks", {"rows": self._new_tasks})
            self._new_tasks = []
        if self._new_waits:
            texts: dict[str, int] = {}
            rows = np.zeros(len(self._new_waits), TASK_WAIT_DTYPE)
            for place, wait in enumerate(self._new_waits):
                values = dict(vars(wait))
                for column in ("waits_for", "callback"):
                    values[column] = texts.setdefault(values[column], len(texts))
                rows[place] = tuple([values[name] for name in TASK_WAIT_DTYPE.names or ()])
            sink.write("task_waits", {"texts": list(texts)}, {"rows": rows})
            self._new_waits = []


@dataclass
class _Task:
    """A task at an address, and what it does since it looks like this."""

    number: int
    coroutine: int
    name: str
    name_words: tuple[int, ...]
    is_inherited: bool
    wait: Wait
    view: TaskView | None = None
    awaited_by: tuple[int, int] = _NOBODY


class TaskRows:
    """Of one process."""

    def __init__(self, process: Process, reader: TaskReader, table: TaskTable) -> None:
        self._process, self._reader, self._table = process, reader, table
        self._tasks: dict[int, _Task] = {}  # by address
        self._callbacks: dict[int, str] = {}
        self._stacks: dict[tuple[tuple[int, int], ...], int] = {}  # by frames; of one look, as code may be replaced

    def add(self, look: Look, begin_ns: int, end_ns: int) -> None:
        """A look that speaks for this time."""
        changed = []
        for address, view in look.views.items():
            task = self._tasks.get(address)
            if task is None or task.view is not view or task.awaited_by != look.awaited_by.get(address, _NOBODY):
                changed.append(view)
            else:
                task.wait.extend(begin_ns, end_ns)
        for address in self._tasks.keys() - look.views.keys():
            self._end(self._tasks.pop(address))
        if changed:
            self._change(look, changed, begin_ns, end_ns)
        for task in self._tasks.values():
            if task.wait.end_ns - task.wait.begin_ns >= _LONGEST_ROW_NS:
                self._end(task)
                task.wait = replace(task.wait, begin_ns=end_ns, end_ns=end_ns, seen_ns=0, count=0)

    def finish(self) -> None:
        """The process is gone, or the recording ends."""
        for task in self._tasks.values():
            self._end(task)
        self._tasks.clear()

    def _end(self, task: _Task) -> None:
        if task.wait.count and not task.is_inherited:
            self._table.add_wait(task.wait)

    def _change(self, look: Look, changed: list[TaskView], begin_ns: int, end_ns: int) -> None:
        """Rows of tasks that are new, or do something else."""
        found = [(view, task) for view in changed if (task := self._task(view)) is not None]
        self._stacks.clear()
        # Who waits for whom can be said when all have their numbers.
        for view, task in found:
            awaited_by = look.awaited_by.get(view.address, _NOBODY)
            wait = self._wait(view, task, awaited_by)
            if wait.content == task.wait.content and task.wait.end_ns == begin_ns:
                wait = task.wait  # the same again
            else:
                self._end(task)
                wait.begin_ns = begin_ns
            wait.extend(begin_ns, end_ns)
            task.is_inherited = task.is_inherited and task.view is None
            task.view, task.awaited_by, task.wait = view, awaited_by, wait

    def _task(self, view: TaskView) -> _Task | None:
        """The task of a view; None where its name cannot be read."""
        task = self._tasks.get(view.address)
        if task is not None and (task.coroutine, task.name_words) == (view.coroutine, view.name_words):
            return task
        name = self._reader.name(view.name_at)
        if name is None:
            return None
        if task is None or (task.coroutine, task.name) != (view.coroutine, name):
            if task is not None:
                self._end(task)
            index = self._process.index
            is_inherited = self._table.is_inherited(index, view.address, view.coroutine)
            number = self._table.add(index, name)
            task = _Task(number, view.coroutine, name, view.name_words, is_inherited, Wait(number))
            self._tasks[view.address] = task
        task.name_words = view.name_words
        return task

    def _wait(self, view: TaskView, task: _Task, awaited_by: tuple[int, int]) -> Wait:
        awaiting = self._tasks.get(awaited_by[0])
        return Wait(
            task=task.number,
            stack=self._stack(tuple(view.frames)),
            waits_for=self._reader.types.name(view.waiter_type),
            callback=self._callback(view.callback),
            awaited_by=awaiting.number + 1 if awaiting else 0,
            awaited_by_count=awaited_by[1],
            state=int(view.state),
        )

    def _stack(self, frames: tuple[tuple[int, int], ...]) -> int:
        """Index of a stack of (code, instruction), innermost first; 0 for none."""
        memory, found = self._process.memory, self._process.interpreter
        if not frames or memory is None or found is None:
            return 0
        if frames not in self._stacks:
            identities = []
            for code, _ in frames:
                identity = read_code_identity(memory, found.layout, code)
                identities.append(identity_hash(identity) if identity else 0)
            raw = [(code, instruction, 0) for code, instruction in frames]
            codes = self._process.codes
            self._stacks[frames] = self._table.stacks.add_frames(codes, raw, _OK, identities=identities)
        return self._stacks[frames]

    def _callback(self, address: int) -> str:
        """The qualified name of a code object."""
        if address not in self._callbacks:
            if len(self._callbacks) >= _CALLBACKS_LIMIT:
                self._callbacks.clear()
            code = self._process.read_code(address) if address else None
            self._callbacks[address] = code.qualname if isinstance(code, CodeObject) else ""
        return self._callbacks[address]
