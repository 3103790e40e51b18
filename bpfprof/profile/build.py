"""A recording to a Profile."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bpfprof.account.cpu_clock import Bursts
from bpfprof.account.gil import waits_behind
from bpfprof.account.intervals import Intervals, collect_intervals
from bpfprof.account.lent_stacks import NOT_SAMPLED
from bpfprof.account.pieces import (
    NOT_SAMPLED_STACK,
    PIECE_DTYPE,
    SHORT_STACK,
    WeightTotals,
    cpu_pieces,
    piece_keys,
    short_pieces,
    wait_pieces,
)
from bpfprof.account.short_waits import Spread, short_weights, spread_rest, spread_unsampled
from bpfprof.account.timeline import without_gaps
from bpfprof.account.wait_facts import WaitFacts, collect_facts
from bpfprof.model.profile import TIMELINE_DTYPE, WEIGHT_DTYPE, Profile, ThreadState
from bpfprof.model.samples import HOLDS_GIL
from bpfprof.profile.options import ProfileOptions
from bpfprof.profile.profile_stacks import ProfileStacks, function_paths
from bpfprof.profile.thread_times import recording_info, recording_mode, recording_quality, thread_times
from bpfprof.profile.wait_table import gil_rows, wait_table
from bpfprof.recording.reader import Recording
from bpfprof.stacks.stitch import StackSource

_DEFAULT_OPTIONS = ProfileOptions()


def build_profile(recording: Recording, options: ProfileOptions = _DEFAULT_OPTIONS) -> Profile:
    """Every thread's wall time shared out over its stacks."""
    recording = copy(recording)
    recording.samples, recording.waits, recording.totals = (
        rows.copy() for rows in (recording.samples, recording.waits, recording.totals)
    )
    source = StackSource(recording, options.show_interpreter)
    for rows in (recording.samples, recording.waits, recording.totals):
        has_stack = (rows["stack"] > 0) & (rows["status"] != NOT_SAMPLED)
        rows["status"][has_stack] = source.statuses[rows["stack"][has_stack]]
    intervals = collect_intervals(recording)
    facts = collect_facts(recording, intervals)
    spreads = spread_unsampled(facts.sums, intervals, facts.reasons)
    stacks = ProfileStacks(source)
    shares = _Shares(recording, intervals, facts, spreads, function_paths(recording), options)
    threads = thread_times(recording, intervals, facts)
    weights, timeline = [], []
    for thread in range(len(recording.threads)):
        totals = WeightTotals()
        kept = []
        for pieces in shares.of_thread(thread):
            totals.add(pieces)
            if options.with_timeline:
                kept.append(pieces)
        weights.append(_weights(thread, totals, stacks))
        rows = _timeline(kept, stacks, intervals.start_ns)
        if len(rows):
            timeline.append(without_gaps(rows, threads[thread], thread, stacks.empty))
    held = waits_behind(intervals, facts.gil)
    gil = gil_rows(held, facts, stacks)
    waits = wait_table(recording, intervals, facts, spreads, stacks, held) if options.with_waits else None
    return Profile(
        recording_info(recording, intervals),
        threads,
        tuple(stacks.frames),
        tuple(stacks.stacks),
        np.concatenate([np.zeros(0, WEIGHT_DTYPE), *weights]),
        recording_quality(recording, intervals, source, facts),
        np.concatenate([np.zeros(0, TIMELINE_DTYPE), *timeline]) if options.with_timeline else None,
        waits,
        gil,
    )


