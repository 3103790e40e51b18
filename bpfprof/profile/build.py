"""A recording to a Profile."""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.spans import Spans, SpanSource
from bpfprof.account.wakers import waker_table
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.profile import GIL_ROW_DTYPE, WEIGHT_DTYPE, Profile, ThreadTime
from bpfprof.model.samples import HOLDS_GIL
from bpfprof.model.spans import SPAN_DTYPE, SpanFlag, ThreadState
from bpfprof.model.states import reason_text
from bpfprof.profile.filters import Masks
from bpfprof.profile.options import OPEN_END_NS, ProfileOptions
from bpfprof.profile.quality import recording_info, recording_mode, recording_quality
from bpfprof.profile.stacks import ProfileStacks, span_keys
from bpfprof.profile.tasks import profile_tasks, task_spans
from bpfprof.profile.weights import ACCOUNT_DTYPE, Rows, account_of, event_weights_of, gil_waits_of, merged, weights_of
from bpfprof.recording.reader import Recording
from bpfprof.stacks.stitch import StackSource

_DEFAULT_OPTIONS = ProfileOptions()
_SHOWN = {"cpu": [ThreadState.ON_CPU], "offcpu": [ThreadState.RUNQUEUE, ThreadState.OFF_CPU]}  # by mode; else all


def build_profile(recording: Recording, options: ProfileOptions = _DEFAULT_OPTIONS) -> Profile:
    """Every thread's wall time shared out over its stacks."""
    return _Builder(recording, options).build()


