"""A recording to a Profile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.added_up import AddedUp, AddingSource, Wanted
from bpfprof.account.groups import Group
from bpfprof.account.spans import Spans
from bpfprof.account.wakers import waker_table
from bpfprof.known.frameworks import OF_RANKS
from bpfprof.model.ahead import ahead, side_by_side
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.memory import give_back_freed
from bpfprof.model.profile import (
    GIL_ROW_DTYPE,
    PROFILE_MARK_DTYPE,
    PROFILE_SAMPLE_DTYPE,
    WEIGHT_DTYPE,
    LastWait,
    Profile,
    ThreadTime,
)
from bpfprof.model.rows import copied, one_after_another, picked
from bpfprof.model.samples import HOLDS_GIL
from bpfprof.model.spans import SPAN_DTYPE, SpanFlag, ThreadState
from bpfprof.model.states import reason_text
from bpfprof.profile.calls import has_launches, profile_calls
from bpfprof.profile.concurrency import ConcurrencyTimes, GroupChanges
from bpfprof.profile.filters import Masks
from bpfprof.profile.kept import KeptSpans, in_order, singly
from bpfprof.profile.options import OPEN_END_NS, ProfileOptions
from bpfprof.profile.quality import recording_info, recording_mode, recording_quality
from bpfprof.profile.stacks import ProfileStacks, span_keys
from bpfprof.profile.tasks import profile_tasks, task_spans
from bpfprof.profile.weights import (
    ACCOUNT_DTYPE,
    Rows,
    Sums,
    account_of,
    added_up,
    event_weights_of,
    gil_waits_of,
    weights_of,
)
from bpfprof.recording.contents import Recording
from bpfprof.stacks.stitch import StackSource

_DEFAULT_OPTIONS = ProfileOptions()
_SHOWN = {"cpu": [ThreadState.ON_CPU], "offcpu": [ThreadState.RUNQUEUE, ThreadState.OFF_CPU]}  # by mode; else all
# Of more waits the order in time takes too much memory, for what is said of steps beside it.
_STEPS_WAITS = 1_000_000


def build_profile(recording: Recording, options: ProfileOptions = _DEFAULT_OPTIONS) -> Profile:
    """Every thread's wall time shared out over its stacks."""
    builder = _Builder(recording, options)
    if recording.is_large:
        give_back_freed()
    profile = builder.build()
    del builder
    if recording.is_large:
        give_back_freed()
    return profile


