"""A recording to a Profile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bpfprof import abi
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.profile import (
    TIMELINE_DTYPE,
    WEIGHT_DTYPE,
    Profile,
    Quality,
    RecordingInfo,
    ThreadState,
    ThreadTime,
)
from bpfprof.profile.bursts import Bursts
from bpfprof.profile.cpu_shares import share_cpu_time
from bpfprof.profile.intervals import Intervals, collect_intervals
from bpfprof.profile.waits import reason_text, wait_reasons
from bpfprof.recording.reader import Recording
from bpfprof.symbolize.stitch import StackSource

# What ends a stack: nothing, the run queue, "no sample", or a wait (its reason above _LEAF_WAIT).
_LEAF_NONE, _LEAF_RUNQUEUE, _LEAF_NOT_SAMPLED, _LEAF_NOT_SAMPLED_RUNQUEUE, _LEAF_WAIT = range(5)
_NOT_STARTED = int(abi.Status["BP_NOT_STARTED"])

# One row a (thread, stack, state) before equal ones are added up; at_ns: when it began.
_PIECE_DTYPE = np.dtype(
    [
        ("thread", "<u4"),
        ("stack", "<u4"),
        ("leaf", "<u2"),
        ("status", "u1"),
        ("state", "u1"),
        ("count", "<u4"),
        ("at_ns", "<i8"),
        ("ns", "<i8"),
    ]
)


def build_profile(recording: Recording, with_timeline: bool = False) -> Profile:
    """Every thread's wall time shared out over its stacks; `with_timeline` also keeps the order in time."""
    intervals = collect_intervals(recording)
    mode = str(recording.start.get("mode", "both"))
    pieces = [] if mode == "cpu" else _wait_pieces(recording, intervals)
    if mode != "offcpu":
        pieces.append(_cpu_pieces(recording, intervals))
    rows = np.concatenate(pieces) if pieces else np.zeros(0, _PIECE_DTYPE)
    stacks = _ProfileStacks(StackSource(recording))
    stack_of_row = stacks.number(rows)
    return Profile(
        _info(recording, intervals),
        _threads(recording, intervals),
        tuple(stacks.frames),
        tuple(stacks.stacks),
        _weights(rows, stack_of_row),
        _quality(recording, intervals, stacks.source),
        _timeline(rows, stack_of_row, intervals.start_ns) if with_timeline else None,
    )


def _wait_pieces(recording: Recording, intervals: Intervals) -> list[npt.NDArray[np.void]]:
    waits = intervals.waits
    gils = np.array(
        [recording.processes[thread.process].gil or (0, 0) for thread in recording.threads], np.uint64
    ).reshape(-1, 2)[waits["thread"]]
    reasons = wait_reasons(waits, gils[:, 0], gils[:, 0] + gils[:, 1])
    begin = waits["time_ns"].astype(np.int64) - (waits["blocked_ns"] + waits["runqueue_ns"]).astype(np.int64)
    blocked = _pieces(waits, waits["blocked_ns"], begin, reasons + np.uint16(_LEAF_WAIT), ThreadState.OFF_CPU)
    runnable_at = begin + waits["blocked_ns"].astype(np.int64)
    runnable = _pieces(waits, waits["runqueue_ns"], runnable_at, _LEAF_RUNQUEUE, ThreadState.RUNQUEUE)
    return [blocked[blocked["ns"] > 0], runnable[runnable["ns"] > 0]]


def _pieces(
    rows: npt.NDArray[np.void], ns: npt.NDArray[Any], at_ns: npt.NDArray[Any], leaf: Any, state: int
) -> npt.NDArray[np.void]:
    pieces = np.zeros(len(rows), _PIECE_DTYPE)
    for name in ("thread", "stack", "status"):
        pieces[name] = rows[name]
    pieces["ns"], pieces["at_ns"], pieces["leaf"], pieces["state"], pieces["count"] = ns, at_ns, leaf, state, 1
    return pieces


def _cpu_pieces(recording: Recording, intervals: Intervals) -> npt.NDArray[np.void]:
    """One thread after the other: its CPU time over its samples."""
    is_clock = recording.start.get("event", "cpu-clock") == "cpu-clock"
    period_ns = int(1e9 / max(1, int(recording.start.get("rate_hz", 0) or 1))) if is_clock else 0
    samples, waits = intervals.samples, intervals.waits
    numbers = np.arange(len(recording.threads) + 1)
    function_paths = _function_paths(recording)
    sample_at, wait_at = np.searchsorted(samples["thread"], numbers), np.searchsorted(waits["thread"], numbers)
    parts = [
        _thread_cpu_pieces(
            samples[sample_at[thread] : sample_at[thread + 1]],
            waits[wait_at[thread] : wait_at[thread + 1]],
            thread,
            intervals,
            period_ns,
            function_paths,
        )
        for thread in range(len(recording.threads))
        if intervals.on_cpu_ns[thread] > 0
    ]
    return np.concatenate(parts) if parts else np.zeros(0, _PIECE_DTYPE)


