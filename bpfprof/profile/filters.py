"""Which spans of a recording a profile is made of: a SpanFilter in, masks out."""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.spans import SpanFlag, ThreadState
from bpfprof.model.states import AWAIT_REASONS, is_reason, reason_number
from bpfprof.profile.options import NO_LOAD, UNINTERRUPTIBLE, SpanFilter
from bpfprof.recording.contents import Recording
from bpfprof.stacks.stitch import StackSource

Bools = npt.NDArray[np.bool_]


class Masks:
    """The masks of one filter on one recording."""

    def __init__(self, wanted: SpanFilter, recording: Recording, source: StackSource) -> None:
        self._wanted, self._recording, self._source = wanted, recording, source
        # Some are reasons of asyncio tasks alone.
        self._reasons = [reason_number(word) for word in wanted.reasons if word not in AWAIT_REASONS or is_reason(word)]

    def has_thread(self, index: int) -> bool:
        """Whether spans of this thread pass at all."""
        thread = self._recording.threads[index]
        process = self._recording.processes[thread.process]
        return _has(self._wanted.process, process.name, process.pid) and _has(
            self._wanted.thread, thread.shown_name(process), thread.tid
        )

    def of(self, spans: npt.NDArray[np.void], longest_ns: npt.NDArray[np.int64]) -> Bools:
        """For each span whether it passes; longest_ns: how long the longest wait is that it is of, all of which pass or
        none."""
        wanted, is_wait = self._wanted, spans["state"] == ThreadState.OFF_CPU
        passes = spans["state"] != ThreadState.UNKNOWN
        if wanted.states:
            passes &= np.isin(spans["state"], list(wanted.states))
        if wanted.function is not None:
            passes &= self._has_function[spans["stack"]]
        if wanted.holds_gil:
            passes &= spans["flags"] & SpanFlag.HOLDS_GIL > 0
        if wanted.reasons:
            passes &= is_wait & np.isin(spans["reason"], self._reasons)
        if wanted.task_states:
            states = spans["task_state"].copy()
            states[states & NO_LOAD > 0] &= np.uint16(~UNINTERRUPTIBLE & 0xFFFF)
            passes &= is_wait & (states & np.uint16(wanted.task_states) > 0)
        if wanted.min_block_ns:
            passes &= is_wait & (longest_ns >= wanted.min_block_ns)
        if wanted.hides_idle:
            passes &= spans["flags"] & SpanFlag.IDLE == 0
        return np.asarray(passes)

    @cached_property
    def _has_function(self) -> Bools:
        """For each stack by its number."""
        pattern, source = self._wanted.function, self._source
        assert pattern is not None
        stacks = range(1, len(source.statuses))
        found = [any(pattern.search(frame.name) for frame in source.frames(stack, 0)) for stack in stacks]
        return np.array([False, *found])


def find_nothing(wanted: SpanFilter, recording: Recording) -> tuple[str, re.Pattern[str], list[str]] | None:
    """What no process, or no thread of the processes asked for, has in its name, where it was asked for.

    "process" or "thread", the pattern, and the names that there are. Nothing is said of a recording without threads.
    """
    threads = [(thread, recording.processes[thread.process]) for thread in recording.threads]
    of_process = [(thread, process) for thread, process in threads if _has(wanted.process, process.name, process.pid)]
    if wanted.process is not None and threads and not of_process:
        return "process", wanted.process, [process.name for _, process in threads]
    names = [(thread.shown_name(process), thread.tid) for thread, process in of_process]
    if wanted.thread is not None and names and not any(_has(wanted.thread, *name) for name in names):
        return "thread", wanted.thread, [name for name, _ in names]
    return None


def other_functions(pattern: re.Pattern[str], recording: Recording) -> list[str]:
    """The functions that there are, if none has this in its name; of all stacks, whatever else is asked for."""
    source = StackSource(recording, show_interpreter=True)
    stacks = range(1, len(source.statuses))
    names = dict.fromkeys(frame.name for stack in stacks for frame in source.frames(stack, 0) if frame.name)
    return [] if any(map(pattern.search, names)) else list(names)


def _has(pattern: re.Pattern[str] | None, name: str, number: int) -> bool:
    return pattern is None or pattern.search(f"{name} ({number})") is not None


def wait_lengths(spans: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    """For each span of a wait with a row how long all of that wait was blocked; of all other spans 0.

    A wait for a GIL comes as many spans; those of one wait stand together.
    """
    lengths = np.zeros(len(spans), np.int64)
    blocked = np.flatnonzero((spans["state"] == ThreadState.OFF_CPU) & (spans["wait"] > 0))
    if len(blocked):
        first = np.flatnonzero(np.diff(spans["wait"][blocked].astype(np.int64), prepend=-1))
        sums = np.add.reduceat(spans["duration_ns"][blocked], first)
        lengths[blocked] = np.repeat(sums, np.diff(np.append(first, len(blocked))))
    return lengths