class _Builder:
    def __init__(self, recording: Recording, options: ProfileOptions) -> None:
        self._recording, self._options = recording, options
        self._source = StackSource(recording, options.show_interpreter)
        self._spans = AddingSource(recording, self._source.statuses)
        self._stacks = ProfileStacks(self._source)
        self._masks = Masks(options.filter, recording, self._source)
        self._shown = _SHOWN.get(recording_mode(recording), list(ThreadState))

    def build(self) -> Profile:
        with_spans, window = self._options.with_spans, self._options.filter.window_ns
        has_thread = np.array([self._masks.has_thread(thread) for thread in range(len(self._recording.threads))], bool)
        account, weights, gil_waits = Sums(ACCOUNT_DTYPE), Sums(WEIGHT_DTYPE), Sums(GIL_ROW_DTYPE)
        kept = KeptSpans(self._options.has_whole_waits, self._options.with_pieces)
        concurrency = self._concurrency()
        for of_group_made in self._groups(has_thread, concurrency):
            of_group: list[Rows] = []
            for made in of_group_made:
                block, longest_ns = made.spans, made.longest_ns
                is_chosen = has_thread[block["thread"]]
                if not with_spans and not is_chosen.all():
                    block, longest_ns, is_chosen = picked(block, is_chosen), longest_ns[is_chosen], is_chosen[is_chosen]
                shown = self._masks.of(block, longest_ns) & np.isin(block["state"], self._shown) & is_chosen
                shown &= block["duration_ns"] > 0  # what is added up has kinds of spans that no time is of
                chosen, longest_ns = (block, longest_ns) if shown.all() else (picked(block, shown), longest_ns[shown])
                stacks = self._stacks.numbers(span_keys(chosen))
                if with_spans and made.times is not None:
                    kept.add_sums(self._kept(block, shown, stacks), made)
                elif with_spans:
                    of_group.append(self._kept(block, shown, stacks))
                account.add(account_of(block if is_chosen.all() else picked(block, is_chosen)))
                weights.add(weights_of(chosen, stacks, longest_ns))
                gil_waits.add(gil_waits_of(chosen))
            if of_group:
                spans = one_after_another(SPAN_DTYPE, of_group)
                of_group.clear()  # they are large where a thread has many waits
                kept.add(spans if self._options.with_pieces else self._added_up(spans))
        accounts = account.rows()
        overlaps = self._spans.overlaps_ns() if window is None else np.zeros(len(has_thread), np.int64)
        own = np.searchsorted(accounts["thread"], np.arange(len(has_thread) + 1)).tolist()
        threads = [
            self._thread_time(thread, accounts[begin:end], overlap, is_shown)
            for thread, (begin, end, overlap, is_shown) in enumerate(
                zip(own, own[1:], overlaps.tolist(), has_thread.tolist())
            )
        ]
        gil = copied(gil_waits.rows())
        gil["stack"] = self._stacks.places(gil["stack"])
        duration_ns = self._spans.threads.end_ns - self._spans.threads.start_ns
        of_tasks = task_spans(self._recording, self._options.filter, self._source, self._stacks.interner, duration_ns)
        event_weights = self._event_weights(has_thread)
        with_samples = self._options.with_samples or (self._options.with_spans and self._tells_steps)
        samples = self._samples() if with_samples else np.zeros(0, PROFILE_SAMPLE_DTYPE)
        return Profile(
            recording_info(self._recording, duration_ns),
            tuple(threads),
            tuple(self._stacks.interner.frames),
            tuple(self._stacks.interner.stacks),
            weights.rows(),
            recording_quality(self._recording, self._spans, self._source),
            kept.spans if with_spans else None,
            waker_table(self._recording),
            gil,
            self._options.filter.text,
            profile_tasks(self._recording),
            of_tasks,
            tuple(self._recording.start.get("events", ())),
            event_weights,
            tuple(row.name for row in self._recording.objects),
            self._lock_holders(),
            *self._marks(),
            samples,
            kept.times if self._options.adds_up else None,
            kept.holders,
            kept.pieces if self._options.with_pieces else None,
            concurrency.found(self._lifetime(threads)) if concurrency else None,
            self._last_waits(has_thread),
            *profile_calls(self._recording, has_thread),
            is_of_window=window is not None,
            pieces_ns=self._pieces_ns,
        )

    @cached_property
    def _pieces_ns(self) -> int:
        """0 where pieces are single: of a recording that is not large, and where the order is needed."""
        groups = self._spans.groups if self._recording.is_large else ()
        parts = self._options.piece_parts if any(map(self._adds_up, groups)) else 0
        begin_ns, end_ns = self._options.filter.window_ns or (0, OPEN_END_NS)
        end_ns = min(end_ns, self._spans.threads.end_ns - self._spans.threads.start_ns)
        return max(1, end_ns - begin_ns) // parts if parts else 0

    def _concurrency(self) -> ConcurrencyTimes | None:
        if not (self._options.with_concurrency and self._options.filter.is_of_threads):
            return None
        threads, tells_alone = self._spans.threads, not self._options.filter.chooses_threads
        return ConcurrencyTimes(len(self._recording.threads), (threads.start_ns, threads.end_ns), tells_alone)

    def _lifetime(self, threads: list[ThreadTime]) -> tuple[int, int]:
        """On the kernel's clock from the first moment of any thread that is shown to the last of any."""
        shown, start_ns = [thread for thread in threads if thread.wall_ns > 0], self._spans.threads.start_ns
        begin_ns, end_ns = (
            min((each.first_ns for each in shown), default=0),
            max((each.last_ns for each in shown), default=0),
        )
        return start_ns + begin_ns, start_ns + end_ns

    def _samples(self) -> Rows:
        """Of the window, by thread and time."""
        rows, window = self._recording.samples, self._options.filter.window_ns or (0, OPEN_END_NS)
        at_ns = rows["time_ns"].astype(np.int64) - self._spans.threads.start_ns
        chosen = np.flatnonzero((at_ns >= window[0]) & (at_ns < window[1]))
        chosen = chosen[np.lexsort((at_ns[chosen], rows["thread"][chosen]))]
        spans = np.zeros(len(chosen), SPAN_DTYPE)
        spans["thread"], spans["stack"], spans["state"] = (
            rows["thread"][chosen],
            rows["stack"][chosen],
            ThreadState.ON_CPU,
        )
        spans["status"] = np.where(spans["stack"] > 0, self._source.statuses[spans["stack"]], rows["status"][chosen])
        found = np.zeros(len(chosen), PROFILE_SAMPLE_DTYPE)
        found["time_ns"], found["thread"] = at_ns[chosen], spans["thread"]
        found["stack"] = self._stacks.numbers(span_keys(spans))
        return found

    def _marks(self) -> tuple[Rows, tuple[str, ...]]:
        """(rows of PROFILE_MARK_DTYPE, names)"""
        rows, window = self._recording.marks, self._options.filter.window_ns or (0, OPEN_END_NS)
        texts, numbers = self._recording.texts, dict[str, int]()
        used, place = np.unique(rows["name"], return_inverse=True)
        named = [texts[each] if each < len(texts) else "" for each in used.tolist()]
        name = np.array([numbers.setdefault(text, len(numbers)) for text in named] or [0])[place]
        found = np.zeros(len(rows), PROFILE_MARK_DTYPE)
        found["start_ns"] = rows["time_ns"].astype(np.int64) - self._spans.threads.start_ns
        is_length = (rows["value"] >= 0) & (rows["value"] < OPEN_END_NS)  # false of what is no number, too
        found["duration_ns"] = np.where(is_length, rows["value"], 0)
        found["thread"], found["name"] = rows["thread"], name
        end_ns = found["start_ns"] + found["duration_ns"]
        found = found[is_length & (found["start_ns"] >= window[0]) & (end_ns <= window[1])]
        return picked(found, in_order(found)), tuple(numbers)

    def _lock_holders(self) -> Rows:
        """By thread and time."""
        rows, begin_ns = self._recording.lock_holders.copy(), np.uint64(self._spans.threads.start_ns)
        rows = rows[(rows["time_ns"] >= begin_ns) & (rows["end_ns"] >= rows["time_ns"]) & (rows["holder"] > 0)]
        for name in ("time_ns", "end_ns"):
            rows[name] -= begin_ns
        return picked(rows, np.lexsort((rows["time_ns"], rows["thread"])))

    def _last_waits(self, has_thread: npt.NDArray[np.bool_]) -> tuple[LastWait, ...]:
        """Of threads that are shown, where what is shown goes on to the end."""
        if self._options.filter.window_ns is not None:
            return ()
        found = {
            wait.thread: LastWait(
                wait.thread,
                wait.kind,
                wait.name,
                wait.holder - 1,
                wait.held_by,
                wait.nobody,
                wait.waited_ns,
                wait.has_end,
            )
            for wait in self._recording.last_waits
            if has_thread[wait.thread]
        }
        return tuple(found.values())

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
        shown = (
            self._masks.of(spans, spans["duration_ns"])
            & (at_ns >= begin_ns)
            & (at_ns < end_ns)
            & has_thread[rows["thread"]]
        )
        return event_weights_of(rows[shown], self._stacks.numbers(span_keys(spans[shown])))

    def _kept(self, spans: Spans, shown: npt.NDArray[np.bool_], stacks: npt.NDArray[np.uint32]) -> Spans:
        """Spans with the profile's stacks; `stacks`: those of the shown ones."""
        kept = copied(spans)
        kept["flags"] |= np.where(shown, 0, SpanFlag.HIDDEN).astype(np.uint8)
        kept["stack"][shown] = stacks
        kept["stack"][~shown] = 0
        hidden = np.flatnonzero(~shown & (spans["duration_ns"] > 0))
        if len(hidden):
            kept["stack"][hidden] = self._stacks.numbers(span_keys(picked(spans, hidden)))
        for name in ("waker_stack", "holder_stack"):
            has_stack = np.flatnonzero(spans[name])
            kept[name][has_stack] = self._stacks.places(spans[name][has_stack])
        return kept

    def _groups(
        self, has_thread: npt.NDArray[np.bool_], concurrency: ConcurrencyTimes | None
    ) -> Iterator[Iterator[AddedUp]]:
        """The spans of each group of threads, some at a time, with two CPUs where these are many."""
        is_large = self._recording.is_large

        def made(group: Group) -> tuple[Group, Iterator[AddedUp], GroupChanges | None]:
            is_shown, changes = bool(has_thread[group.places].any()), None
            if concurrency and is_shown:
                changes = concurrency.changes(self._spans.running(group, has_thread))
            blocks = self._blocks_of(group) if self._options.with_spans or is_shown else iter(())
            return group, blocks, changes

        for group, blocks, changes in side_by_side(made, self._spans.groups, is_large):
            if concurrency and changes:
                concurrency.add(changes)
            # Those that are added up are made already.
            yield ahead(blocks) if is_large and not self._adds_up(group) else blocks

    def _blocks_of(self, group: Group) -> Iterator[AddedUp]:
        """Spans of a group of threads, some at a time."""
        options = self._options
        if not self._spans.is_inside(group, options.filter.window_ns):
            return iter(())
        if self._adds_up(group):
            wanted = options.has_whole_waits, options.with_pieces, self._pieces_ns, options.filter.min_block_ns
            return iter([self._spans.added_up(group, Wanted(*wanted, options.filter.window_ns))])
        return map(singly, self._spans.of_group(group, options.filter.window_ns))

    def _adds_up(self, group: Group) -> bool:
        """Whether the order of spans does not matter."""
        is_single = not self._options.adds_up or self._in_order[group.places].any()
        return not (self._options.with_spans and is_single)

    @cached_property
    def _in_order(self) -> npt.NDArray[np.bool_]:
        """Threads whose spans are needed in the order of time: for steps, and where holders were read."""
        recording = self._recording
        if self._tells_steps:
            return np.ones(len(recording.threads), np.bool_)
        found = np.zeros(len(recording.threads) + 1, np.bool_)
        found[recording.lock_holders["holder"]] = True
        found[recording.lock_holders["thread"].astype(np.int64) + 1] = True
        return found[1:]

    @cached_property
    def _tells_steps(self) -> bool:
        """Whether several processes may make them together, of which one is late, or launches are said of each."""
        recording = self._recording
        named = any(OF_RANKS.fullmatch(file.path.rpartition("/")[2]) for file in recording.files)
        may_be_of_ranks = named and len(recording.processes) > 1
        return (may_be_of_ranks or has_launches(recording)) and len(recording.waits) <= _STEPS_WAITS

    def _added_up(self, spans: Spans) -> Spans:
        """The same where all are needed in their order; else those that are no waits are added up."""
        if not self._options.adds_up:
            return spans
        is_kept = (spans["state"] == ThreadState.OFF_CPU) | self._in_order[spans["thread"]]
        return one_after_another(SPAN_DTYPE, [picked(spans, is_kept), added_up(picked(spans, ~is_kept))])

    def _thread_time(self, index: int, account: Rows, overlap_ns: int, is_shown: bool) -> ThreadTime:
        thread, threads, window = self._recording.threads[index], self._spans.threads, self._options.filter.window_ns
        process = self._recording.processes[thread.process]
        least_ns, most_ns = (window or (0, OPEN_END_NS)) if is_shown else (0, 0)
        first_ns, last_ns = (
            max(0, min(max(int(at_ns[index]) - threads.start_ns, least_ns), most_ns))
            for at_ns in (threads.first_ns, threads.last_ns)
        )
        ns, count = Counter[int](), Counter[int]()
        waits: list[tuple[int, int]] = []
        for _, state, reason, of_row, total_ns in account.tolist():
            ns[state] += total_ns
            count[state] += of_row
            if state == ThreadState.OFF_CPU:
                waits.append((reason, total_ns))
        waits.sort(key=lambda each: -each[1])
        return ThreadTime(
            Pid(process.pid),
            Tid(thread.tid),
            process.name,
            thread.shown_name(process),
            first_ns,
            last_ns,
            ns[ThreadState.ON_CPU],
            ns[ThreadState.RUNQUEUE],
            ns[ThreadState.OFF_CPU],
            count[ThreadState.ON_CPU],
            count[ThreadState.OFF_CPU],
            tuple((reason_text(reason), total_ns) for reason, total_ns in waits),
            overlap_ns if last_ns else 0,
            process.namespace_pid,
            process.cgroup,
            process.is_kernel_thread,
            process.rank,
            process.own_name,
            process.parent_pid,
        )