def _thread_cpu_pieces(
    samples: npt.NDArray[np.void],
    waits: npt.NDArray[np.void],
    thread: int,
    intervals: Intervals,
    period_ns: int,
    function_paths: npt.NDArray[np.int64],
) -> npt.NDArray[np.void]:
    bursts = Bursts.of_thread(waits, thread, intervals)
    # A burst began with the stack of the wait before it and ended with that of the wait after it.
    paths = np.concatenate([[0], function_paths[waits["stack"]], [0]])[: len(bursts.start_ns) + 1]
    positions = bursts.positions(samples["time_ns"].astype(np.int64))
    shares = share_cpu_time(positions, bursts.edges, period_ns, paths[:-1] * len(function_paths) + paths[1:])
    pieces = np.zeros(len(shares.piece_start), _PIECE_DTYPE)
    named = shares.piece_sample >= 0
    chosen = samples[shares.piece_sample[named]]
    pieces["thread"], pieces["state"] = thread, ThreadState.ON_CPU
    pieces["stack"][named], pieces["status"][named] = chosen["stack"], chosen["status"]
    pieces["leaf"] = np.where(named, _LEAF_NONE, _LEAF_NOT_SAMPLED)
    pieces["ns"] = shares.piece_length
    # A sample counts once, in its first piece.
    _, first = np.unique(shares.piece_sample, return_index=True)
    pieces["count"][first] = 1
    pieces["count"][~named] = 0
    pieces["at_ns"], stolen_ns = bursts.wall_clock(shares.piece_start, shares.piece_length)
    return np.concatenate([pieces, _stolen_pieces(pieces, stolen_ns)])


