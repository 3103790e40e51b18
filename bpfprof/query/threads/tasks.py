"""A Profile -> its asyncio tasks: how long each was suspended, where, for what, and who waited for it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import field

from bpfprof.dataclass import dataclass
from bpfprof.model.frames import FrameKind
from bpfprof.model.profile import Profile
from bpfprof.model.states import AWAIT_REASONS

_MADE_UP = re.compile(r"Task-\d+")  # Lib/asyncio/tasks.py: the name of a task that was given none
_READY = AWAIT_REASONS.index("ready")


@dataclass
class TaskGroup:
    """Tasks of one process with one name; those whose names are made up, by their outermost function.

    places: (reason, stack) -> nanoseconds, a place in AWAIT_REASONS and in Profile.stacks. awaited_by: place of a task
    in Profile.tasks -> nanoseconds in which that and maybe others waited for one of these. suspended_ns is all that is
    not ready or running.
    """

    pid: int
    process_name: str
    name: str
    function: int = -1  # place in Profile.frames; -1: tasks of this name
    tasks: set[int] = field(default_factory=set)
    suspended_ns: int = 0
    ready_ns: int = 0
    running_ns: int = 0
    places: Counter[tuple[int, int]] = field(default_factory=Counter)
    awaited_by: Counter[int] = field(default_factory=Counter)


def group_tasks(profile: Profile) -> list[TaskGroup]:
    """The most suspended first."""
    function_of = _outermost(profile)
    groups: dict[tuple[int, str, int], TaskGroup] = {}
    columns = ["task", "stack", "reason", "is_running", "stands_for_ns", "awaited_by"]
    for number, stack, reason, is_running, ns, awaited_by in profile.task_spans[columns].tolist():
        task = profile.tasks[number]
        function = function_of.get(number, -1) if _MADE_UP.fullmatch(task.name) else -1
        key = int(task.pid), task.name if function < 0 else "", function
        group = groups.setdefault(key, TaskGroup(key[0], task.process_name, task.name, function))
        group.tasks.add(number)
        if is_running:
            group.running_ns += ns
            continue
        if reason == _READY:
            group.ready_ns += ns
        else:
            group.suspended_ns += ns
        group.places[reason, stack] += ns
        if awaited_by >= 0:
            group.awaited_by[awaited_by] += ns
    return sorted(groups.values(), key=lambda group: (-group.suspended_ns, group.pid, group.name))


def _outermost(profile: Profile) -> dict[int, int]:
    """For each task the outermost function, as the first frame that differs from it in its line only."""
    first: dict[tuple[str, str], int] = {}
    found: defaultdict[int, int] = defaultdict(lambda: -1)
    for number, stack in profile.task_spans[["task", "stack"]].tolist():
        place = profile.stacks[stack][0]
        frame = profile.frames[place]
        if frame.kind == FrameKind.PYTHON:
            found.setdefault(number, first.setdefault((frame.name, frame.file), place))
    return dict(found)
