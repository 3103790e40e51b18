"""Profile -> the few functions and waits worth a line: who uses the CPU, who waits, for what and for how long."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from bpfprof.model.frames import FrameKind
from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.model.states import reason_text
from bpfprof.query.functions import owner_frames
from bpfprof.render.labels import clean, frame_labels
from bpfprof.render.options import RenderOptions

_FUNCTIONS = (FrameKind.PYTHON, FrameKind.NATIVE, FrameKind.INLINED)
_LEAF_FUNCTIONS = 4


@dataclass(frozen=True, slots=True)
class FunctionTime:
    """Time of the stacks whose innermost Python function this is; lines are merged."""

    function: str
    on_cpu_ns: int
    off_cpu_ns: int
    all_on_cpu_ns: int  # of the whole profile


@dataclass(frozen=True, slots=True)
class WaitTime:
    """Waits with one reason in one function."""

    reason: str
    function: str
    total_ns: int
    count: int
    max_ns: int


@dataclass(frozen=True, slots=True)
class LongestWait:
    """The longest interval off the CPU. `thread` is an index into Profile.threads; `functions` are innermost first."""

    thread: int
    mark: str
    functions: list[str]
    max_ns: int


def top_functions(profile: Profile, options: RenderOptions, limit: int) -> list[FunctionTime]:
    """Functions with on-CPU time, most first."""
    owners = _owners(profile, options)
    on_cpu: defaultdict[str, int] = defaultdict(int)
    off_cpu: defaultdict[str, int] = defaultdict(int)
    spent = {ThreadState.ON_CPU: on_cpu, ThreadState.OFF_CPU: off_cpu}
    for state, times in spent.items():
        rows = profile.weights[profile.weights["state"] == state]
        for stack, total_ns in zip(rows["stack"].tolist(), rows["total_ns"].tolist(), strict=True):
            times[owners[stack]] += total_ns
    all_ns = sum(on_cpu.values())
    named = [(name, ns) for name, ns in on_cpu.items() if name and ns]
    ordered = sorted(named, key=lambda item: (-item[1], item[0]))[:limit]
    return [FunctionTime(name, ns, off_cpu.get(name, 0), all_ns) for name, ns in ordered]


def top_waits(profile: Profile, options: RenderOptions, limit: int) -> list[WaitTime]:
    """Waits by (reason, function), most time first."""
    owners = _owners(profile, options)
    found: dict[tuple[str, str], WaitTime] = {}
    rows = profile.weights[profile.weights["state"] == ThreadState.OFF_CPU]
    for stack, number, total_ns, count, max_ns in rows[["stack", "reason", "total_ns", "count", "max_ns"]].tolist():
        reason = clean(reason_text(number)) or "unknown"
        function = owners[stack] or _without_function(profile, stack)
        old = found.get((reason, function), WaitTime(reason, function, 0, 0, 0))
        found[reason, function] = replace(
            old, total_ns=old.total_ns + total_ns, count=old.count + count, max_ns=max(old.max_ns, max_ns)
        )
    return sorted(found.values(), key=lambda wait: (-wait.total_ns, wait.reason, wait.function))[:limit]


def _without_function(profile: Profile, stack: int) -> str:
    first = profile.stacks[stack][:1]
    is_short = bool(first) and profile.frames[first[0]].kind == FrameKind.SHORT_WAITS
    return "[short waits]" if is_short else "(no function known)"


def longest_wait(profile: Profile, options: RenderOptions) -> LongestWait | None:
    """None when nobody waited."""
    rows = profile.weights[profile.weights["state"] == ThreadState.OFF_CPU]
    if len(rows) == 0:
        return None
    row = rows[int(np.argmax(rows["max_ns"]))]
    labels = frame_labels(profile, options)
    stack = profile.stacks[int(row["stack"])]
    functions = [labels[frame] for frame in reversed(stack) if profile.frames[frame].kind in _FUNCTIONS]
    mark = labels[stack[-1]] if stack else "unknown"
    return LongestWait(int(row["thread"]), mark, functions[:_LEAF_FUNCTIONS], int(row["max_ns"]))


def _owners(profile: Profile, options: RenderOptions) -> list[str]:
    """A stack's function without a line, "" if there is none."""
    labels = frame_labels(profile, replace(options, function_only=True))
    return [labels[frame] if frame >= 0 else "" for frame in owner_frames(profile.frames, profile.stacks)]
