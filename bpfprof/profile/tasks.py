"""A recording to the asyncio tasks of a profile: what each was seen to do, and when."""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.await_reasons import await_reasons
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.ids import Pid
from bpfprof.model.profile import TASK_SPAN_DTYPE, Interner, Task
from bpfprof.model.samples import TaskState
from bpfprof.model.states import AWAIT_REASONS, ThreadState
from bpfprof.model.statuses import Status
from bpfprof.profile.options import SpanFilter
from bpfprof.recording.contents import Recording
from bpfprof.stacks.stitch import StackSource


def profile_tasks(recording: Recording) -> tuple[Task, ...]:
    """All tasks, in the order of the recording."""
    processes = recording.processes
    return tuple(
        Task(Pid(processes[task.process].pid), processes[task.process].name, task.name) for task in recording.tasks
    )


def task_spans(
    recording: Recording, wanted: SpanFilter, source: StackSource, interner: Interner, end_ns: int
) -> npt.NDArray[np.void]:
    """Rows of TASK_SPAN_DTYPE that pass the filter; those that are about threads alone leave none.

    A task that runs has no stack here: what it does is told by its thread's.
    """
    rows = recording.task_waits
    start_ns = int(recording.start.get("start_ns", 0))
    window = np.array(wanted.window_ns or (0, end_ns)).clip(0, end_ns)
    begin, end = (rows[name].astype(np.int64) - start_ns for name in ("begin_ns", "end_ns"))
    spans = np.zeros(len(rows), TASK_SPAN_DTYPE)
    spans["start_ns"] = begin.clip(*window)
    spans["duration_ns"] = (end.clip(*window) - spans["start_ns"]).clip(0)
    length = (end - begin).clip(1)
    spans["stands_for_ns"] = np.minimum(rows["seen_ns"].astype(np.int64), length) * (spans["duration_ns"] / length)
    spans["awaited_by"] = rows["awaited_by"].astype(np.int64) - 1
    for name in ("task", "awaited_by_count", "count"):
        spans[name] = rows[name]
    spans["is_running"] = rows["state"] == TaskState.RUNNING
    spans["reason"] = await_reasons(recording)
    spans["stack"] = _stacks(spans, rows["stack"], source, interner)
    kept = spans[_passes(spans, recording, wanted, source, rows["stack"])]
    return np.asarray(kept[np.lexsort((kept["start_ns"], kept["task"]))])


def _stacks(
    spans: npt.NDArray[np.void], stacks: npt.NDArray[np.uint32], source: StackSource, interner: Interner
) -> npt.NDArray[np.uint32]:
    keys, which = np.unique(stacks.astype(np.int64) << 8 | spans["reason"], return_inverse=True)
    numbers = []
    for key in keys.tolist():
        frames = source.frames(key >> 8, Status.NO_PYTHON)
        numbers.append(interner.stack((*frames, Frame(FrameKind.AWAIT, AWAIT_REASONS[key & 0xFF]))))
    return np.array(numbers, np.uint32)[which]


def _passes(
    spans: npt.NDArray[np.void],
    recording: Recording,
    wanted: SpanFilter,
    source: StackSource,
    stacks: npt.NDArray[np.uint32],
) -> npt.NDArray[np.bool_]:
    is_of_threads = wanted.thread or wanted.holds_gil or wanted.task_states
    hides_waits = wanted.states and ThreadState.OFF_CPU not in wanted.states
    passes = spans["duration_ns"] > max(0, wanted.min_block_ns - 1)
    if is_of_threads or hides_waits:
        passes[:] = False
    if wanted.reasons:
        passes &= np.isin(
            spans["reason"], [AWAIT_REASONS.index(each) for each in wanted.reasons if each in AWAIT_REASONS]
        )
        passes &= ~spans["is_running"]
    if wanted.process is not None:
        pattern, processes = wanted.process, recording.processes
        shown = [bool(pattern.search(f"{process.name} ({process.pid})")) for process in processes]
        passes &= np.array([shown[task.process] for task in recording.tasks] or [False])[spans["task"]]
    if wanted.function is not None:
        numbers, which = np.unique(stacks, return_inverse=True)
        pattern = wanted.function
        found = [any(pattern.search(each.name) for each in source.frames(number, 0)) for number in numbers.tolist()]
        passes &= np.array(found or [False])[which]
    return np.asarray(passes)
