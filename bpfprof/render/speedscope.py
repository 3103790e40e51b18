"""Profile with its spans -> a speedscope file (https://www.speedscope.app/file-format-schema.json)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.frames import FrameKind
from bpfprof.model.profile import Profile, ThreadTime
from bpfprof.model.spans import SpanFlag
from bpfprof.render.formats import RenderOptions
from bpfprof.render.labels import file_names, frame_label, printable, process_label, task_label, thread_label

_TASKS_LIMIT = 100  # a list of profiles that a person can choose from
_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def render_speedscope(profile: Profile, options: RenderOptions) -> str:
    """One sampled profile a thread that has intervals, the busiest first, then one a task of asyncio that was seen
    suspended, in the order of the recording; all on the clock of the recording.

    Raises ValueError if the profile was built without its spans.
    """
    if profile.spans is None:
        raise ValueError("the speedscope format needs a profile with its spans")
    frames, frame_of = _frames(profile, options)
    stacks = ["[" + ",".join([str(frame_of[frame]) for frame in stack]) + "]" for stack in profile.stacks]
    # What is not shown is an empty stack, the last one.
    stack_of = np.where(profile.spans["flags"] & SpanFlag.HIDDEN > 0, len(stacks), profile.spans["stack"])
    stacks.append("[]")
    begin = np.searchsorted(profile.spans["thread"], np.arange(len(profile.threads) + 1)).tolist()
    has_rows = [number for number in range(len(profile.threads)) if begin[number] < begin[number + 1]]
    shown = [thread for thread in has_rows if profile.threads[thread].wall_ns]
    profiles = []
    for thread in sorted(shown, key=lambda thread: _activity(profile.threads[thread])):
        rows = slice(begin[thread], begin[thread + 1])
        durations = profile.spans["duration_ns"][rows]
        who = profile.threads[thread]
        name = f"{process_label(who)} / {thread_label(who)}"
        profiles.append(_one_profile(name, who.first_ns, stack_of[rows], durations, stacks))
    profiles += _tasks(profile, stacks)
    name = printable(options.title) or printable(" ".join(profile.info.command_line)) or "bpfprof"
    head = {
        "$schema": _SCHEMA,
        "exporter": f"bpfprof {printable(profile.info.bpfprof_version)}".rstrip(),
        "name": name,
        "activeProfileIndex": 0,
        "shared": {"frames": frames},
    }
    return json.dumps(head, ensure_ascii=False)[:-1] + ', "profiles": [' + ",\n".join(profiles) + "]}\n"


def _frames(profile: Profile, options: RenderOptions) -> tuple[list[dict[str, Any]], list[int]]:
    """The frames as speedscope wants them, equal ones once; and where each frame of the profile went."""
    files = file_names(profile, options)
    place: dict[tuple[str, str, int], int] = {}
    frame_of = []
    for frame in profile.frames:
        key = (frame_label(frame, files, options.function_only), "", 0)
        if frame.kind == FrameKind.PYTHON:
            key = (printable(frame.name) or "[unknown]", files[frame.file], 0 if options.function_only else frame.line)
        elif frame.kind in (FrameKind.NATIVE, FrameKind.INLINED):
            key = (key[0], printable(frame.file), 0)
        frame_of.append(place.setdefault(key, len(place)))
    frames: list[dict[str, Any]] = []
    for name, file, line in place:
        entry: dict[str, Any] = {"name": name}
        if file:
            entry["file"] = file
        if line:
            entry["line"] = line
        frames.append(entry)
    return frames, frame_of


def _activity(thread: ThreadTime) -> tuple[bool, bool, int, int]:
    """Sort key: threads that do something before idle ones, main threads before others, then by time on a CPU."""
    busy_ns = thread.on_cpu_ns + thread.runqueue_ns
    return busy_ns * 100 < thread.wall_ns, int(thread.pid) != int(thread.tid), -busy_ns, int(thread.tid)


def _tasks(profile: Profile, stacks: list[str]) -> list[str]:
    """Of those that were suspended longest. Where a task was not seen suspended, the stack is empty."""
    spans = profile.task_spans[~profile.task_spans["is_running"]]
    total_ns = np.bincount(spans["task"], weights=spans["stands_for_ns"], minlength=len(profile.tasks))
    spans = spans[np.isin(spans["task"], np.argsort(-total_ns, kind="stable")[:_TASKS_LIMIT])]
    firsts = np.flatnonzero(np.diff(spans["task"].astype(np.int64), prepend=-1))
    profiles = []
    for begin, end in zip(firsts.tolist(), [*firsts[1:].tolist(), len(spans)]):
        own, task = spans[begin:end], profile.tasks[int(spans["task"][begin])]
        ends = own["start_ns"] + own["duration_ns"]
        gaps = (own["start_ns"] - np.append(own["start_ns"][:1], ends[:-1])).clip(0)
        durations = np.column_stack([gaps, own["duration_ns"]]).reshape(-1)
        of_rows = np.column_stack([np.full(len(own), len(stacks) - 1), own["stack"]]).reshape(-1)
        name = f"{process_label(task)} / {task_label(task)}"
        start_ns = int(own["start_ns"][0])
        profiles.append(_one_profile(name, start_ns, of_rows[durations > 0], durations[durations > 0], stacks))
    return profiles


def _one_profile(
    name: str,
    start_ns: int,
    stack: npt.NDArray[np.integer[Any]],
    durations_ns: npt.NDArray[np.int64],
    stacks: list[str],
) -> str:
    """The JSON of one profile; neighbouring rows with the same stack become one."""
    first = np.flatnonzero(np.concatenate(([True], stack[1:] != stack[:-1])))
    weights = np.add.reduceat(durations_ns, first).tolist()
    head = {
        "type": "sampled",
        "name": name,
        "unit": "nanoseconds",
        "startValue": start_ns,
        "endValue": start_ns + sum(weights),
    }
    samples = ",".join([stacks[index] for index in stack[first].tolist()])
    return f'{json.dumps(head, ensure_ascii=False)[:-1]}, "samples": [{samples}], "weights": {json.dumps(weights)}}}'
