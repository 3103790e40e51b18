"""Processes as they are now -> the JSON of the contract for other programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.now import ProcessNow, ThreadNow

_KINDS = {FrameKind.PYTHON: "python", FrameKind.KERNEL: "kernel"}


def render_dump_json(processes: Sequence[ProcessNow]) -> str:
    """Control characters are escaped, as JSON has it."""
    return json.dumps({"processes": [_process(process) for process in processes]}, indent=1) + "\n"


def _process(process: ProcessNow) -> dict[str, Any]:
    name, version = process.interpreter or (None, None)
    return {
        "pid": process.pid,
        "title": process.title,
        "interpreter": {"name": name, "version": version},
        "threads": [_thread(thread) for thread in process.threads],
        "tasks": [
            {
                "name": task.name,
                "reason": task.reason,
                "for_s": None,  # one look does not tell
                "waited_for_by": task.waited_for_by,
                "frames": [_frame(frame) for frame in task.frames],
            }
            for task in process.tasks
        ],
        "deadlocks": process.deadlocks,
    }


def _thread(thread: ThreadNow) -> dict[str, Any]:
    wanted = thread.waits_for
    return {
        "tid": thread.tid,
        "name": thread.name,
        "state": thread.state,
        "reason": thread.reason or None,
        "for_s": thread.for_s,
        "idle": thread.is_idle,
        "holds_gil": thread.holds_gil,
        "waits_for": wanted
        and {
            "kind": wanted.kind,
            "name": wanted.name,
            "held_by_tid": wanted.held_by_tid,
            "held_by_pid": wanted.held_by_pid,
        },
        "frames": [
            {**_frame(frame), **({"locals": thread.variables[place]} if thread.variables else {})}
            for place, frame in enumerate(thread.frames)
        ],
    }


def _frame(frame: Frame) -> dict[str, Any]:
    is_python = frame.kind == FrameKind.PYTHON
    return {
        "name": frame.name,
        "file": frame.file if is_python else frame.source,
        "line": frame.line,
        "object": "" if is_python else frame.file,
        "kind": _KINDS.get(frame.kind, "native"),
    }
