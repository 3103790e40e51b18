"""A recording that is being made -> recordings of parts of its time, each of them whole.

Parts end where the totals of all threads were read. Each thread has its own end there: where that begins what it does
just then, or, if that lasts already, the moment itself. So what it did in a part is exact: its time on the CPU and in
short waits is the difference of two totals. A part has only the rows of tables that it refers to: to work with it costs
what the part holds, however long the recording is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model import samples as model
from bpfprof.model.grouping import each_once, group_numbers
from bpfprof.model.rows import copied, one_after_another, picked
from bpfprof.model.statuses import LastState
from bpfprof.recording.contents import Recording
from bpfprof.recording.forgetting import Forgetting
from bpfprof.recording.renamed import split_renamed
from bpfprof.recording.tables import End

Rows = npt.NDArray[np.void]
Int64Array = npt.NDArray[np.int64]

# The chunk that ends a part, to which belongs all that was written before: `time_ns`, when the totals were read;
# `threads` and `ends_ns`: where it ends for threads that are there; `rows` (SHORT_DTYPE): the sums of short waits that
# every thread had then, since the last ones of its that were written.
PART_END = "part_end"

# What comes after LOOKED of `lock_holders` and `last_waits` is in place of what was known before. LIMITS has the fields
# of the end that are of CPU limits, as they are by now.
LOOKED, LIMITS = "looked", "limits"

# `stacks`: numbers of those that rows after this chunk may have, in order; from the last one on all may.
STACKS_KEPT = "stacks_kept"

_TIMED = ("samples", "waits", "totals", "events")
_KEPT = (*_TIMED, "short_waits")
_SHORT_KEYS = ("thread", "arg", "syscall", "task_state", "fd_kind", "flags")
_SHORT_SUMS = ("blocked_ns", "runqueue_ns", "count")
_STACK_COLUMNS = {
    "samples": ("stack",),
    "events": ("stack",),
    "waits": ("stack", "waker_stack", "holder_stack"),
    "totals": ("stack", "holder_stack"),
}


# Where a part of a thread ends. on_cpu_ns, stolen_ns: of it since it is watched; untold_ns: what was stolen from it
# since its last wait that has a row. state_ns: since when it does what it does, 0: it was not there.
_BORDER_DTYPE = np.dtype(
    [
        *(("thread", "<u4"), ("is_dead", "?")),
        *((name, "<u8") for name in ("end_ns", "state_ns", "on_cpu_ns", "stolen_ns", "untold_ns")),
    ]
)
_END_DTYPE = np.dtype([("thread", "<u4"), ("end_ns", "<u8"), ("is_there", "?")])


@dataclass(frozen=True)
class Part:
    """The rows from since_ns to until_ns; totals: the last of each thread.

    before: how it began for each thread that was there then. ends: where it ends for those that are there at its end.
    Both are in the order of threads, and have none of those that ended before: there may be many.
    """

    since_ns: int
    until_ns: int
    before: Rows  # _BORDER_DTYPE
    rows: dict[str, Rows]
    ends: Rows  # _END_DTYPE

    def before_of(self, threads: npt.NDArray[np.integer[Any]]) -> Rows:
        """Of _BORDER_DTYPE how it began for each of these threads."""
        return _of(self.before, threads)

    def ends_of(self, threads: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.uint64]:
        """Where it ends for each of these threads."""
        found = _of(self.ends, threads)
        return np.where(found["is_there"], found["end_ns"], np.uint64(self.until_ns))

    def goes_on_ns(self, threads: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.uint64]:
        """For each of these threads when the part began if what it did then went on, else 0."""
        before = self.before_of(threads)
        return np.where(before["state_ns"] < before["end_ns"], before["end_ns"], np.uint64(0))


def _of(rows: Rows, threads: npt.NDArray[np.integer[Any]]) -> Rows:
    """For each of these threads its row of those that are in the order of threads; zeros where it has none."""
    found = np.zeros(len(threads), rows.dtype)
    if len(rows):
        at = np.searchsorted(rows["thread"], threads).clip(0, len(rows) - 1)
        has_one = rows["thread"][at] == threads
        found[has_one] = rows[at[has_one]]
    return found


@dataclass(frozen=True)
class PartRecording:
    """A recording, and of its threads, stacks and wakers the places that they have in the one it is a part of."""

    recording: Recording
    threads: Int64Array  # index of each thread there
    stacks: Int64Array  # number of each stack there; of 0, and of those that were split by renaming, 0
    wakers: Int64Array  # number of each waker there, from 1 on; that of 0 is 0


class GrowingRecording:
    """A Sink that keeps the tables of a recording, and its rows as parts until they are taken."""

    def __init__(self) -> None:
        self.tables = Recording()
        self._parts: list[Part] = []
        self._since_ns = 0
        self._before = np.zeros(0, _BORDER_DTYPE)
        self._open_sums = np.zeros(0, model.SHORT_DTYPE)
        self._forgetting = Forgetting(self.tables)

    def write(
        self, kind: str, fields: dict[str, Any] | None = None, arrays: dict[str, npt.NDArray[Any]] | None = None
    ) -> None:
        """Takes a chunk, as each Sink does."""
        if kind == PART_END and fields and arrays:
            self._end_part(int(fields["time_ns"]), arrays)
        elif kind == LOOKED:
            self.tables.clear("lock_holders")
            self.tables.last_waits.clear()
        elif kind == LIMITS and fields:
            self.tables.end = cast(End, {**self.tables.end, **fields})
        elif kind == STACKS_KEPT and arrays:
            self._forgetting.keep(arrays["stacks"])
        elif kind != "task_waits":  # what tasks wait for is no time of a thread
            self.tables.write(kind, fields, arrays)

    def forget(self, before_ns: int) -> None:
        """Gives up what is of threads and processes that had ended by then (CLOCK_MONOTONIC), and stacks that do not
        come any more: no part that is kept has them."""
        self._forgetting.forget(before_ns, lambda: _stacks_of({name: getattr(self.tables, name) for name in _KEPT}))

    @property
    def has_parts(self) -> bool:
        """Whether take_parts() has some."""
        return bool(self._parts)

    def take_parts(self) -> list[Part]:
        """Those that have ended since the last time."""
        parts, self._parts = self._parts, []
        return parts

    def _end_part(self, until_ns: int, arrays: dict[str, npt.NDArray[Any]]) -> None:
        tables, open_sums = self.tables, arrays["rows"]
        since_ns = self._since_ns or int(tables.start.get("start_ns", 0))
        rows = {name: getattr(tables, name) for name in _KEPT}
        for name in _KEPT:
            tables.clear(name)
        rows["totals"] = _last_of_each(rows["totals"])
        rows["short_waits"] = _difference(np.concatenate([rows["short_waits"], open_sums]), self._open_sums)
        ends = np.zeros(len(arrays["threads"]), _END_DTYPE)
        ends["thread"], ends["end_ns"], ends["is_there"] = arrays["threads"], arrays["ends_ns"], True
        part = Part(since_ns, until_ns, self._before, rows, ends[np.argsort(ends["thread"])])
        self._parts.append(part)
        self._since_ns, self._open_sums = until_ns, open_sums.copy()
        self._before = _border(part)
        self._forgetting.use(_stacks_of(rows), until_ns)
        self._forgetting.go_on(rows["totals"]["thread"])
        is_dead = rows["totals"]["state"] == LastState.DEAD
        self._forgetting.end(rows["totals"]["thread"][is_dead], until_ns)


def _border(part: Part) -> Rows:
    """The end of a part: of those that are there, and for one more part of those that ended in it."""
    totals, waits, held = part.rows["totals"], part.rows["waits"], part.before[~part.before["is_dead"]]
    thread, threads = totals["thread"], np.union1d(held["thread"], totals["thread"])
    border, place = _of(held, threads), np.searchsorted(threads, thread)
    border["thread"], border["end_ns"] = threads, part.ends_of(threads)
    before = part.before_of(thread)
    end_ns, since_ns = border["end_ns"][place].astype(np.int64), totals["since_ns"].astype(np.int64)
    is_running = np.isin(totals["state"], (LastState.ON_CPU, LastState.UNKNOWN))
    open_ns = np.where(is_running, end_ns - since_ns, 0).clip(0)
    running_ns = np.minimum(open_ns, totals["running_ns"].astype(np.int64))
    of_totals, told_ns = np.isin(waits["thread"], thread), np.zeros(len(totals), np.int64)
    np.add.at(
        told_ns, np.searchsorted(thread, waits["thread"][of_totals]), waits["stolen_ns"][of_totals].astype(np.int64)
    )
    stolen_ns = totals["stolen_ns"].astype(np.int64) + open_ns - running_ns
    untold_ns = before["untold_ns"].astype(np.int64) - before["stolen_ns"].astype(np.int64) - told_ns
    border["is_dead"][place] = totals["state"] == LastState.DEAD
    border["state_ns"][place] = since_ns
    border["on_cpu_ns"][place] = totals["on_cpu_ns"].astype(np.int64) + running_ns
    border["stolen_ns"][place] = stolen_ns
    border["untold_ns"][place] = (untold_ns + stolen_ns).clip(0)
    return border


def joined(parts: Sequence[Part]) -> Part:
    """Parts that follow one another as one."""
    rows = {name: one_after_another(parts[0].rows[name].dtype, [part.rows[name] for part in parts]) for name in _KEPT}
    rows["totals"] = _last_of_each(rows["totals"])
    return Part(parts[0].since_ns, parts[-1].until_ns, parts[0].before, rows, parts[-1].ends)


def part_recording(tables: Recording, part: Part) -> PartRecording:
    """`tables` have all that the rows refer to; they are not changed."""
    rows = {name: copied(part.rows[name]) for name in _KEPT}
    rows["waits"] = picked(rows["waits"], np.lexsort((rows["waits"]["time_ns"], rows["waits"]["thread"])))
    threads = np.unique(np.concatenate([rows[name]["thread"] for name in _KEPT]).astype(np.int64))
    wakers = np.unique(np.append(rows["waits"]["waker"], 0).astype(np.int64))
    stacks = _stacks_of(rows)
    thread_place = _places(threads, len(tables.threads))
    before, ends_ns = part.before_of(threads), part.ends_of(threads)
    is_new = before["state_ns"] == 0
    born_ns = [tables.threads[index].first_ns for index in threads[is_new].tolist()]
    before["end_ns"][is_new] = np.array(born_ns, np.uint64)
    for name in _KEPT:
        rows[name]["thread"] = thread_place[rows[name]["thread"]]
        for column in _STACK_COLUMNS.get(name, ()):
            rows[name][column] = np.searchsorted(stacks, rows[name][column])
    _count_from(rows, before)
    _settle(rows, before["end_ns"].astype(np.int64), ends_ns.astype(np.int64))
    rows["waits"]["waker"] = np.searchsorted(wakers, rows["waits"]["waker"])
    for name in ("waits", "totals"):  # index + 1
        holder = rows[name]["holder"].astype(np.int64)
        rows[name]["holder"] = np.append(0, thread_place + 1)[holder]
    of_part = [
        replace(tables.threads[index], first_ns=first_ns, last_ns=last_ns)
        for index, first_ns, last_ns in zip(threads.tolist(), before["end_ns"].tolist(), ends_ns.tolist())
    ]
    recording = Recording(
        start={**tables.start, "start_ns": min([part.since_ns, *(thread.first_ns for thread in of_part)])},
        end=End(end_ns=max([part.until_ns, *(thread.last_ns for thread in of_part)])),
        processes=tables.processes,
        objects=tables.objects,
        threads=of_part,
        files=tables.files,
        texts=tables.texts,
        samples=rows["samples"],
        waits=rows["waits"],
        short_waits=rows["short_waits"],
        totals=rows["totals"],
        events=rows["events"],
    )
    has_thread = np.append(0, thread_place + 1)
    for number in wakers[1:].tolist():
        row = tables.wakers[number - 1]
        recording.wakers.append(replace(row, thread=int(has_thread[row.thread])))
    _take_stacks(tables, recording, stacks[1:] - 1)
    split_renamed(recording)
    stacks = np.append(stacks, np.zeros(len(recording.stacks) + 1 - len(stacks), np.int64))
    return PartRecording(recording, threads, stacks, wakers)


def _stacks_of(rows: dict[str, Rows]) -> Int64Array:
    """Numbers of their stacks in order, the first one 0."""
    columns = [rows[name][column] for name, names in _STACK_COLUMNS.items() for column in names]
    return each_once(np.concatenate([*columns, [0]]).astype(np.int64))


def _count_from(rows: dict[str, Rows], before: Rows) -> None:
    """Makes what is counted since a thread was first watched count from a border on, and cuts its first wait there.

    The waits of each thread come in the order of time, one thread after the other.
    """
    totals, waits = rows["totals"], rows["waits"]
    # What a thread that is on the CPU since before the border ran until then is in `before`, and not yet in its total.
    on_cpu_ns = before["on_cpu_ns"][totals["thread"]]
    _less(totals, "running_ns", on_cpu_ns - np.minimum(on_cpu_ns, totals["on_cpu_ns"]))
    for name in ("samples", "waits", "totals"):
        _less(rows[name], "on_cpu_ns", before["on_cpu_ns"][rows[name]["thread"]])
    of_totals, of_waits = before[totals["thread"]], before[waits["thread"]]
    _less(totals, "stolen_ns", of_totals["stolen_ns"])
    for name in ("first_ns", "since_ns"):
        totals[name] = np.maximum(totals[name], of_totals["end_ns"])
    is_first = np.append(True, np.diff(waits["thread"]) != 0)[: len(waits)]
    _less(waits, "stolen_ns", np.where(is_first, of_waits["untold_ns"], np.uint64(0)))
    left_ns = (waits["time_ns"].astype(np.int64) - of_waits["end_ns"].astype(np.int64)).clip(0)
    for name in ("runqueue_ns", "blocked_ns"):
        waits[name] = np.minimum(waits[name], left_ns)
        left_ns -= waits[name].astype(np.int64)


def _settle(rows: dict[str, Rows], first_ns: Int64Array, last_ns: Int64Array) -> None:
    """Makes the time of each thread sum to its wall time, by its time on the CPU.

    The kernel side finds microseconds of a thread's last wait to have been time on the CPU when it leaves the CPU again
    (early_ns, see capture/last_waits.py), which may be after a border. And a thread's totals can change while they are
    read.
    """
    totals, short_ns, held_ns = rows["totals"], np.zeros(len(last_ns), np.int64), np.zeros(len(last_ns), np.int64)
    for name, sums in (("short_waits", short_ns), ("waits", held_ns)):
        np.add.at(sums, rows[name]["thread"], _sum_of(rows[name], "blocked_ns", "runqueue_ns"))
    thread, is_dead = totals["thread"], totals["state"] == LastState.DEAD
    begin_ns = np.maximum(totals["since_ns"].astype(np.int64), first_ns[thread])
    end_ns = np.where(is_dead, begin_ns, np.maximum(last_ns[thread], begin_ns))
    held_ns = held_ns[thread] + short_ns[thread] + _sum_of(totals, "on_cpu_ns", "stolen_ns") + end_ns - begin_ns
    on_cpu_ns = totals["on_cpu_ns"].astype(np.int64) + (end_ns - first_ns[thread] - held_ns)
    totals["on_cpu_ns"] = on_cpu_ns.clip(0)
    _fit(rows["waits"], first_ns, short_ns)


def _fit(waits: Rows, first_ns: Int64Array, short_ns: Int64Array) -> None:
    """Has no wait's on_cpu_ns say that its thread ran for longer than there is time between two waits.

    Nor so short that between them is more time for short waits than those of the thread took (short_ns).
    """
    if not len(waits):
        return
    thread = waits["thread"].astype(np.int64)
    end_ns, off_ns = waits["time_ns"].astype(np.int64), _sum_of(waits, "blocked_ns", "runqueue_ns")
    before_ns = np.append(first_ns[thread[0]], np.where(np.diff(thread) != 0, first_ns[thread[1:]], end_ns[:-1]))
    room_ns = (end_ns - off_ns - before_ns - waits["stolen_ns"].astype(np.int64)).clip(0)
    first = np.flatnonzero(np.append(True, np.diff(thread) != 0))
    rank = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(thread))))
    most_ns = np.cumsum(room_ns)
    most_ns -= (most_ns - room_ns)[first][rank]
    beyond_ns = np.clip(waits["on_cpu_ns"].astype(np.int64) - most_ns, -short_ns[thread], 0)
    base = rank * (int(-beyond_ns.min()) + 1)  # so that those of a thread are below those of the one before
    waits["on_cpu_ns"] = (most_ns + np.minimum.accumulate(beyond_ns - base) + base).clip(0)


def _sum_of(rows: Rows, *names: str) -> Int64Array:
    return np.asarray(sum(rows[name].astype(np.int64) for name in names), np.int64)


def _less(rows: Rows, name: str, ns: npt.NDArray[np.unsignedinteger[Any]]) -> None:
    rows[name] -= np.minimum(rows[name], ns)


def _last_of_each(totals: Rows) -> Rows:
    """The last row of each thread; of one that ended its end."""
    order = np.lexsort((totals["time_ns"], totals["state"] == LastState.DEAD, totals["thread"]))
    totals = picked(totals, order)
    return picked(totals, np.append(totals["thread"][1:] != totals["thread"][:-1], True)[: len(totals)])


def _difference(rows: Rows, less: Rows) -> Rows:
    """Sums of SHORT_DTYPE by what they were waits for, `less` subtracted."""
    both = np.concatenate([rows, less])
    sign = np.where(np.arange(len(both)) < len(rows), 1, -1)
    first, number = group_numbers(both[name] for name in _SHORT_KEYS)
    found = both[first]
    for name in _SHORT_SUMS:
        sums = np.zeros(len(first), np.int64)
        np.add.at(sums, number, sign * both[name].astype(np.int64))
        found[name] = sums.clip(0)
    return found[found["count"] > 0]


def _places(chosen: Int64Array, count: int) -> Int64Array:
    """For each of `count` its place among the chosen, -1: it is not."""
    places = np.full(count, -1, np.int64)
    places[chosen] = np.arange(len(chosen))
    return places


def _take_stacks(tables: Recording, recording: Recording, chosen: Int64Array) -> None:
    """Gives a recording the chosen stacks, with the code objects and native frames that they have."""
    rows = tables.stacks[chosen]
    ends = np.cumsum(tables.stacks["python_count"], dtype=np.int64)
    python = tables.python_frames[_ranges(ends[chosen] - rows["python_count"], rows["python_count"])]
    counts = tables.stacks["native_count"] + tables.stacks["kernel_count"].astype(np.int64)
    ends = np.cumsum(counts)
    native = tables.native_frames[_ranges(ends[chosen] - counts[chosen], counts[chosen])]
    codes = np.unique(np.append(python["code"], 0).astype(np.int64))
    python["code"] = np.searchsorted(codes, python["code"])
    natives = np.unique(np.append(native["native"], 0).astype(np.int64))
    native["native"] = np.searchsorted(natives, native["native"])
    names = tables.names[np.isin(tables.names["native"], natives[1:])]
    names["native"] = np.searchsorted(natives, names["native"])
    recording.stacks, recording.python_frames, recording.native_frames = rows, python, native
    recording.codes = [tables.codes[code - 1] for code in codes[1:].tolist()]
    recording.natives, recording.names = tables.natives[natives[1:] - 1], names


def _ranges(begin: Int64Array, count: npt.NDArray[Any]) -> Int64Array:
    """All places of these ranges, one range after the other."""
    count = count.astype(np.int64)
    before = np.cumsum(count) - count
    return np.repeat(begin - before, count) + np.arange(int(count.sum()))