class _Builder:
    def __init__(self, recording: Recording, options: ProfileOptions) -> None:
        self._recording, self._options = recording, options
        self._source = StackSource(recording, options.show_interpreter)
        self._spans = SpanSource(recording, self._source.statuses)
        self._stacks = ProfileStacks(self._source)
        self._masks = Masks(options.filter, recording, self._source)
        self._shown = _SHOWN.get(recording_mode(recording), list(ThreadState))

    def build(self) -> Profile:
        with_spans, window = self._options.with_spans, self._options.filter.window_ns
        has_thread = np.array([self._masks.has_thread(thread) for thread in range(len(self._recording.threads))], bool)
        threads, account, weights, gil_waits, kept = [], [], [], [], [np.zeros(0, SPAN_DTYPE)]
        for group in self._spans.groups():
            is_wanted = with_spans or has_thread[group.start : group.stop].any()
            of_group = []
            for block in self._spans.of_threads(group, window) if is_wanted else ():
                is_chosen = has_thread[block["thread"]]
                if not with_spans and not is_chosen.all():
                    block, is_chosen = block[is_chosen], is_chosen[is_chosen]
                shown = self._masks.of(block) & np.isin(block["state"], self._shown) & is_chosen
                chosen = block if shown.all() else block[shown]
                stacks = self._stacks.numbers(span_keys(chosen))
                if with_spans:
                    of_group.append(self._kept(block, shown, stacks))
                account.append(account_of(block if is_chosen.all() else block[is_chosen]))
                weights.append(weights_of(chosen, stacks))
                gil_waits.append(gil_waits_of(chosen))
            kept += [_in_order(np.concatenate(of_group))] if of_group else []
        accounts = merged(ACCOUNT_DTYPE, account)
        for group in self._spans.groups():
            overlaps = self._spans.overlaps_ns(group).tolist() if window is None else [0] * len(group)
            own = np.searchsorted(accounts["thread"], np.arange(group.start, group.stop + 1)).tolist()
            threads += [
                self._thread_time(thread, accounts[begin:end], overlap, bool(has_thread[thread]))
                for thread, begin, end, overlap in zip(group, own, own[1:], overlaps)
            ]
        spans = np.concatenate(kept)
        gil = merged(GIL_ROW_DTYPE, gil_waits)
        gil["stack"] = self._stacks.places(gil["stack"])
        duration_ns = self._spans.threads.end_ns - self._spans.threads.start_ns
        of_tasks = task_spans(self._recording, self._options.filter, self._source, self._stacks.interner, duration_ns)
        event_weights = self._event_weights(has_thread)
        return Profile(
            recording_info(self._recording, duration_ns),
            tuple(threads),
            tuple(self._stacks.interner.frames),
            tuple(self._stacks.interner.stacks),
            merged(WEIGHT_DTYPE, weights),
            recording_quality(self._recording, self._spans, self._source),
            spans if with_spans else None,
            waker_table(self._recording),
            gil,
            self._options.filter.text,
            profile_tasks(self._recording),
            of_tasks,
            tuple(self._recording.start.get("events", ())),
            event_weights,
            tuple(row.name for row in self._recording.objects),
            self._lock_holders(),
        )

    def _lock_holders(self) -> Rows:
        rows, begin_ns = self._recording.lock_holders.copy(), np.uint64(self._spans.threads.start_ns)
        rows = rows[(rows["time_ns"] >= begin_ns) & (rows["end_ns"] >= rows["time_ns"]) & (rows["holder"] > 0)]
        for name in ("time_ns", "end_ns"):
            rows[name] -= begin_ns
        return rows

    def _event_weights(self, has_thread: npt.NDArray[np.bool_]) -> Rows:
        """Events are filtered as spans on a CPU of no length would be."""
        rows = self._recording.events
        spans = np.zeros(len(rows), SPAN_DTYPE)
        for name in ("thread", "stack"):
            spans[name] = rows[name]
        spans["state"] = ThreadState.ON_CPU
        spans["status"] = np.where(rows["stack"] > 0, self._source.statuses[rows["stack"]], rows["status"])
        spans["flags"] = np.where(rows["flags"] & HOLDS_GIL > 0, SpanFlag.HOLDS_GIL, 0)
        begin_ns, end_ns = self._options.filter.window_ns or (0, OPEN_END_NS)
        at_ns = rows["time_ns"].astype(np.int64) - self._spans.threads.start_ns
        shown = self._masks.of(spans) & (at_ns >= begin_ns) & (at_ns < end_ns) & has_thread[rows["thread"]]
        return event_weights_of(rows[shown], self._stacks.numbers(span_keys(spans[shown])))

    def _kept(self, spans: Spans, shown: npt.NDArray[np.bool_], stacks: npt.NDArray[np.uint32]) -> Spans:
        """Spans with the profile's stacks; `stacks`: those of the shown ones."""
        kept = spans.copy()
        kept["flags"] |= np.where(shown, 0, SpanFlag.HIDDEN).astype(np.uint8)
        kept["stack"][shown] = stacks
        kept["stack"][~shown] = self._stacks.numbers(span_keys(spans[~shown]))
        for name in ("waker_stack", "holder_stack"):
            has_stack = np.flatnonzero(spans[name])
            kept[name][has_stack] = self._stacks.places(spans[name][has_stack])
        return kept

    def _thread_time(self, index: int, account: Rows, overlap_ns: int, is_shown: bool) -> ThreadTime:
        thread, threads, window = self._recording.threads[index], self._spans.threads, self._options.filter.window_ns
        process = self._recording.processes[thread.process]
        limits = np.array([threads.first_ns[index], threads.last_ns[index]]) - threads.start_ns
        if not is_shown:
            limits[:] = 0
        elif window is not None:
            limits = limits.clip(*window)
        first_ns, last_ns = limits.clip(0).tolist()
        by_state = [account[account["state"] == state] for state in ThreadState]
        on_cpu_ns, runqueue_ns, off_cpu_ns, _ = [int(rows["total_ns"].sum()) for rows in by_state]
        waits = by_state[ThreadState.OFF_CPU]
        waits = waits[np.argsort(-waits["total_ns"], kind="stable")]
        return ThreadTime(
            Pid(process.pid),
            Tid(thread.tid),
            process.name,
            thread.shown_name(process),
            first_ns,
            last_ns,
            on_cpu_ns,
            runqueue_ns,
            off_cpu_ns,
            int(by_state[ThreadState.ON_CPU]["count"].sum()),
            int(waits["count"].sum()),
            tuple((reason_text(reason), ns) for reason, ns in waits[["reason", "total_ns"]].tolist()),
            overlap_ns if last_ns else 0,
            process.namespace_pid,
            process.cgroup,
            process.is_kernel_thread,
        )


def _in_order(spans: Spans) -> Spans:
    """By thread and time."""
    return np.asarray(spans[np.lexsort((spans["start_ns"], spans["thread"]))])
