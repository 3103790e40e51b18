"""Profile with its spans -> a speedscope file (https://www.speedscope.app/file-format-schema.json)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.grouping import group_numbers, sums_by
from bpfprof.model.profile import Profile, ThreadTime
from bpfprof.model.spans import SpanFlag
from bpfprof.query.work.table import work_of
from bpfprof.render.formats import RenderOptions
from bpfprof.render.intervals import MIXED, STATES, intervals_of
from bpfprof.render.labels import (
    MARKS,
    file_names,
    frame_label,
    mark_text,
    printable,
    process_label,
    task_label,
    thread_label,
)
from bpfprof.render.wait_names import WaitNames

_SHORT = tuple(f"[short intervals: {name}]" for name in ("on CPU", "ready, no CPU", "waiting", "lost"))
_TASKS_LIMIT = 100  # a list of profiles that a person can choose from
_ALL_THREADS = "all threads"
_Frame = tuple[str, str, int]  # name, file, line
_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def render_speedscope(profile: Profile, options: RenderOptions) -> str:
    """First all threads as one, each below a frame of its own and not in the order of time. Then one sampled profile a
    thread that has intervals, the busiest first, then one a task of asyncio that was seen suspended, in the order of
    the recording; all these on the clock of the recording.

    Raises ValueError if the profile was built without its spans.
    """
    if profile.spans is None:
        raise ValueError("the speedscope format needs a profile with its spans")
    frames, work = _Frames(profile, options), work_of(profile)
    names, of = WaitNames(profile, work, options), intervals_of(profile, work)
    made = _stacks(profile, frames, names, work.span_locks)
    begin = np.searchsorted(profile.spans["thread"], np.arange(len(profile.threads) + 1)).tolist()
    has_rows = [number for number in range(len(profile.threads)) if begin[number] < begin[number + 1]]
    shown = sorted(
        [thread for thread in has_rows if profile.threads[thread].wall_ns],
        key=lambda thread: _activity(profile.threads[thread]),
    )
    profiles = _all_threads(profile, frames, made, shown)
    stacks = [_packed(stack) for stack in [*made.stacks, *([frames.place(name)] for name in _SHORT if of.short_ns)]]
    for thread in shown:
        who = profile.threads[thread]
        name = f"{process_label(who)} / {thread_label(who)}"
        rows = of.rows[of.begin[thread] : of.begin[thread + 1]]
        profiles.append(_one_profile(name, who.first_ns, *_of_thread(rows, made, who.first_ns, who.last_ns), stacks))
    profiles += _tasks(profile, stacks)
    name = printable(options.title) or printable(" ".join(profile.info.command_line)) or "bpfprof"
    head = {
        "$schema": _SCHEMA,
        "exporter": f"bpfprof {printable(profile.info.bpfprof_version)}".rstrip(),
        "name": name + (f" (intervals under {of.short_ns / 1000:g} us beside each other are one)" * (of.short_ns > 0)),
        "activeProfileIndex": 0,
        "shared": {"frames": frames.entries()},
    }
    return json.dumps(head, ensure_ascii=False)[:-1] + ', "profiles": [' + ",\n".join(profiles) + "]}\n"


class _Frames:
    """The frames as speedscope wants them, equal ones once; `of`: where each frame of the profile went."""

    def __init__(self, profile: Profile, options: RenderOptions) -> None:
        self._function_only = options.function_only
        self._files = file_names(profile, options)
        self._places: dict[_Frame, int] = {}
        self.of = [self.place(*self._frame(frame)) for frame in profile.frames]

    def place(self, name: str, file: str = "", line: int = 0) -> int:
        return self._places.setdefault((name, file, line * (not self._function_only)), len(self._places))

    def entries(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for name, file, line in self._places:
            found.append({"name": name, **({"file": file} if file else {}), **({"line": line} if line else {})})
        return found

    def _frame(self, frame: Frame) -> _Frame:
        if frame.kind == FrameKind.PYTHON:
            return printable(frame.name) or "[unknown]", self._files[frame.file], frame.line
        if frame.kind in MARKS:
            return mark_text(frame), "", 0
        is_native = frame.kind in (FrameKind.NATIVE, FrameKind.INLINED)
        return frame_label(frame, self._files, self._function_only), printable(frame.file) if is_native else "", 0


@dataclass(frozen=True)
class _Stacks:
    """stacks: those of the profile, an empty one for what is not shown, then those that end in a wait for a lock.

    of_spans: for each span its stack here; of_locks: those of (stack, lock).
    """

    stacks: list[list[int]]
    of_spans: npt.NDArray[np.int64]
    of_locks: dict[tuple[int, int], int]


def _stacks(profile: Profile, frames: _Frames, names: WaitNames, locks: npt.NDArray[np.int64]) -> _Stacks:
    spans = profile.spans
    assert spans is not None
    stacks = [[frames.of[frame] for frame in stack] for stack in profile.stacks] + [[]]
    hidden = spans["flags"] & SpanFlag.HIDDEN > 0
    of_spans = np.where(hidden, len(stacks) - 1, spans["stack"].astype(np.int64))
    named = np.flatnonzero(locks > 0)
    first, number = group_numbers([spans["stack"][named], locks[named]])
    of_spans[named] = len(stacks) + number
    of_locks: dict[tuple[int, int], int] = {}
    for span in named[first].tolist():
        lock, reason = int(locks[span]), int(spans["reason"][span])
        of_locks[int(spans["stack"][span]), lock] = len(stacks)
        taken = names.taken_in(lock)
        where = (names.file(taken), taken.line) if taken else ()
        stacks.append([*stacks[int(spans["stack"][span])][:-1], frames.place(names.whole(reason, lock), *where)])
    return _Stacks(stacks, of_spans, of_locks)


def _of_thread(
    rows: npt.NDArray[np.void], made: _Stacks, first_ns: int, last_ns: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(stacks, nanoseconds) of its intervals, of MIXED ones those of each state, and of what is not shown between."""
    short, nothing = len(made.stacks), len(made.stacks) - len(made.of_locks) - 1
    is_mixed = rows["state"] == MIXED
    stacks = rows["stack"].astype(np.int64)
    named = np.flatnonzero(rows["lock"])
    stacks[named] = [made.of_locks[pair] for pair in zip(stacks[named].tolist(), rows["lock"][named].tolist())]
    ends_ns = rows["start_ns"] + rows["duration_ns"]
    gaps_ns = rows["start_ns"] - np.append(first_ns, ends_ns)[: len(rows)]
    columns = np.zeros((2, len(rows) + 1, 2 + len(STATES)), np.int64)
    columns[0] = nothing, nothing, *range(short, short + len(STATES))
    columns[1, :-1, 0], columns[0, :-1, 1] = gaps_ns, stacks
    columns[1, :-1, 1] = np.where(is_mixed, 0, rows["duration_ns"])
    columns[1, :-1, 2:] = np.where(is_mixed[:, np.newaxis], rows["state_ns"], 0)
    columns[1, -1, 0] = last_ns - (ends_ns[-1] if len(rows) else first_ns)
    of, ns = columns.reshape(2, -1)
    return of[ns > 0], ns[ns > 0]


