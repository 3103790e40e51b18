"""How much of the truth a recording holds, and what was recorded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TypeVar

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.columns import Columns
from bpfprof.account.spans import SpanSource
from bpfprof.cpython.layout import FREE_THREADED
from bpfprof.model.profile import Connection, CpuThrottle, Quality, RecordingInfo
from bpfprof.model.spans import ThreadState
from bpfprof.model.statuses import Status
from bpfprof.recording.contents import Recording
from bpfprof.stacks.stitch import StackSource

Told = TypeVar("Told")
_WITHOUT_NAME = "a Python function could not be read"


def recording_mode(recording: Recording) -> str:
    """both, cpu (only samples have stacks) or offcpu (only waits have)."""
    return str(recording.start.get("mode", "both"))


def recording_info(recording: Recording, duration_ns: int) -> RecordingInfo:
    """What was recorded, when, where and how."""
    start = recording.start
    targets = set(start.get("target_pids", []))
    named = [process for process in recording.processes if process.pid in targets]
    return RecordingInfo(
        command_line=tuple(named[0].command_line) if named else (),
        started_unix_ns=int(start.get("started_unix_ns", 0)),
        start_ns=int(start.get("start_ns", 0)),
        duration_ns=duration_ns,
        host_name=str(start.get("host_name", "")),
        kernel_release=str(start.get("kernel_release", "")),
        bpfprof_version=str(start.get("bpfprof_version", "")),
        rate_hz=int(start.get("rate_hz", 0)),
        event=str(start.get("event", "")),
        mode=recording_mode(recording),
        min_block_us=int(start.get("min_block_us", 0)),
        free_threaded=tuple(process.pid for process in recording.processes if process.build == FREE_THREADED),
        async_rate_hz=int(start.get("async_rate_hz", 0)),
        usage=_usage(recording),
        limit_hits=dict(_by_pid(recording.end.get("limit_hits", {}))),
        accepted=frozenset(recording.end.get("accepted", ())),
        asks=frozenset(recording.end.get("asks", ())),
        reader_pids=frozenset(recording.end.get("reader_pids", ())),
        own_pids=frozenset(recording.end.get("own_pids", ())),
        above_pids=frozenset(recording.end.get("above_pids", ())) - targets,
        listens=dict(_by_pid(recording.end.get("listens", {}))),
        cpu_limits={pid: percent / 100 for pid, percent in _by_pid(recording.end.get("cpu_limits", {})) if percent},
        cpu_throttles=_cpu_throttles(recording),
        connections=_connections(recording),
        in_other_network=frozenset(
            pid for pid, is_apart in _by_pid(recording.end.get("namespaces_apart", {})) if is_apart
        ),
        unread=_unread(recording),
        call_libraries=recording.end.get("call_libraries", {}) if start.get("counts_calls") else None,
    )


def _usage(recording: Recording) -> dict[int, tuple[int, int, int, int]]:
    rows = _by_pid(recording.end.get("usage", {}))
    return {pid: (row[0], row[1], row[2], row[3]) for pid, row in rows if len(row) == 4}


def _cpu_throttles(recording: Recording) -> dict[int, CpuThrottle]:
    rows, found = recording.end.get("cpu_throttled", {}), {}
    for pid, path in _by_pid(recording.end.get("cpu_throttled_by", {})):
        row = rows.get(path, [])
        if len(row) == 6 and all(row[:4]):
            found[pid] = CpuThrottle(path, row[0] / row[1], min(1.0, row[3] / row[2]), row[5])
    return found


def _connections(recording: Recording) -> dict[int, tuple[Connection, ...]]:
    return {
        pid: tuple(Connection(end, 1000 * row[0], row[1]) for end, row in rows.items() if len(row) == 2)
        for pid, rows in _by_pid(recording.end.get("round_trips", {}))
    }


def _by_pid(told: dict[str, Told]) -> Iterator[tuple[int, Told]]:
    return ((int(pid[:10]), value) for pid, value in told.items() if pid.isascii() and pid.isdigit())


def _unread(recording: Recording) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for process in recording.processes:
        if process.is_unread:
            found[process.note] = (*found.get(process.note, ()), f"{process.name} ({process.pid})")
    return found


def recording_quality(recording: Recording, spans: SpanSource, source: StackSource) -> Quality:
    """How much of the truth the recording holds, whatever is shown of it."""
    # In mode cpu waits have no stacks.
    has_waits = recording_mode(recording) != "cpu"
    # For each stack how many rows have it, of each status how many have no stack.
    stacks, own = np.zeros(len(source.statuses), np.int64), np.zeros(256, np.int64)
    waits = spans.threads.waits
    own_rows: list[npt.NDArray[np.void] | Columns] = [recording.samples, recording.events]
    for rows in chain(own_rows, (waits.rows(block) for block in waits.blocks() if has_waits)):
        stacks += np.bincount(rows["stack"], minlength=len(stacks))
        own += np.bincount(rows["status"][rows["stack"] == 0], minlength=len(own))
    stacks[0] = 0
    np.add.at(own, source.statuses, stacks)
    truncated: dict[str, int] = {}
    complete = unsampled = 0
    for status, count in enumerate(own.tolist()):
        reason = source.reason(status)
        if status == Status.NOT_SAMPLED:
            unsampled = count
        elif reason and status != Status.NOT_STARTED:
            truncated.update({reason: truncated.get(reason, 0) + count} if count else {})
        else:
            complete += count
    end = recording.end
    lost = {str(reason): int(count) for reason, count in dict(end.get("lost", {})).items()}
    # A stack that there was no room for is sent again with the next that has it: lost are those that never came.
    stack_lost = source.reason(Status.STACK_LOST)
    lost.pop(stack_lost, None)
    if stack_lost in truncated:
        lost[stack_lost] = truncated[stack_lost]
    whole = np.where(source.statuses == Status.OK, stacks, 0)
    without_names = int(whole[source.lacks_names].sum())
    if without_names:
        complete -= without_names
        truncated[_WITHOUT_NAME] = without_names
    sums = spans.sums if has_waits else spans.sums[:0]
    short = sums[~sums["is_unsampled"]]
    counts = sums["count"][sums["is_unsampled"] & (sums["state"] == ThreadState.OFF_CPU)]
    return Quality(
        complete_count=complete,
        python_only_count=int(whole[source.is_python_only].sum()),
        truncated_counts=truncated,
        lost_counts=lost,
        own_cpu_ns=int(end.get("own_cpu_ns", 0)),
        recording_ns=spans.threads.end_ns - spans.threads.start_ns,
        unfinished=recording.unfinished,
        without_rules_count=int(whole[source.is_without_rules].sum()),
        problem_counts=dict(end.get("problems", {})),
        missed_tasks=dict(end.get("tasks_missed", {})),
        short_count=int(short["count"][short["state"] == ThreadState.OFF_CPU].sum()),
        short_ns=int(short["ns"].sum()),
        untold_count=int(end.get("switches_untold", 0)),
        unsampled_count=int(counts.sum()) + unsampled,
    )