@dataclass(frozen=True)
class _Shares:
    """The time of each thread in pieces."""

    recording: Recording
    intervals: Intervals
    facts: WaitFacts
    spreads: dict[int, Spread]
    function_paths: npt.NDArray[np.int64]
    options: ProfileOptions

    def of_thread(self, thread: int) -> Iterator[npt.NDArray[np.void]]:
        """All its pieces, a bounded number of waits at a time."""
        mode = recording_mode(self.recording)
        first, last = np.searchsorted(self.facts.sums["thread"], (thread, thread + 1))
        sums = self.facts.sums[first:last]
        if mode != "cpu":
            yield from self._waits(thread, sums)
        yield from self._cpu(thread, sums, mode)

    def _waits(self, thread: int, sums: npt.NDArray[np.void]) -> Iterator[npt.NDArray[np.void]]:
        begin, spread = self.intervals.waits.begin[thread], self.spreads.get(thread)
        for place, waits in self.intervals.waits.blocks(thread):
            here = slice(place, place + len(waits))
            whole_ns = self.facts.whole_ns(place, waits["blocked_ns"].astype(np.int64))
            blocked, runnable = wait_pieces(waits, self.facts.reasons[here], whole_ns, self.facts.is_first[here])
            if spread is not None:
                own = slice(place - begin, place - begin + len(waits))
                blocked["weight_ns"] += spread.blocked_ns[own]
                blocked["count"] += spread.blocked_count[own]
                runnable["weight_ns"] += spread.runqueue_ns[own]
                runnable["count"] += spread.runqueue_count[own]
            held = waits["flags"] & HOLDS_GIL > 0 if self.options.gil_only else True
            yield blocked[(blocked["ns"] > 0) & held]
            yield runnable[(runnable["ns"] > 0) & held]
        if not self.options.gil_only:
            yield from short_weights(sums[~sums["is_unsampled"]])
            if spread is not None:
                yield from spread_rest(spread)

    def _cpu(self, thread: int, sums: npt.NDArray[np.void], mode: str) -> Iterator[npt.NDArray[np.void]]:
        intervals, recording = self.intervals, self.recording
        added_ns = sums["blocked_ns"] + sums["runqueue_ns"]
        short_ns = int(added_ns.sum()) if mode != "cpu" and not self.options.gil_only else 0
        # What a gap on the timeline is called: what most of the time without rows was.
        unsampled_ns = int(added_ns[sums["is_unsampled"]].sum())
        short_stack = NOT_SAMPLED_STACK if 2 * unsampled_ns > short_ns else SHORT_STACK
        if intervals.on_cpu_ns[thread] + intervals.open_stolen_ns[thread] + short_ns <= 0:
            return
        if mode == "offcpu":
            if short_ns and self.options.with_timeline:
                bursts = Bursts.of_thread(thread, intervals, short_ns)
                yield short_pieces(bursts.start_ns + bursts.wall_ns, bursts.short_ns, short_stack)
            return
        bursts = Bursts.of_thread(thread, intervals, short_ns)
        is_clock = recording.start.get("event", "cpu-clock") == "cpu-clock"
        period_ns = int(1e9 / max(1, int(recording.start.get("rate_hz", 0) or 1))) if is_clock else 0
        # A burst began with the stack of the wait before it and ended with that of the wait after it.
        paths = np.concatenate([[0], self.function_paths[intervals.waits.column(thread, "stack")], [0]])
        groups = paths[:-1] * len(self.function_paths) + paths[1:]
        samples = intervals.samples.of_thread(thread)
        yield from cpu_pieces(samples, bursts, groups, period_ns, short_stack, self.options.gil_only)


def _weights(thread: int, totals: WeightTotals, stacks: ProfileStacks) -> npt.NDArray[np.void]:
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


def _timeline(parts: list[npt.NDArray[np.void]], stacks: ProfileStacks, start_ns: int) -> npt.NDArray[np.void]:
    """The pieces of one thread that have a place on it, as rows of TIMELINE_DTYPE without their thread."""
    pieces = np.concatenate([np.zeros(0, PIECE_DTYPE), *parts])
    pieces = pieces[pieces["ns"] > 0]
    pieces = pieces[np.argsort(pieces["at_ns"], kind="stable")]
    timeline = np.zeros(len(pieces), TIMELINE_DTYPE)
    timeline["state"] = pieces["state"]
    timeline["stack"] = stacks.numbers(piece_keys(pieces))
    timeline["start_ns"], timeline["duration_ns"] = (pieces["at_ns"] - start_ns).clip(0), pieces["ns"]
    return timeline
