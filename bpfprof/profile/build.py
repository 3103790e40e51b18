"""A recording to a Profile."""

from __future__ import annotations

from collections.abc import Iterator
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

# One row a (stack, state) of one thread before equal ones are added up; at_ns: when it began.
_PIECE_DTYPE = np.dtype(
    [
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
    stacks = _ProfileStacks(StackSource(recording))
    function_paths = _function_paths(recording)
    weights, timeline = [], []
    for thread in range(len(recording.threads)):
        totals = WeightTotals()
        kept = []
        for pieces in _pieces_of_thread(recording, intervals, thread, function_paths):
            totals.add(pieces)
            if with_timeline:
                kept.append(pieces)
        weights.append(_weights(thread, totals, stacks))
        if kept:
            timeline.append(_timeline(thread, np.concatenate(kept), stacks, intervals.start_ns))
    return Profile(
        _info(recording, intervals),
        _threads(recording, intervals),
        tuple(stacks.frames),
        tuple(stacks.stacks),
        np.concatenate([np.zeros(0, WEIGHT_DTYPE), *weights]),
        _quality(recording, intervals, stacks.source),
        np.concatenate([np.zeros(0, TIMELINE_DTYPE), *timeline]) if with_timeline else None,
    )


def _pieces_of_thread(
    recording: Recording, intervals: Intervals, thread: int, function_paths: npt.NDArray[np.int64]
) -> Iterator[npt.NDArray[np.void]]:
    mode = _mode(recording)
    if mode != "cpu":
        gil = recording.processes[recording.threads[thread].process].gil or (0, 0)
        for waits in intervals.waits.blocks(thread):
            yield from _wait_pieces(waits, gil)
    if mode != "offcpu" and intervals.on_cpu_ns[thread] + intervals.open_stolen_ns[thread] > 0:
        is_clock = recording.start.get("event", "cpu-clock") == "cpu-clock"
        period_ns = int(1e9 / max(1, int(recording.start.get("rate_hz", 0) or 1))) if is_clock else 0
        bursts = Bursts.of_thread(thread, intervals)
        # A burst began with the stack of the wait before it and ended with that of the wait after it.
        paths = np.concatenate([[0], function_paths[intervals.waits.column(thread, "stack")], [0]])
        groups = paths[:-1] * len(function_paths) + paths[1:]
        yield from _cpu_pieces(intervals.samples.of_thread(thread), bursts, groups, period_ns)


def _mode(recording: Recording) -> str:
    """both, cpu (only samples have stacks) or offcpu (only waits have)."""
    return str(recording.start.get("mode", "both"))


def _wait_pieces(waits: npt.NDArray[np.void], gil: tuple[int, int]) -> Iterator[npt.NDArray[np.void]]:
    gil_start = np.full(len(waits), gil[0], np.uint64)
    reasons = wait_reasons(waits, gil_start, gil_start + np.uint64(gil[1]))
    begin = waits["time_ns"].astype(np.int64) - (waits["blocked_ns"] + waits["runqueue_ns"]).astype(np.int64)
    blocked = _pieces(waits, waits["blocked_ns"], begin, reasons + np.uint16(_LEAF_WAIT), ThreadState.OFF_CPU)
    yield blocked[blocked["ns"] > 0]
    runnable_at = begin + waits["blocked_ns"].astype(np.int64)
    runnable = _pieces(waits, waits["runqueue_ns"], runnable_at, _LEAF_RUNQUEUE, ThreadState.RUNQUEUE)
    yield runnable[runnable["ns"] > 0]


def _pieces(
    rows: npt.NDArray[np.void], ns: npt.NDArray[Any], at_ns: npt.NDArray[Any], leaf: Any, state: int
) -> npt.NDArray[np.void]:
    pieces = np.zeros(len(rows), _PIECE_DTYPE)
    pieces["stack"], pieces["status"] = rows["stack"], rows["status"]
    pieces["ns"], pieces["at_ns"], pieces["leaf"], pieces["state"], pieces["count"] = ns, at_ns, leaf, state, 1
    return pieces


def _cpu_pieces(
    samples: npt.NDArray[np.void], bursts: Bursts, groups: npt.NDArray[np.int64], period_ns: int
) -> Iterator[npt.NDArray[np.void]]:
    positions = bursts.positions(samples["time_ns"].astype(np.int64))
    shares = share_cpu_time(positions, bursts.edges, period_ns, groups)
    pieces = np.zeros(len(shares.piece_start), _PIECE_DTYPE)
    named = shares.piece_sample >= 0
    chosen = samples[shares.piece_sample[named]]
    pieces["state"] = ThreadState.ON_CPU
    pieces["stack"][named], pieces["status"][named] = chosen["stack"], chosen["status"]
    pieces["leaf"] = np.where(named, _LEAF_NONE, _LEAF_NOT_SAMPLED)
    pieces["ns"] = shares.piece_length
    # A sample counts once, in its first piece.
    _, first = np.unique(shares.piece_sample, return_index=True)
    pieces["count"][first] = 1
    pieces["count"][~named] = 0
    pieces["at_ns"], stolen_ns = bursts.wall_clock(shares.piece_start, shares.piece_length)
    yield pieces
    yield _stolen_pieces(pieces, stolen_ns)
    yield _only_stolen_pieces(bursts)


def _only_stolen_pieces(bursts: Bursts) -> npt.NDArray[np.void]:
    """Run-queue time of bursts that were stolen whole: the thread had a CPU and never ran."""
    chosen = (np.diff(bursts.edges) == 0) & (bursts.wall_ns > 0)
    pieces = np.zeros(int(chosen.sum()), _PIECE_DTYPE)
    pieces["at_ns"], pieces["ns"] = bursts.start_ns[chosen], bursts.wall_ns[chosen]
    pieces["state"], pieces["leaf"], pieces["count"] = ThreadState.RUNQUEUE, _LEAF_NOT_SAMPLED_RUNQUEUE, 1
    return pieces


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


class WeightTotals:
    """Pieces of one thread added up by (stack, leaf, status, state)."""

    def __init__(self) -> None:
        self._sums: dict[int, list[int]] = {}  # key -> ns, count, longest

    def add(self, pieces: npt.NDArray[np.void]) -> None:
        """Takes more pieces."""
        keys, inverse = np.unique(_piece_keys(pieces), return_inverse=True)
        ns = np.bincount(inverse, weights=pieces["ns"], minlength=len(keys))  # exact below 2**53: 104 days
        counts = np.bincount(inverse, weights=pieces["count"], minlength=len(keys))
        longest = np.zeros(len(keys), np.int64)
        np.maximum.at(longest, inverse, pieces["ns"])
        for key, *values in zip(keys.tolist(), ns.tolist(), counts.tolist(), longest.tolist(), strict=True):
            sums = self._sums.setdefault(key, [0, 0, 0])
            sums[0] += int(values[0])
            sums[1] += int(values[1])
            sums[2] = max(sums[2], values[2])

    def items(self) -> Iterator[tuple[int, int, int, int]]:
        """(key, total ns, count, longest ns) of each that took any time."""
        return ((key, ns, count, longest) for key, (ns, count, longest) in self._sums.items() if ns > 0)


def _piece_keys(pieces: npt.NDArray[np.void]) -> npt.NDArray[np.uint64]:
    """stack << 32 | leaf << 16 | status << 8 | state"""
    keys = pieces["stack"].astype(np.uint64) << np.uint64(32) | pieces["leaf"].astype(np.uint64) << np.uint64(16)
    return np.asarray(keys | pieces["status"].astype(np.uint64) << np.uint64(8) | pieces["state"].astype(np.uint64))


@dataclass(slots=True)
class _ProfileStacks:
    """Stacks with their leaf marks, numbered as they are met."""

    source: StackSource
    frames: list[Frame] = field(default_factory=list)
    stacks: list[tuple[int, ...]] = field(default_factory=list)
    _numbers_of_key: dict[int, int] = field(default_factory=dict)
    _frame_numbers: dict[Frame, int] = field(default_factory=dict)
    _stack_numbers: dict[tuple[int, ...], int] = field(default_factory=dict)

    def number(self, key: int) -> int:
        """The profile's stack for a key of _piece_keys()."""
        key >>= 8  # the state makes no difference
        if key not in self._numbers_of_key:
            self._numbers_of_key[key] = self._add(key >> 24, key >> 8 & 0xFFFF, key & 0xFF)
        return self._numbers_of_key[key]

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


def _weights(thread: int, totals: WeightTotals, stacks: _ProfileStacks) -> npt.NDArray[np.void]:
    """Rows of WEIGHT_DTYPE; keys that lead to the same stack are added up once more."""
    sums: dict[tuple[int, int], list[int]] = {}
    for key, ns, count, longest in totals.items():
        row = sums.setdefault((stacks.number(key), key & 0xFF), [0, 0, 0])
        row[0], row[1], row[2] = row[0] + ns, row[1] + count, max(row[2], longest)
    weights = np.zeros(len(sums), WEIGHT_DTYPE)
    weights["thread"] = thread
    for position, ((stack, state), (ns, count, longest)) in enumerate(sorted(sums.items())):
        longest = 0 if state == ThreadState.ON_CPU else longest
        weights[position] = (thread, stack, state, count, ns, longest)
    return weights


def _timeline(thread: int, pieces: npt.NDArray[np.void], stacks: _ProfileStacks, start_ns: int) -> npt.NDArray[np.void]:
    pieces = pieces[pieces["ns"] > 0]
    pieces = pieces[np.argsort(pieces["at_ns"], kind="stable")]
    keys, inverse = np.unique(_piece_keys(pieces), return_inverse=True)
    timeline = np.zeros(len(pieces), TIMELINE_DTYPE)
    timeline["thread"], timeline["state"] = thread, pieces["state"]
    timeline["stack"] = np.array([stacks.number(key) for key in keys.tolist()], np.uint32)[inverse]
    timeline["start_ns"], timeline["duration_ns"] = (pieces["at_ns"] - start_ns).clip(0), pieces["ns"]
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
        _mode(recording),
    )


def _threads(recording: Recording, intervals: Intervals) -> tuple[ThreadTime, ...]:
    sample_counts, wait_counts = intervals.samples.counts(), intervals.waits.counts()
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
    counts = intervals.samples.status_counts()
    if recording.start.get("mode") != "cpu":  # which takes no stacks of waits
        counts = counts + intervals.waits.status_counts()
    for status in np.flatnonzero(counts).tolist():
        reason = source.reason(status)
        if reason and status != _NOT_STARTED:
            truncated[reason] = truncated.get(reason, 0) + int(counts[status])
        else:
            complete += int(counts[status])
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