def _stolen_pieces(pieces: npt.NDArray[np.void], stolen_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
    """Run-queue time that follows pieces of CPU time, under the same stacks."""
    stolen = pieces[stolen_ns > 0].copy()
    stolen["at_ns"] += stolen["ns"]
    stolen["ns"] = stolen_ns[stolen_ns > 0]
    stolen["state"], stolen["count"] = ThreadState.RUNQUEUE, 1
    stolen["leaf"] = np.where(stolen["leaf"] == _LEAF_NOT_SAMPLED, _LEAF_NOT_SAMPLED_RUNQUEUE, _LEAF_RUNQUEUE)
    return stolen


def _function_paths(recording: Recording) -> npt.NDArray[np.int64]:
    """A number for each stack (0: no stack), the same for stacks that differ in lines only."""
    codes = recording.python_frames["code"]
    ends = np.cumsum(recording.stacks["python_count"], dtype=np.int64)
    numbers: dict[bytes, int] = {}
    paths = np.zeros(len(recording.stacks) + 1, np.int64)
    for index, (end, count) in enumerate(zip(ends.tolist(), recording.stacks["python_count"].tolist(), strict=True), 1):
        paths[index] = numbers.setdefault(codes[end - count : end].tobytes(), len(numbers) + 1)
    return paths


@dataclass(slots=True)
class _ProfileStacks:
    """Stacks with their leaf marks, numbered as they are met."""

    source: StackSource
    frames: list[Frame] = field(default_factory=list)
    stacks: list[tuple[int, ...]] = field(default_factory=list)
    _frame_numbers: dict[Frame, int] = field(default_factory=dict)
    _stack_numbers: dict[tuple[int, ...], int] = field(default_factory=dict)

    def number(self, rows: npt.NDArray[np.void]) -> npt.NDArray[np.uint32]:
        """The profile's stack of each piece."""
        key = rows["stack"].astype(np.uint64) << np.uint64(32)
        key |= rows["leaf"].astype(np.uint64) << np.uint64(8) | rows["status"].astype(np.uint64)
        unique, inverse = np.unique(key, return_inverse=True)
        numbers = [self._add(value >> 32, value >> 8 & 0xFFFF, value & 0xFF) for value in unique.tolist()]
        return np.array(numbers, np.uint32)[inverse] if numbers else np.zeros(0, np.uint32)

    def _add(self, stack: int, leaf: int, status: int) -> int:
        frames: tuple[Frame, ...] = ()
        if leaf in (_LEAF_NOT_SAMPLED, _LEAF_NOT_SAMPLED_RUNQUEUE):
            frames = (Frame(FrameKind.NOT_SAMPLED),)
        elif status != _NOT_STARTED or stack:
            frames = self.source.frames(stack, status)
        if leaf in (_LEAF_RUNQUEUE, _LEAF_NOT_SAMPLED_RUNQUEUE):
            frames += (Frame(FrameKind.RUNQUEUE),)
        elif leaf >= _LEAF_WAIT:
            frames += (Frame(FrameKind.WAIT, reason_text(leaf - _LEAF_WAIT)),)
        numbers = tuple(self._frame_number(frame) for frame in frames)
        if numbers not in self._stack_numbers:
            self._stack_numbers[numbers] = len(self.stacks)
            self.stacks.append(numbers)
        return self._stack_numbers[numbers]

    def _frame_number(self, frame: Frame) -> int:
        if frame not in self._frame_numbers:
            self._frame_numbers[frame] = len(self.frames)
            self.frames.append(frame)
        return self._frame_numbers[frame]


def _weights(rows: npt.NDArray[np.void], stack: npt.NDArray[np.uint32]) -> npt.NDArray[np.void]:
    order = np.lexsort((rows["state"], stack, rows["thread"]))
    rows, stack = rows[order], stack[order]
    if not len(rows):
        return np.zeros(0, WEIGHT_DTYPE)
    changes = (np.diff(rows["thread"]) != 0) | (np.diff(stack) != 0) | (np.diff(rows["state"]) != 0)
    begin = np.concatenate([[0], np.flatnonzero(changes) + 1])
    weights = np.zeros(len(begin), WEIGHT_DTYPE)
    weights["thread"], weights["stack"], weights["state"] = rows["thread"][begin], stack[begin], rows["state"][begin]
    weights["total_ns"] = np.add.reduceat(rows["ns"], begin)
    weights["count"] = np.add.reduceat(rows["count"], begin)
    longest = np.maximum.reduceat(rows["ns"], begin)
    weights["max_ns"] = np.where(weights["state"] == ThreadState.ON_CPU, 0, longest)
    return weights[weights["total_ns"] > 0]


def _timeline(
    rows: npt.NDArray[np.void], stack: npt.NDArray[np.uint32], start_ns: int
) -> npt.NDArray[np.void]:
    order = np.lexsort((rows["at_ns"], rows["thread"]))
    order = order[rows["ns"][order] > 0]
    timeline = np.zeros(len(order), TIMELINE_DTYPE)
    timeline["thread"], timeline["stack"], timeline["state"] = rows["thread"][order], stack[order], rows["state"][order]
    timeline["start_ns"], timeline["duration_ns"] = (rows["at_ns"][order] - start_ns).clip(0), rows["ns"][order]
    return timeline


def _info(recording: Recording, intervals: Intervals) -> RecordingInfo:
    start = recording.start
    targets = set(start.get("target_pids", []))
    named = [process for process in recording.processes if process.pid in targets]
    return RecordingInfo(
        tuple(named[0].command_line) if named else (),
        int(start.get("started_unix_ns", 0)),
        intervals.end_ns - intervals.start_ns,
        str(start.get("host_name", "")),
        str(start.get("kernel_release", "")),
        str(start.get("bpfprof_version", "")),
        int(start.get("rate_hz", 0)),
        str(start.get("event", "")),
        str(start.get("mode", "both")),
    )


def _threads(recording: Recording, intervals: Intervals) -> tuple[ThreadTime, ...]:
    sample_counts = np.bincount(intervals.samples["thread"], minlength=len(recording.threads))
    wait_counts = np.bincount(intervals.waits["thread"], minlength=len(recording.threads))
    times = []
    for index, thread in enumerate(recording.threads):
        process = recording.processes[thread.process]
        times.append(
            ThreadTime(
                Pid(process.pid),
                Tid(thread.tid),
                process.name,
                thread.name,
                max(0, int(intervals.first_ns[index]) - intervals.start_ns),
                max(0, int(intervals.last_ns[index]) - intervals.start_ns),
                int(intervals.on_cpu_ns[index]),
                int(intervals.runqueue_ns[index]),
                int(intervals.blocked_ns[index]),
                int(sample_counts[index]),
                int(wait_counts[index]),
            )
        )
    return tuple(times)


def _quality(recording: Recording, intervals: Intervals, source: StackSource) -> Quality:
    truncated: dict[str, int] = {}
    complete = 0
    for rows in (intervals.samples, intervals.waits):
        for status, count in zip(*np.unique(rows["status"], return_counts=True), strict=True):
            reason = source.reason(int(status))
            if reason and status != _NOT_STARTED:
                truncated[reason] = truncated.get(reason, 0) + int(count)
            else:
                complete += int(count)
    end = recording.end
    return Quality(
        complete,
        complete,
        truncated,
        {str(reason): int(count) for reason, count in dict(end.get("lost", {})).items()},
        int(end.get("own_cpu_ns", 0)),
        intervals.end_ns - intervals.start_ns,
        recording.unfinished,
    )
