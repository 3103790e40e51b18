"""Profile with its spans -> a trace for Perfetto and chrome://tracing, in the Trace Event Format.

A thread has two tracks: its states, and the calls they were seen in, which Perfetto shows below the states of all.
Arrows lead from who ended a wait to who waited. The CPUs have tracks of what samples saw there.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import numpy as np

from bpfprof.model.frames import FrameKind
from bpfprof.model.grouping import ordered
from bpfprof.model.profile import Profile
from bpfprof.model.rows import one_after_another, picked
from bpfprof.model.single import single_pieces
from bpfprof.model.spans import SpanFlag, ThreadState
from bpfprof.query.code.functions import function_of_frames, wait_owners
from bpfprof.query.work.table import work_of
from bpfprof.render.formats import RenderOptions
from bpfprof.render.header import command_text, unread_sentences
from bpfprof.render.intervals import MIXED, Intervals, intervals_of
from bpfprof.render.labels import MARKS, frame_labels, function_labels, mark_text, printable
from bpfprof.render.quality import quality_line
from bpfprof.render.wait_names import WaitNames

# Beyond what Linux gives to processes and threads (PID_MAX_LIMIT, include/linux/threads.h).
_CPUS, _CALLS = 1 << 23, 1 << 24
_WHEN_MANY = {FrameKind.PYTHON, *MARKS}  # frames that are calls when there are too many intervals
_AT_A_TIME = 4096  # events
_STATE_WORDS = ("cpu", "ready", "wait", "lost")
# What samples saw on a CPU, from when to when; ns: of that time on the CPU; count: how many are one.
_CPU_DTYPE = np.dtype(
    [
        *(("start_ns", "<i8"), ("end_ns", "<i8"), ("ns", "<i8"), ("count", "<i8")),
        *(("cpu", "<u4"), ("thread", "<u4"), ("stack", "<u4")),
    ]
)
_Kind = tuple[int, int, int, int, int, int, int, bool]  # state, stack, reason, lock, object, waker, holder, is idle


def render_chrome(profile: Profile, options: RenderOptions) -> bytes:
    """Times in microseconds since the recording began, to the nanosecond; of a thread they fill its wall time."""
    trace = _Trace(profile, options)
    head = json.dumps({"displayTimeUnit": "ms", "otherData": trace.facts()}, ensure_ascii=False)
    events = chain(trace.names(), trace.states(), trace.arrows(), trace.calls(), trace.cpus())
    made, between = io.BytesIO(), ""  # the events of 10 seconds can be 100 MB
    made.write((head[:-1] + ', "traceEvents": [\n').encode("utf-8", "replace"))
    while part := [*islice(events, _AT_A_TIME)]:
        made.write((between + ",\n".join(part)).encode("utf-8", "replace"))
        between = ",\n"
    made.write(b"\n]}\n")
    return made.getvalue()


class _Trace:
    """The events, one JSON text each."""

    def __init__(self, profile: Profile, options: RenderOptions) -> None:
        self._profile, work = profile, work_of(profile)
        self._of: Intervals = intervals_of(profile, work)
        self._names = WaitNames(profile, work, options)
        self._labels, self._functions = frame_labels(profile, options), function_labels(profile, options)
        self._owners = wait_owners(profile.frames, profile.stacks)
        self._places = [f'"pid":{int(thread.pid)},"tid":{int(thread.tid)}' for thread in profile.threads]
        self._calls = [f'"pid":{int(it.pid)},"tid":{_CALLS + index}' for index, it in enumerate(profile.threads)]

    def facts(self) -> dict[str, str]:
        info, short_ns = self._profile.info, self._of.short_ns
        found = {
            "command": command_text(self._profile),
            "exporter": f"bpfprof {printable(info.bpfprof_version)}".rstrip(),
            "host": printable(info.host_name),
            "started_unix_ns": str(info.started_unix_ns),
            "filter": printable(self._profile.filter_text[2:]),
            "quality": quality_line(self._profile).removeprefix("quality: "),
            "python_not_read": "; ".join(unread_sentences(self._profile)),
        }
        if short_ns:
            found["merged"] = f"intervals under {short_ns / 1000:g} us beside each other are one, which says how many"
            found["left_out"] = "calls of native and kernel functions; a part of the time (--time) may have all"
        return {name: text for name, text in found.items() if text}

    def names(self) -> Iterator[str]:
        """Of processes and threads, and their order: that of the recording, calls below their thread."""
        for order, (pid, name) in enumerate(
            {int(each.pid): each.process_name for each in self._profile.threads}.items()
        ):
            yield from _named(f'"pid":{pid},"tid":{pid}', "process", printable(name) or "?", order)
        for index, thread in enumerate(self._profile.threads):
            if self._of.begin[index] < self._of.begin[index + 1]:
                name = printable(thread.thread_name) or "?"
                yield from _named(self._places[index], "thread", name, 2 * index)
                yield from _named(self._calls[index], "thread", f"{name} calls", 2 * index + 1)

    def states(self) -> Iterator[str]:
        names = ("state", "stack", "reason", "lock", "object", "waker", "holder", "is_idle")
        rows = self._of.rows
        kinds = zip(*[rows[name].tolist() for name in names])
        known: dict[_Kind, tuple[str, str]] = {}
        columns = (rows[name].tolist() for name in ("thread", "start_ns", "duration_ns", "weight_ns", "count"))
        for place, (kind, thread, start_ns, ns, weight_ns, count) in enumerate(zip(kinds, *columns)):
            if kind[0] == MIXED:
                name, args = f'"{count} short intervals","cat":"short"', self._mixed(place)
            elif kind in known:
                name, args = known[kind]
            else:
                name, args = known[kind] = self._state(kind)
            if weight_ns != ns:
                args += f',"stands_for_us":{_us(weight_ns)}'
            when = f'"ts":{_us(start_ns)},"dur":{_us(ns)}'
            yield f'{{"ph":"X",{self._places[thread]},{when},"name":{name},"args":{{{args.lstrip(",")}}}}}'

    def arrows(self) -> Iterator[str]:
        """From the thread that ended a wait, at that moment, to what the one that waited did then."""
        rows = self._of.rows
        threads = np.array([-1, *(each.thread for each in self._profile.wakers)], np.int64)[
            rows["waker"].astype(np.int64)
        ]
        ends = rows["start_ns"] + rows["duration_ns"]
        goes_on = np.append((rows["start_ns"][1:] == ends[:-1]) & (rows["thread"][1:] == rows["thread"][:-1]), False)
        chosen = np.flatnonzero(rows["is_last"] & (threads >= 0) & goes_on[: len(rows)])
        chosen = chosen[self._runs_at(threads[chosen], ends[chosen])]
        columns = (threads[chosen].tolist(), rows["thread"][chosen].tolist(), ends[chosen].tolist())
        for number, (waker, thread, at_ns) in enumerate(zip(*columns), 1):
            what = f'"id":{number},"cat":"wakeup","name":"wakes","ts":{_us(at_ns)}'
            yield f'{{"ph":"s",{self._places[waker]},{what}}}'
            yield f'{{"ph":"f","bp":"e",{self._places[thread]},{what}}}'

    def calls(self) -> Iterator[str]:
        """Functions from when they are first seen until they are not seen any more, whatever their line."""
        rows, functions = self._of.rows, function_of_frames(self._profile.frames).tolist()
        is_shown = [not self._of.short_ns or frame.kind in _WHEN_MANY for frame in self._profile.frames]
        paths = [[functions[frame] for frame in stack if is_shown[frame]] for stack in self._profile.stacks]
        texts = [self._call(frame) for frame in range(len(self._profile.frames))]
        for thread, place in enumerate(self._calls):
            own = rows[self._of.begin[thread] : self._of.begin[thread + 1]]
            under_way: list[int | str] = []
            end_ns = 0
            names = ("state", "stack", "reason", "lock", "start_ns", "duration_ns")
            for state, stack, reason, lock, start_ns, ns in zip(*[own[name].tolist() for name in names]):
                has_stack = state not in (MIXED, ThreadState.UNKNOWN)
                path: list[int | str] = [*paths[stack]] if has_stack else []
                if lock and path:
                    path[-1] = json.dumps(self._names.whole(reason, lock), ensure_ascii=False)
                same = _common(under_way, path) if start_ns == end_ns else 0
                yield from [f'{{"ph":"E",{place},"ts":{_us(end_ns)}}}'] * (len(under_way) - same)
                for it in path[same:]:
                    name = it if isinstance(it, str) else texts[it]
                    yield f'{{"ph":"B",{place},"ts":{_us(start_ns)},"name":{name}}}'
                under_way, end_ns = path, start_ns + ns
            yield from [f'{{"ph":"E",{place},"ts":{_us(end_ns)}}}'] * len(under_way)

    def cpus(self) -> Iterator[str]:
        """From a sample's share of its thread's time on the CPU, until the next one there begins."""
        rows = self._on_cpus()
        starts, cpus = rows["start_ns"], rows["cpu"]
        before_next = np.append(cpus[1:] == cpus[:-1], False)[: len(rows)]
        ends = np.where(before_next, np.minimum(rows["end_ns"], np.append(starts[1:], 0)[: len(rows)]), rows["end_ns"])
        if len(rows):
            yield from _named(f'"pid":{_CPUS},"tid":{_CPUS}', "process", "CPUs, as samples saw them", 1 << 20)
        for cpu in np.unique(cpus).tolist():
            yield from _named(f'"pid":{_CPUS},"tid":{_CPUS + cpu}', "thread", f"CPU {cpu - 1}", cpu)
        columns = (cpus, rows["thread"], rows["stack"], rows["count"], rows["ns"], starts, ends - starts)
        for cpu, thread, stack, count, ran_ns, start_ns, ns in zip(*[column.tolist() for column in columns]):
            who = self._profile.threads[thread]
            if count > 1:
                name, args = f'"{count} short intervals"', f'{{"cpu_us":{_us(ran_ns)}}}'
            else:
                name = json.dumps(f"{printable(who.thread_name) or '?'} ({who.tid})", ensure_ascii=False)
                args = json.dumps({"function": self._where(stack)}, ensure_ascii=False)
            when = f'"ts":{_us(start_ns)},"dur":{_us(ns)}'
            yield f'{{"ph":"X","pid":{_CPUS},"tid":{_CPUS + cpu},{when},"name":{name},"cat":"sample","args":{args}}}'

    def _on_cpus(self) -> Any:
        """Rows of _CPU_DTYPE, by CPU and time; of too many the short ones of a time are one."""
        found = list[Any]()
        spans = self._profile.spans
        assert spans is not None
        is_shown, of_spans = spans["flags"] & SpanFlag.HIDDEN == 0, {name: spans[name] for name in ("thread", "stack")}
        for pieces in single_pieces(self._profile):
            cpu, span = pieces["cpu"].copy(), pieces["span"].copy()
            chosen = np.flatnonzero((cpu > 0) & is_shown[span])
            rows = np.zeros(len(chosen), _CPU_DTYPE)
            rows["cpu"], rows["start_ns"], rows["ns"] = (
                cpu[chosen],
                pieces["start_ns"][chosen],
                pieces["duration_ns"][chosen],
            )
            rows["end_ns"] = rows["start_ns"] + rows["ns"]
            for name, column in of_spans.items():
                rows[name] = column[span[chosen]]
            rows["count"] = 1
            found.append(self._fewer(rows))
        rows = self._fewer(one_after_another(_CPU_DTYPE, found))
        return picked(rows, np.lexsort((rows["start_ns"], rows["cpu"])))

    def _fewer(self, rows: Any) -> Any:
        is_short = rows["ns"] < self._of.short_ns
        short = picked(rows, is_short)
        if not len(short):
            return rows
        order, begin = ordered([short["cpu"], short["start_ns"] // self._of.short_ns])
        merged = picked(short, order[begin])
        for name, add in (("ns", np.add), ("count", np.add), ("start_ns", np.minimum), ("end_ns", np.maximum)):
            merged[name] = add.reduceat(short[name][order], begin)
        return one_after_another(_CPU_DTYPE, [picked(rows, ~is_short), merged])

    def _state(self, kind: _Kind) -> tuple[str, str]:
        """(name and category, arguments) as JSON without braces."""
        state, stack, reason, lock, object, waker, holder, is_idle = kind
        where = self._where(stack) if state != ThreadState.UNKNOWN else ""
        args: dict[str, Any] = {"function": where}
        if state == ThreadState.OFF_CPU:
            name = self._names.short(reason, lock)
            args["reason"] = name.partition(": ")[2].partition(" #")[0]
            args["lock"] = self._names.whole(reason, lock).partition(": lock ")[2] if lock else ""
            args["object"], args["woken_by"] = self._names.object(object), self._names.waker(waker)
            args["held_by"] = self._names.holder(holder)
        elif state == ThreadState.ON_CPU:
            name, leaf = where or "on CPU", self._profile.stacks[stack][-1:]
            args["leaf"] = self._labels[leaf[0]] if leaf else ""
        else:
            name = "ready, no CPU" if state == ThreadState.RUNQUEUE else "lost"
        args["idle"] = is_idle
        text = json.dumps({key: value for key, value in args.items() if value}, ensure_ascii=False)
        return f'{json.dumps(name, ensure_ascii=False)},"cat":"{_STATE_WORDS[state]}"', text[1:-1]

    def _mixed(self, place: int) -> str:
        by_state = self._of.rows["state_ns"][place].tolist()
        return ",".join([f'"{word}_us":{_us(ns)}' for word, ns in zip(_STATE_WORDS, by_state) if ns])

    def _where(self, stack: int) -> str:
        owner = self._owners[stack]
        return self._labels[owner] if owner >= 0 else ""

    def _call(self, frame: int) -> str:
        it = self._profile.frames[frame]
        text = json.dumps(mark_text(it) if it.kind in MARKS else self._functions[frame], ensure_ascii=False)
        return text + (f',"args":{{"file":{json.dumps(printable(it.file), ensure_ascii=False)}}}' if it.file else "")

    def _runs_at(self, threads: Any, at_ns: Any) -> Any:
        """Whether each of these threads has an interval at the moment, for an arrow to begin in."""
        rows = self._of.rows
        ends = rows["start_ns"] + rows["duration_ns"]
        apart_ns = int(ends.max(initial=0)) + 1  # the threads one after the other on one clock
        starts = rows["thread"].astype(np.int64) * apart_ns + rows["start_ns"]
        place = np.searchsorted(starts, threads * apart_ns + at_ns, side="right") - 1
        return (place >= 0) & (rows["thread"][place] == threads) & (ends[place] > at_ns)


def _common(one: list[int | str], other: list[int | str]) -> int:
    for place, (before, after) in enumerate(zip(one, other)):
        if before != after:
            return place
    return min(len(one), len(other))


def _named(place: str, kind: str, name: str, order: int) -> Iterator[str]:
    text = json.dumps(name, ensure_ascii=False)
    yield f'{{"ph":"M",{place},"name":"{kind}_name","args":{{"name":{text}}}}}'
    yield f'{{"ph":"M",{place},"name":"{kind}_sort_index","args":{{"sort_index":{order}}}}}'


def _us(ns: int) -> str:
    whole, part = divmod(ns, 1000)
    return f"{whole}.{part:03}" if part else str(whole)
