"""The asyncio tasks of a process now: the process in, tasks that are not done and what was missed out."""

from __future__ import annotations

from bpfprof.account.await_reasons import asyncio_file, reason_of
from bpfprof.capture.frame_reader import FrameReader
from bpfprof.capture.process import Process
from bpfprof.cpython.asyncio_layouts import ASYNCIO_LAYOUTS
from bpfprof.cpython.asyncio_lists import TASK_LIMIT, TaskLists
from bpfprof.cpython.asyncio_reading import TaskView
from bpfprof.cpython.asyncio_tasks import TaskReader
from bpfprof.cpython.code_objects import CodeObject
from bpfprof.cpython.layout import FREE_THREADED
from bpfprof.cpython.objects import Objects
from bpfprof.model.frames import Frame
from bpfprof.model.now import TaskNow
from bpfprof.model.samples import TaskState


def tasks_now(process: Process, reader: FrameReader) -> tuple[list[TaskNow], list[str]]:
    """By name; the second are sentences. CPython before 3.11 and free-threaded ones have none that are read."""
    found, memory = process.interpreter, process.memory
    if found is None or memory is None:
        return [], []
    lists = TaskLists(process.pid, Objects(memory, found.layout), found.runtime_address)
    if found.layout.version not in ASYNCIO_LAYOUTS or found.build == FREE_THREADED:
        return [], ["asyncio tasks of this CPython are not read"] * lists.is_imported()
    if not lists.find() or lists.layout is None:
        return [], ["its asyncio is not known"] * lists.is_other
    tasks = TaskReader(lists, lists.layout)
    look = tasks.look()
    names = {address: tasks.name(view.name_at) or "?" for address, view in look.views.items()}
    rows = []
    for address, view in look.views.items():
        frames = reader.frames([(code, instruction, 0) for code, instruction in view.frames])
        callback = reader.code(view.callback) if view.callback else None
        after = callback.qualname if isinstance(callback, CodeObject) else ""
        reason = _reason(view, frames, tasks.types.name(view.waiter_type), after)
        rows.append(TaskNow(names[address], reason, names.get(look.awaited_by.get(address, (0, 0))[0]), frames))
    missed = {"changed while they were read": tasks.torn_count, f"are beyond {TASK_LIMIT:,}": lists.cut_count}
    sentences = [f"{count} asyncio tasks {what}" for what, count in missed.items() if count]
    return sorted(rows, key=lambda task: task.name), sentences


def _reason(view: TaskView, frames: list[Frame], waits_for: str, callback: str) -> str:
    if view.state != TaskState.SUSPENDED:
        return "ready"
    functions = []
    for frame in frames:
        file = asyncio_file(frame.file)
        if not file:
            break
        functions.append((file, frame.name))
    return reason_of(functions, waits_for, callback)
