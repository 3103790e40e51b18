"""Addresses that had other names at other times: a recording in, the same with an address for each name out.

Code that is made at run time is freed, and other code comes to its address. So a name can have a time from which it
holds, and a stack that was seen before and after it is two stacks.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from bpfprof import array_types as npt

if TYPE_CHECKING:
    from bpfprof.recording.contents import Recording

# Columns with stacks that have native frames, and how long before `time` they were taken.
_STACKS = (
    ("samples", "stack", "time_ns", ()),
    ("events", "stack", "time_ns", ()),
    ("waits", "stack", "time_ns", ("blocked_ns", "runqueue_ns")),
    ("waits", "waker_stack", "time_ns", ("runqueue_ns",)),
    ("totals", "stack", "since_ns", ()),
)


# Frames that stacks of other names may have in all, and so many times those of the file.
_MOST_FRAMES, _MOST_TIMES = 1 << 19, 4
_LAST = 1 << 62  # no address has a number as large


def split_renamed(recording: Recording) -> list[str]:
    """Changes its names, natives, stacks and what refers to those; what it left out, in words."""
    since_ns = recording.names["since_ns"]
    later = np.flatnonzero(since_ns)
    if not len(later):
        return []
    pairs = np.stack((recording.names["native"][later].astype(np.uint64), since_ns[later]))
    pairs, number = np.unique(pairs, axis=1, return_inverse=True)
    names = recording.names.copy()
    names["native"][later] = len(recording.natives) + 1 + number.ravel()
    recording.names = names
    first_new = len(recording.natives) + 1
    recording.natives = np.concatenate((recording.natives, recording.natives[pairs[0].astype(np.int64) - 1]))
    renamed: dict[int, list[tuple[int, int]]] = {}  # number of a native: (from when, its number then), ascending
    for place, (native, from_ns) in enumerate(pairs.T.tolist()):
        renamed.setdefault(native, []).append((from_ns, first_new + place))
    return _Split(recording, renamed).apply()


class _Split:
    def __init__(self, recording: Recording, renamed: dict[int, list[tuple[int, int]]]) -> None:
        self._recording, self._renamed = recording, renamed
        frames = len(recording.native_frames) + len(recording.python_frames)
        self._left = _MOST_FRAMES + _MOST_TIMES * frames
        self._refused: set[tuple[int, int]] = set()
        stacks = recording.stacks
        self._python_ends = np.cumsum(stacks["python_count"], dtype=np.int64)
        counts = stacks["native_count"] + stacks["kernel_count"].astype(np.int64)
        self._ends = np.cumsum(counts)
        hits = np.flatnonzero(np.isin(recording.native_frames["native"], list(renamed)))
        rows = np.unique(np.searchsorted(self._ends, hits, side="right"))
        self._changes: dict[int, list[int]] = {}  # number of a stack: when frames of it were renamed, ascending
        for row in rows[rows < len(stacks)].tolist():
            changing = renamed.keys() & self._natives(row)
            self._left -= sum(len(renamed[native]) for native in changing)
            if self._left < 0:
                self._refused.add((row + 1, 0))
                continue
            self._changes[row + 1] = sorted({from_ns for native in changing for from_ns, _ in renamed[native]})
        self._new: dict[tuple[int, int], int] = {}  # (stack, changes that had been): its number

    def apply(self) -> list[str]:
        """Gives every row the stack of its time, and appends the stacks that are new; what it left out."""
        wanted = np.array(list(self._changes), np.uint32)
        for table, column, time, earlier in _STACKS:
            rows = getattr(self._recording, table)
            places = np.flatnonzero(np.isin(rows[column], wanted))
            if not len(places):
                continue
            taken_ns = rows[time][places].astype(np.int64)
            for name in earlier:
                taken_ns -= rows[name][places].astype(np.int64)
            changed = rows.copy()
            changed[column][places] = [
                self._stack_at(stack, at_ns) for stack, at_ns in zip(rows[column][places].tolist(), taken_ns.tolist())
            ]
            setattr(self._recording, table, changed)
        self._append()
        return [f"{len(self._refused):,} stacks have had too many names"] if self._refused else []

    def _natives(self, row: int) -> list[int]:
        stack = self._recording.stacks[row]
        begin = int(self._ends[row]) - int(stack["native_count"]) - int(stack["kernel_count"])
        numbers: list[int] = self._recording.native_frames["native"][begin : int(self._ends[row])].tolist()
        return numbers

    def _stack_at(self, stack: int, at_ns: int) -> int:
        count = int(np.searchsorted(self._changes[stack], at_ns, side="right"))
        if not count:
            return stack
        if (stack, count) not in self._new:
            row = self._recording.stacks[stack - 1]
            self._left -= int(row["python_count"]) + int(row["native_count"]) + int(row["kernel_count"])
            if self._left < 0:
                self._refused.add((stack, count))
                return stack
        return self._new.setdefault((stack, count), len(self._recording.stacks) + 1 + len(self._new))

    def _append(self) -> None:
        recording = self._recording
        rows = np.array([stack - 1 for stack, _ in self._new], np.int64)
        python = [_range(self._python_ends, row, recording.stacks["python_count"][row]) for row in rows.tolist()]
        natives: list[int] = []
        for stack, count in self._new:
            at_ns = self._changes[stack][count - 1]
            natives += [self._native_at(native, at_ns) for native in self._natives(stack - 1)]
        whole_python = int(self._python_ends[-1]) if len(self._python_ends) else 0
        whole_native = int(self._ends[-1]) if len(self._ends) else 0
        kept = np.concatenate([np.arange(whole_python), *python]).astype(np.int64)
        recording.python_frames = recording.python_frames[kept]
        added = np.array([(number,) for number in natives], recording.native_frames.dtype)
        recording.native_frames = np.concatenate((recording.native_frames[:whole_native], added))
        recording.stacks = np.concatenate((recording.stacks, recording.stacks[rows]))

    def _native_at(self, native: int, at_ns: int) -> int:
        names = self._renamed.get(native, [])
        place = bisect_right(names, (at_ns, _LAST))
        return names[place - 1][1] if place else native


def _range(ends: npt.NDArray[np.int64], row: int, count: int) -> npt.NDArray[np.int64]:
    return np.arange(int(ends[row]) - int(count), int(ends[row]))
