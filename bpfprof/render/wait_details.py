"""A group of waits -> its heading, and the lines that say where, who, what for and who ended them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from bpfprof.known.services import object_text
from bpfprof.model.frames import FrameKind
from bpfprof.model.grouping import Total
from bpfprof.model.profile import Profile
from bpfprof.model.reasons import REASONS
from bpfprof.model.spans import LOCK_ADDRESS
from bpfprof.model.states import reason_text
from bpfprof.query.code.folded_names import folded_name
from bpfprof.query.code.functions import is_of_scheduler, wait_owners
from bpfprof.query.code.origins import is_runtime, native_origin
from bpfprof.query.code.stack_frames import StackFrames
from bpfprof.query.tables.groups import WaitGroup
from bpfprof.query.tables.merging import MergedThreads
from bpfprof.query.threads.containers import container_label
from bpfprof.query.waits.chains import WokenBy, thread_name, waker_name
from bpfprof.render.columns import COLUMNS, filled, percent_text, shortened, width
from bpfprof.render.formats import RenderOptions
from bpfprof.render.gil_table import holder_text, largest, others_text
from bpfprof.render.header import counted
from bpfprof.render.labels import (
    frame_labels,
    function_labels,
    no_function_label,
    printable,
    process_label,
    reason_label,
    thread_label,
)

_INDENT = "    "
_STACK_LINES = 3
_MAX_SHARES = 4
_KINDS = {"timer": "a timer", "interrupt": "an interrupt"}
# A function that has a lock and one that wants it would read the same.
_WANTED = {reason.word: reason.wanted for reason in REASONS if reason.wanted}
_MARKS = (FrameKind.WAIT, FrameKind.RUNQUEUE, FrameKind.NOT_SAMPLED)


class WaitDetails:
    """Texts for the groups of one profile. locks: as Work has them."""

    def __init__(
        self,
        profile: Profile,
        by: str,
        options: RenderOptions,
        merged: MergedThreads | None = None,
        locks: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._locks = {lock: number for number, lock in enumerate(locks, 1) if lock[1]}
        self._profile, self._by, self._merged = profile, by, merged
        self._labels = frame_labels(profile, options)
        self._functions = function_labels(profile, options)
        self._own = StackFrames(profile.frames, profile.stacks).own_code()
        self._shows_all = options.details
        natives = (FrameKind.NATIVE, FrameKind.INLINED)
        self._is_plumbing = [
            frame.kind in natives and is_runtime(native_origin(frame.file).library) for frame in profile.frames
        ]

    def heading(self, group: WaitGroup) -> str:
        """What the waits of the group have in common; not cut to a width."""
        if self._by == "thread":
            return self._thread(group.threads[0].value, self._merged)
        if self._by == "container":
            return printable(container_label(self._profile.threads[group.threads[0].value]))
        if self._by == "function":
            return self._function(group.functions[0].value)
        if self._by == "waker":
            return f"woken by {self._waker(group.waker - 1, group)}" if group.waker else "waker not known"
        if self._by == "lock" and self._reason(group.reasons[0].value) == "file-lock":
            described = printable(object_text(self._profile.objects[group.objects[0].value]))
            return f"lock of {described}, wanted in {self._function(group.functions[0].value)}"
        if self._by == "lock":
            process = process_label(self._profile.threads[group.threads[0].value])
            return f"{self._lock(group)}, wanted in {self._function(group.functions[0].value)}, {process}"
        if self._by == "reason":
            return self._reason(group.reasons[0].value)
        reason = self._reason(group.reasons[0].value)
        return f"{_WANTED.get(reason, reason)} in {self._owner(group)}"

    def _lock(self, group: WaitGroup) -> str:
        """`lock #1`, as the other views call it; of idle waits, which have no number, its address if that is known."""
        pid, address = self._profile.threads[group.threads[0].value].pid, group.lock & LOCK_ADDRESS
        number = self._locks.get((0, group.lock)) or self._locks.get((int(pid), group.lock))
        return f"lock #{number}" if number else f"lock 0x{address:x}" if address else "a lock"

    def lines(self, group: WaitGroup) -> list[str]:
        """Each at most COLUMNS wide."""
        lines = []
        if self._by in ("stack", "lock", "function"):
            lines += self._stack(group.stacks[0], group)
        if self._by != "thread":
            lines.append(self._threads(group))
        if self._by not in ("stack", "reason"):
            lines.append(self._shares("for ", group.reasons, self._reason, group))
        if self._by in ("reason", "thread", "container", "waker"):
            lines.append(self._shares("in ", group.functions, self._function, group))
        if any(share.value >= 0 for share in group.objects):
            lines.append(self._shares("waiting for ", group.objects, self._object, group))
        lines += self._wakers(group)
        lines += self._holders(group)
        return lines

    def _stack(self, most: Total, group: WaitGroup) -> list[str]:
        """The stack with most of the time, innermost first; the first frame may be in the heading already."""
        frames = self._profile.frames
        stack = self._profile.stacks[most.value]
        kept = [frame for frame in reversed(stack) if frames[frame].kind not in _MARKS]
        kept = [*itertools.dropwhile(lambda each: is_of_scheduler(frames[each]), kept)]
        names = [self._labels[frame] for frame in kept] if self._shows_all else self._folded(kept)
        is_in_heading = self._by == "stack" and [frames[frame].kind for frame in kept] == [FrameKind.TRUNCATED]
        if not names or is_in_heading:
            return []
        share = "" if len(group.stacks) == 1 else f"{percent_text(most.ns, group.total_ns, 0)} in "
        lines = filled([_INDENT + share + names[0], *(f"< {name}" for name in names[1:])], indent=_INDENT + "  ")
        if len(lines) > _STACK_LINES:
            lines = lines[:_STACK_LINES]
            # What tells it from others is often further out: who called the library that waits.
            own = int(self._own[most.value])
            label = shortened(self._labels[own], COLUMNS // 2) if own >= 0 else ""
            is_there = not label or any(label in line for line in lines)
            end = " < …" if is_there else f" < … < {label}"
            lines[-1] = shortened(lines[-1], COLUMNS - width(end)) + end
        return [shortened(line) for line in lines]

    def _folded(self, kept: list[int]) -> list[str]:
        """Frames of what runs the code of others, the C library and the interpreter: several are one word.

        But for a stack that is nothing else.
        """
        is_plumbing = [self._is_plumbing[frame] for frame in kept]
        if all(
            plain or self._profile.frames[frame].kind == FrameKind.KERNEL for frame, plain in zip(kept, is_plumbing)
        ):
            return [self._labels[frame] for frame in kept]
        names: list[str] = []
        for folds, part in itertools.groupby(zip(kept, is_plumbing), lambda each: each[1]):
            some = [frame for frame, _ in part]
            objects = dict.fromkeys(
                self._profile.frames[frame].file.rsplit("/", 1)[-1].partition(".so")[0] for frame in some
            )
            folded = f"({len(some)} frames of {printable(', '.join(objects))})"
            names += [folded] if folds and len(some) > 1 else [self._labels[frame] for frame in some]
        return names

    def _threads(self, group: WaitGroup) -> str:
        """One thread with its process; of several, their process once if it is the same."""
        threads = [self._profile.threads[share.value] for share in group.threads]
        if len(threads) == 1:
            return shortened(_INDENT + self._thread(group.threads[0].value))
        processes = {thread.pid for thread in threads}
        before = f"{process_label(threads[0])}: " if len(processes) == 1 else f"{len(processes):,} processes: "
        before = shortened(before, COLUMNS // 2)
        return self._shares(before, group.threads, lambda number: thread_label(self._profile.threads[number]), group)

    def _shares(self, before: str, shares: Sequence[Total], text_of: Callable[[int], str], group: WaitGroup) -> str:
        """`thread a (1), process p (1) 60%; ... and 3 more`."""
        if len(shares) == 1:
            return shortened(_INDENT + before + text_of(shares[0].value))
        parts = [
            f"{text_of(share.value)} {percent_text(share.ns, group.total_ns, 0)}" for share in shares[:_MAX_SHARES]
        ]
        for count in range(len(parts), 0, -1):
            more = f"; and {len(shares) - count:,} more" if len(shares) > count else ""
            line = _INDENT + before + "; ".join(parts[:count]) + more
            if width(line) <= COLUMNS:
                return line
        more = f"; and {len(shares) - 1:,} more"
        return shortened(_INDENT + before + parts[0], COLUMNS - len(more)) + more

    def _wakers(self, group: WaitGroup) -> list[str]:
        lines = []
        for level, step in enumerate(group.woken_by):
            indent = _INDENT + "  " * min(level, 8)
            room = COLUMNS - len(indent) - 3
            where = self._where(step, room)
            if level == 0 and self._by == "waker":
                if where:
                    lines += filled(_sentence([f"{indent}it was {where[0]}"], where[1:]), indent=indent + "  ")
                continue
            verb, begin, more = "ended", [], where[1:]
            if level:
                was_in = f" in {self._functions[step.owner]}" if step.owner >= 0 else ""
                begin = [shortened(f"why it was late: {self._reason(step.reason)}{was_in}", room) + ","]
            else:
                is_thread = self._profile.wakers[step.wakers[0]].kind == "thread"
                verb = "woken" if self._by != "lock" else "released" if is_thread else "ended"
                if others := group.waker_count - len(step.wakers):
                    more.append(f"and by {counted(others, 'other')}")
                if step.unknown_ns * 100 >= step.all_ns:
                    more.append(f"not known {percent_text(step.unknown_ns, step.all_ns, 0)}")
            who = shortened(f"{verb} by {self._wakers_text(step.wakers, group)}", room - len(", >99%"))
            begin += [who, where[0]] if where else [f"{who}, {percent_text(step.ns, step.all_ns, 0)}"]
            lines += filled(_sentence([indent + begin[0], *begin[1:]], more), indent=indent + "  ")
        return lines

    def _where(self, step: WokenBy, columns: int) -> list[str]:
        """`in f (a.py), 50%`, ..., `elsewhere, 9%`: where the waker was; [] if no function is known."""
        functions = [share for share in largest(step.functions, _MAX_SHARES)[0] if share.value >= 0]
        parts = []
        for share in functions:
            end = f", {percent_text(share.ns, step.all_ns, 0)}"
            parts.append(shortened(f"in {self._functions[share.value]}", columns - len(end) - len("it was ")) + end)
        elsewhere_ns = step.ns - sum(share.ns for share in functions)
        if parts and elsewhere_ns * 100 >= step.all_ns:
            parts.append(f"elsewhere, {percent_text(elsewhere_ns, step.all_ns, 0)}")
        return parts

    def _holders(self, group: WaitGroup) -> list[str]:
        all_ns = sum(holder.ns for holder in group.holders)
        lines = []
        holders, rest_ns = largest(group.holders, _MAX_SHARES)
        for holder in holders:
            begin = f"{_INDENT}GIL held, {percent_text(holder.ns, all_ns, 0)}, by "
            lines.append(begin + holder_text(self._profile, self._labels, holder, COLUMNS - len(begin)))
        others = others_text(len(group.holders) - len(holders), rest_ns, all_ns)
        return [*lines, _INDENT + others] if others else lines

    def _reason(self, number: int) -> str:
        return reason_label(reason_text(number))

    def _thread(self, number: int, merged: MergedThreads | None = None) -> str:
        thread = merged.threads[merged.group_of[number]] if merged else self._profile.threads[number]
        return f"{thread_label(thread)}, {process_label(thread)}"

    def _function(self, number: int) -> str:
        return self._functions[number] if number >= 0 else "(no function)"

    def _object(self, number: int) -> str:
        return printable(object_text(self._profile.objects[number])) if number >= 0 else "something else"

    def _owner(self, group: WaitGroup) -> str:
        stack, thread = group.stacks[0].value, self._profile.threads[group.threads[0].value]
        owner = wait_owners(self._profile.frames, [self._profile.stacks[stack]])[0]
        return self._labels[owner] if owner >= 0 else no_function_label(self._profile, stack, thread)

    def _wakers_text(self, numbers: Sequence[int], group: WaitGroup) -> str:
        """As _waker(); `40 threads (worker_0..39)` of several."""
        if len(numbers) == 1:
            return self._waker(numbers[0], group)
        names = [thread_name(self._profile.wakers[number], self._profile.threads) or "?" for number in numbers]
        return f"{len(numbers):,} threads ({printable(folded_name(names))}){self._of_process(numbers[0], group)}"

    def _waker(self, number: int, group: WaitGroup) -> str:
        """As waker_name(); with its process if that is not the one of the thread that waited most."""
        waker = self._profile.wakers[number]
        if waker.kind != "thread":
            return _KINDS.get(waker.kind, printable(waker.kind))
        return printable(waker_name(waker, self._profile.threads)) + self._of_process(number, group)

    def _of_process(self, number: int, group: WaitGroup) -> str:
        waker = self._profile.wakers[number]
        if waker.pid == self._profile.threads[group.threads[0].value].pid:
            return ""
        return f" of process {printable(waker.process_name) or '?'} ({waker.pid})"


def _sentence(pieces: list[str], more: Sequence[str]) -> list[str]:
    """The pieces and what follows them after commas."""
    for part in more:
        pieces = [*pieces[:-1], pieces[-1] + ",", part]
    return pieces