def _all_threads(profile: Profile, frames: _Frames, made: _Stacks, shown: list[int]) -> list[str]:
    """What each thread spent in each stack, as tables have it: what speaks for others has their time."""
    spans = profile.spans
    assert spans is not None
    chosen = np.isin(spans["thread"], shown) & (spans["flags"] & SpanFlag.HIDDEN == 0)
    thread, stack = spans["thread"][chosen].astype(np.int64), made.of_spans[chosen]
    rank = np.zeros(len(profile.threads), np.int64)
    rank[shown] = np.arange(len(shown))
    first, codes = group_numbers([rank[thread], stack])
    if not len(first):
        return []
    weights = sums_by(codes, spans["stands_for_ns"][chosen], len(first)).tolist()
    has_several = len({profile.threads[each].pid for each in shown}) > 1
    roots: dict[int, list[int]] = {}
    for it in shown:
        names = [process_label(profile.threads[it])] * has_several + [thread_label(profile.threads[it])]
        roots[it] = [frames.place(name) for name in names]
    pairs = zip(thread[first].tolist(), stack[first].tolist())
    stacks = [_packed(stack)[1:] for stack in made.stacks]
    begins = {it: _packed(root)[:-1] for it, root in roots.items()}
    samples = [begins[thread] + ("," + stacks[stack] if made.stacks[stack] else "]") for thread, stack in pairs]
    head = {"type": "sampled", "name": _ALL_THREADS, "unit": "nanoseconds", "startValue": 0, "endValue": sum(weights)}
    text = f'{json.dumps(head)[:-1]}, "samples": [{",".join(samples)}], "weights": {json.dumps(weights)}}}'
    return [text]


def _packed(stack: list[int]) -> str:
    return f"[{','.join(map(str, stack))}]"


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
        of_rows = np.column_stack([np.full(len(own), len(profile.stacks)), own["stack"]]).reshape(-1)
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
    first = np.flatnonzero(np.append(True, stack[1:] != stack[:-1])[: len(stack)])
    weights = np.add.reduceat(durations_ns, first).tolist() if len(first) else []
    head = {
        "type": "sampled",
        "name": name,
        "unit": "nanoseconds",
        "startValue": start_ns,
        "endValue": start_ns + sum(weights),
    }
    samples = ",".join([stacks[index] for index in stack[first].tolist()])
    return f'{json.dumps(head, ensure_ascii=False)[:-1]}, "samples": [{samples}], "weights": {json.dumps(weights)}}}'
