"""Calls of libraries: files that targets map in, probes set; sums of the kernel side in, rows of CALL_DTYPE out.

A file that is mapped while the recording goes on is probed as soon as its mapping is known, some milliseconds later.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bpfprof import abi
from bpfprof import array_types as npt
from bpfprof.abi.dtypes import CALL_KEY_DTYPE, CALL_SUM_DTYPE, CALLS_DTYPE
from bpfprof.capture.called_functions import call_table, exported
from bpfprof.kernel import bpf_syscall
from bpfprof.kernel.kernel_side import KernelSide
from bpfprof.kernel.probes import Probes
from bpfprof.model.calls import CallFlag
from bpfprof.model.samples import CALL_DTYPE
from bpfprof.proc.text import without_controls
from bpfprof.recording.writer import Sink

if TYPE_CHECKING:
    from bpfprof.code.files import CodeFile

_MOST_FILES = 32
_EVERY_NS = 10_000_000_000  # a row has 0.3 kB, of each thread and function
_SUMS = ("count", "total_ns", "bytes", "lengths")
_DEAD = int(abi.ThreadState["BP_THREAD_DEAD"])
_TID = np.dtype("<u4")
Rows = npt.NDArray[np.void]


class LibraryCalls:
    """`load()`, `probe()` the files there are, `write_when_due()` from time to time, and `finish()`."""

    def __init__(self, kernel: KernelSide) -> None:
        """Raises UnsupportedError where there can be no probes."""
        self.libraries: dict[str, int] = {}  # path of each file, to how many of its functions are probed
        self.problems: Counter[str] = Counter()
        self._kernel = kernel
        self._probes = Probes(kernel)
        self._seen_count = 0  # files
        self._due_ns = 0
        self._inodes: set[tuple[int, int]] = set()
        self._sums: dict[bytes, Rows] = {}  # by key, as they were read last
        self._gone: set[tuple[int, int]] = set()  # threads that were not there any more: (tid, first_ns)

    def load(self) -> None:
        """The programs, before anything is recorded. Raises UnsupportedError when the kernel refuses them."""
        self._kernel.call_programs(None if self._kernel.uses_links else 0)

    def probe(self, files: Sequence[CodeFile]) -> None:
        """Those that were not seen before; the list only grows."""
        new, self._seen_count = files[self._seen_count :], len(files)
        for file in new:
            wanted = call_table().wanted_of(os.path.basename(file.path))
            if not wanted or file.image is None:
                continue
            status = file.image.status()
            if (status.st_dev, status.st_ino) in self._inodes:
                continue
            if len(self._inodes) == _MOST_FILES:
                self.problems[f"libraries whose calls were not counted: they were more than {_MOST_FILES}"] += 1
                continue
            self._inodes.add((status.st_dev, status.st_ino))
            number_of_offset = {int(offset): function.number for function, offset in exported(file.image, wanted)}
            name = without_controls(os.fsencode(file.path))
            self.libraries.setdefault(name, 0)
            try:
                if number_of_offset:
                    self._probes.add(file.image.fileno(), number_of_offset)
                self.libraries[name] += len(number_of_offset)
            except OSError as error:
                why = f"functions of libraries that could not all be probed: {error.strerror}"
                self.problems[why] += len(number_of_offset)

    def write_when_due(
        self, time_ns: int, tids: npt.NDArray[np.uint32], threads: Rows, index_of: Mapping[int, int], sink: Sink
    ) -> None:
        """The calls that ended since the last time. tids, threads: the kernel side's, read at time_ns."""
        if time_ns < self._due_ns:
            return
        self._due_ns = time_ns + _EVERY_NS
        self._write(time_ns, tids, threads, index_of, sink, is_end=False)

    def finish(
        self, time_ns: int, tids: npt.NDArray[np.uint32], threads: Rows, index_of: Mapping[int, int], sink: Sink
    ) -> None:
        """The same at the end, with those that had not ended."""
        self._write(time_ns, tids, threads, index_of, sink, is_end=True)
        self.close()

    def close(self) -> None:
        """Functions are what they were. Safe to call again."""
        self._probes.close()

    def _write(
        self,
        time_ns: int,
        tids: npt.NDArray[np.uint32],
        threads: Rows,
        index_of: Mapping[int, int],
        sink: Sink,
        is_end: bool,
    ) -> None:
        is_there = threads["state"] != _DEAD
        living = set(zip(tids[is_there].tolist(), threads["first_ns"][is_there].tolist()))
        keys, sums = self._read("call_sums", CALL_KEY_DTYPE, CALL_SUM_DTYPE)
        open_tids, opened = self._read("open_calls", _TID, CALLS_DTYPE)
        found = self._ended(keys, sums)
        if is_end:
            found += self._open(open_tids, opened, living, time_ns)
        self._forget(keys, open_tids, opened, living, is_end)
        rows, places = np.zeros(len(found), CALL_DTYPE), dict[int, int]()
        count = 0
        for key, sum_row, flags in found:
            thread = index_of.get(int(key["tid"]))
            if thread is None:
                self.problems["calls of threads that were gone before they were known"] += int(sum_row["count"])
                continue
            row = rows[count]
            for name in (*_SUMS, "max_ns"):
                row[name] = sum_row[name]
            row["time_ns"], row["thread"], row["direction"] = time_ns, thread, key["direction"]
            row["function"] = places.setdefault(int(key["function"]), len(places))
            row["flags"] = flags | (CallFlag.INSIDE if key["is_inside"] else 0)
            count += 1
        if count:
            names = call_table().names
            sink.write("calls", {"texts": [names[place] for place in places]}, {"rows": rows[:count]})

    def _ended(self, keys: Rows, sums: Rows) -> list[tuple[np.void, np.void, int]]:
        """(key, what is more than before, flags)"""
        found = []
        for key, now in zip(keys, sums):
            before, more = self._sums.get(key.tobytes()), now
            if before is not None:
                if now["count"] == before["count"]:
                    continue
                more = now.copy()
                for name in _SUMS:
                    more[name] -= before[name]
            self._sums[key.tobytes()] = now
            found.append((key, more, 0))
        return found

    def _open(
        self, tids: Rows, opened: Rows, living: set[tuple[int, int]], time_ns: int
    ) -> list[tuple[np.void, np.void, int]]:
        """Calls that had not ended by then, a sum each."""
        found = []
        for tid, calls in zip(tids.tolist(), opened):
            is_there = (tid, int(calls["first_ns"])) in living
            for call in calls["open"][: int(calls["depth"])] if is_there else ():
                key, sum_row = np.zeros(1, CALL_KEY_DTYPE)[0], np.zeros(1, CALL_SUM_DTYPE)[0]
                key["tid"] = tid
                for name in ("function", "direction", "is_inside"):
                    key[name] = call[name]
                lasted_ns = max(0, time_ns - int(call["begin_ns"]))
                sum_row["count"], sum_row["bytes"] = 1, call["bytes"]
                sum_row["total_ns"] = sum_row["max_ns"] = lasted_ns
                found.append((key, sum_row, int(CallFlag.OPEN)))
        return found

    def _forget(self, keys: Rows, open_tids: Rows, opened: Rows, living: set[tuple[int, int]], is_end: bool) -> None:
        """What is there of threads that were not there the last time either: one that is new may be in no list yet."""
        fds, absent = self._kernel.tables.fds, set()
        for key in keys:
            thread = int(key["tid"]), int(key["first_ns"])
            if thread in living:
                continue
            absent.add(thread)
            if thread in self._gone:
                bpf_syscall.map_delete(fds["call_sums"], key.tobytes())
                self._sums.pop(key.tobytes(), None)
        for tid, calls in zip(open_tids, opened):
            thread = int(tid), int(calls["first_ns"])
            is_gone = thread not in living
            if is_gone:
                absent.add(thread)
            if is_gone and thread in self._gone:
                bpf_syscall.map_delete(fds["open_calls"], tid.tobytes())
            if is_end or (is_gone and thread in self._gone):
                left = int(calls["left"]) + (int(calls["depth"]) if is_gone else 0)
                self.problems["calls of libraries that never returned"] += left
        self._gone = absent

    def _read(self, name: str, key: np.dtype[Any], value: np.dtype[np.void]) -> tuple[Rows, Rows]:
        tables = self._kernel.tables
        keys, values = np.empty(tables.entries[name], key), np.empty(tables.entries[name], value)
        count = bpf_syscall.map_lookup_batch(tables.fds[name], keys.ctypes.data, values.ctypes.data, len(keys))
        return keys[:count].copy(), values[:count].copy()
