"""Asyncio tasks of a Profile -> a table for a terminal: plain text, at most 100 columns."""

from __future__ import annotations

import re
from collections import Counter

from bpfprof.model.frames import FrameKind
from bpfprof.model.profile import Profile
from bpfprof.model.states import AWAIT_REASONS
from bpfprof.query.threads.tasks import TaskGroup, group_tasks
from bpfprof.render.columns import COLUMNS, duration_text, percent_text, shortened, wrapped
from bpfprof.render.formats import RenderOptions
from bpfprof.render.header import counted, recording_block
from bpfprof.render.labels import frame_labels, printable, task_label
from bpfprof.render.quality import quality_line

_ASYNCIO = re.compile(r"(?:^|/)asyncio/\w+\.py$")
_PLACES, _FRAMES, _AWAITING = 4, 3, 3  # shown of each


def render_tasks(profile: Profile, options: RenderOptions) -> str:
    """Tasks by suspended time, then the quality line."""
    groups = group_tasks(profile)
    labels = frame_labels(profile, options)
    all_ns = sum(group.suspended_ns for group in groups)
    blocks = [recording_block(profile), wrapped(_head(profile, groups, all_ns), "  ")]
    blocks += [_group_block(profile, labels, group, all_ns) for group in groups[: options.most]]
    if len(groups) > options.most:
        rest_ns = sum(group.suspended_ns for group in groups[options.most :])
        more = counted(len(groups) - options.most, "more group")
        blocks.append([f"and {more}, together {duration_text(rest_ns)} (--limit shows more)"])
    blocks.append(wrapped(quality_line(profile), "  "))
    text = "\n\n".join("\n".join(block) for block in blocks) + "\n"
    return text.replace("…", "~") if options.ascii_only else text


def _head(profile: Profile, groups: list[TaskGroup], all_ns: int) -> str:
    asked = printable(profile.filter_text)
    if not groups:
        why = "" if profile.info.async_rate_hz else " (they were not looked at: --async-rate 0)"
        return f"no asyncio tasks{asked}{why}"
    tasks = counted(sum(len(group.tasks) for group in groups), "asyncio task")
    text = f"{tasks}{asked}, seen suspended for {duration_text(all_ns)} in all"
    return f"{text}; looked at {profile.info.async_rate_hz} times a second; no part of the threads' wall time"


def _group_block(profile: Profile, labels: list[str], group: TaskGroup, all_ns: int) -> list[str]:
    name = f"task {printable(group.name) or '?'}"
    if group.function >= 0:
        name = f"tasks of {labels[group.function]}"
    if len(group.tasks) > 1:
        name += f" ({len(group.tasks):,} tasks)"
    figures = f"{duration_text(group.suspended_ns):>9} {percent_text(group.suspended_ns, all_ns, 1):>6}"
    others = (("ready", group.ready_ns), ("running", group.running_ns))
    beside = "".join(f", {word} {duration_text(ns)}" for word, ns in others if ns)
    process = f"process {printable(group.process_name) or '?'} ({group.pid})"
    lines = [f"{name}, {process}", f"{figures} suspended{beside}", *_places(profile, labels, group)]
    lines += _awaited_by(profile, group)
    return [shortened(line, COLUMNS) for line in lines]


def _places(profile: Profile, labels: list[str], group: TaskGroup) -> list[str]:
    """Where they are suspended: the innermost functions that are not asyncio's own."""
    places: Counter[tuple[int, str]] = Counter()
    for (reason, stack), ns in group.places.items():
        places[reason, _own_functions(profile, labels, profile.stacks[stack])] += ns
    all_ns = sum(places.values())
    lines = [
        f"{percent_text(ns, all_ns, 0):>7}  {AWAIT_REASONS[reason]:<8}  {text}"
        for (reason, text), ns in places.most_common(_PLACES)
    ]
    rest_ns = all_ns - sum(ns for _, ns in places.most_common(_PLACES))
    if len(places) > _PLACES:
        lines.append(f"{percent_text(rest_ns, all_ns, 0):>7}  in {counted(len(places) - _PLACES, 'other place')}")
    return lines


def _own_functions(profile: Profile, labels: list[str], stack: tuple[int, ...]) -> str:
    frames = [place for place in reversed(stack) if profile.frames[place].kind == FrameKind.PYTHON]
    own = [place for place in frames if not _ASYNCIO.search(profile.frames[place].file)] or frames
    return " < ".join(labels[place] for place in own[:_FRAMES]) or "where is not known"


def _awaited_by(profile: Profile, group: TaskGroup) -> list[str]:
    if not group.awaited_by:
        return []
    most = group.awaited_by.most_common(_AWAITING)
    names = ", ".join(task_label(profile.tasks[number]) for number, _ in most)
    rest = len(group.awaited_by) - len(most)
    return [f"         awaited by {names}" + f" and {counted(rest, 'other')}" * bool(rest)]
