"""Where the wall time of each thread went, how much of the truth is there, and what was recorded."""

from __future__ import annotations

import numpy as np

from bpfprof.account.intervals import Intervals, sums_by
from bpfprof.account.lent_stacks import NOT_SAMPLED
from bpfprof.account.reasons import reason_text
from bpfprof.account.wait_facts import WaitFacts
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.profile import Quality, RecordingInfo, ThreadTime
from bpfprof.model.statuses import Status
from bpfprof.profile.profile_stacks import NOT_STARTED
from bpfprof.recording.reader import Recording
from bpfprof.stacks.stitch import StackSource

_OK = int(Status.OK)


def recording_mode(recording: Recording) -> str:
    """both, cpu (only samples have stacks) or offcpu (only waits have)."""
    return str(recording.start.get("mode", "both"))


def recording_info(recording: Recording, intervals: Intervals) -> RecordingInfo:
    """What was recorded, when, where and how."""
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
        recording_mode(recording),
        int(start.get("min_block_us", 0)),
    )


def thread_times(recording: Recording, intervals: Intervals, facts: WaitFacts) -> tuple[ThreadTime, ...]:
    """One for each thread, by its index: the scheduler's CPU time, and what the rows and sums of waits hold."""
    added = sums_by(facts.sums["thread"], facts.sums["count"], len(recording.threads))
    sample_counts, wait_counts = intervals.samples.counts(), intervals.waits.counts() + added
    by_reason = _times_by_reason(intervals, facts)
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
                tuple((reason_text(reason), ns) for ns, reason in by_reason.get(index, ())),
            )
        )
    return tuple(times)


def _times_by_reason(intervals: Intervals, facts: WaitFacts) -> dict[int, list[tuple[int, int]]]:
    """Thread -> (ns it was blocked, reason), most first, of waits with a row and of those that were only added up."""
    waits, sums = intervals.waits, facts.sums
    blocked = waits.in_order(np.concatenate([rows["blocked_ns"] for rows in waits.parts]))
    thread = np.repeat(np.arange(len(waits.begin) - 1), np.diff(waits.begin))
    keys = np.concatenate([thread, sums["thread"]]) << 16 | np.concatenate([facts.reasons, sums["reason"]])
    unique, inverse = np.unique(keys, return_inverse=True)
    times = sums_by(inverse, np.concatenate([blocked.astype(np.int64), sums["blocked_ns"]]), len(unique))
    found: dict[int, list[tuple[int, int]]] = {}
    for ns, key in sorted(zip(times.tolist(), unique.tolist(), strict=True), key=lambda item: (-item[0], item[1])):
        if ns:
            found.setdefault(key >> 16, []).append((ns, key & 0xFFFF))
    return found


def recording_quality(recording: Recording, intervals: Intervals, source: StackSource, facts: WaitFacts) -> Quality:
    """How much of the truth the recording holds."""
    truncated: dict[str, int] = {}
    complete = unsampled_long = 0
    lent = intervals.waits.count_with_lent_stacks()
    # In mode cpu waits have no stacks.
    has_waits = recording_mode(recording) != "cpu"
    tables = [intervals.samples] + [intervals.waits] * has_waits
    counts = np.sum([rows.status_counts() for rows in tables], axis=0)
    for status in np.flatnonzero(counts).tolist():
        reason = source.reason(status)
        if status == NOT_SAMPLED:
            unsampled_long = int(counts[status]) - lent
        elif reason and status != NOT_STARTED:
            truncated[reason] = truncated.get(reason, 0) + int(counts[status])
        else:
            complete += int(counts[status])
    end = recording.end
    lost = {str(reason): int(count) for reason, count in dict(end.get("lost", {})).items()}
    stack_lost = source.reason(Status.STACK_LOST)
    if stack_lost in truncated:
        lost[stack_lost] = max(lost.get(stack_lost, 0), truncated[stack_lost])
    whole = source.statuses == _OK
    sums = facts.sums if has_waits else facts.sums[:0]
    short = sums[~sums["is_unsampled"]]
    return Quality(
        complete,
        sum(rows.count_of(whole & source.is_python_only) for rows in tables),
        truncated,
        lost,
        int(end.get("own_cpu_ns", 0)),
        intervals.end_ns - intervals.start_ns,
        recording.unfinished,
        sum(rows.count_of(whole & source.is_without_rules) for rows in tables),
        dict(end.get("problems", {})),
        short_count=int(short["count"].sum()),
        short_ns=int(short["blocked_ns"].sum() + short["runqueue_ns"].sum()),
        unsampled_count=int(sums["count"][sums["is_unsampled"]].sum()) + lent,
        unsampled_long_count=unsampled_long,
    )
