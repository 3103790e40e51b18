"""The marks that programs make of themselves (bpfprof/marks.py): their rings in, rows of MARK_DTYPE out.

A ring is a memory file that the program shares with nobody else: no code of the program runs when it is read, and
reading it waits for nobody. What is in it is the program's to say, so all of it is checked.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import field

import numpy as np

from bpfprof import array_types as npt
from bpfprof.capture.process import Process
from bpfprof.dataclass import dataclass
from bpfprof.errors import TargetError
from bpfprof.marks import BYTES, COUNT, FIRST, LISTENS, MAGIC, NAME, SLOT, SLOTS
from bpfprof.model.samples import MARK_DTYPE
from bpfprof.proc.maps import open_mapped_file, read_maps
from bpfprof.proc.memory import ProcessMemory
from bpfprof.proc.text import without_controls
from bpfprof.recording.writer import Sink

_PATH = f"/memfd:{NAME}"  # as /proc/PID/maps has it
_LISTENS_NS = 3_000_000_000  # from each look on
_FIND_FIRST_S, _FIND_LAST_S, _FIND_REST = 0.25, 4.0, 200  # as of asyncio tasks: 0.5% of a CPU at most
_MOST_A_SECOND = 2_000  # of a process, and a ring full at once
_MOST_NAMES = 64  # of a process; of what is marked, not of each time it is
_NAME_TYPE = "S32"


@dataclass
class _Watched:
    """A process, by its memory: after an exec that is another. fd: of its ring, -1: it has none yet."""

    memory: ProcessMemory
    fd: int = -1
    inode: int = 0
    count: int = 0  # of its marks that were read, or lost
    left: float = 0.0  # how many may be written now
    read_s: float = 0.0
    find_due_s: float = 0.0
    find_after_s: float = _FIND_FIRST_S
    names: set[bytes] = field(default_factory=set)


class Marks:
    """`take()` them from time to time; `lost_count`: how many were written over before, or cannot be."""

    def __init__(self, index_of: Mapping[int, int]) -> None:
        """index_of: the index in the recording of the thread with a tid."""
        self.lost_count = 0
        self._index_of = index_of
        self._watched: dict[int, _Watched] = {}  # by the process's index
        self._device = _device_of_memory()

    def take(self, processes: Iterable[Process], sink: Sink) -> None:
        """Writes those that are new, also of processes that have ended since."""
        seen = set()
        for process in processes:
            if process.interpreter is None or process.memory is None:
                continue
            watched = self._watched.get(process.index)
            if watched is None or watched.memory is not process.memory:
                self._forget(process.index, sink)
                watched = self._watched[process.index] = _Watched(process.memory)
            seen.add(process.index)
            if watched.fd < 0 and watched.find_due_s <= time.monotonic():
                self._find(process, watched)
            if watched.fd >= 0:
                self._read(watched, sink)
        for index in self._watched.keys() - seen:
            self._forget(index, sink)

    def close(self) -> None:
        """Programs keep no marks any more."""
        for watched in self._watched.values():
            if watched.fd >= 0:
                _write_word(watched.fd, LISTENS, 0)
                os.close(watched.fd)
        self._watched.clear()

    def _find(self, process: Process, watched: _Watched) -> None:
        begin_s = time.monotonic()
        with contextlib.suppress(OSError, TargetError):
            of_others = {each.inode for each in self._watched.values()}  # a child may still have that of its parent
            found = [each for each in read_maps(process.pid) if each.path == _PATH and each.inode not in of_others]
            if found:
                watched.fd, watched.inode = self._open(open_mapped_file(process.pid, found[0])), found[0].inode
        if watched.fd >= 0:
            words = _read_words(watched.fd, COUNT, 1)
            watched.count = int(words[0]) if len(words) else 0
        now_s = time.monotonic()
        watched.find_due_s = now_s + max(watched.find_after_s, _FIND_REST * len(self._watched) * (now_s - begin_s))
        watched.find_after_s = min(2 * watched.find_after_s, _FIND_LAST_S)

    def _open(self, mapping_fd: int) -> int:
        """The same to be written, too. Raises OSError for what is no memory file of a ring's size and beginning."""
        try:
            status = os.fstat(mapping_fd)
            words = _read_words(mapping_fd, 0, 1)
            if status.st_dev != self._device or status.st_size != BYTES or words.tolist() != [MAGIC]:
                raise OSError("it is no ring")
            # A program may have a lease on it, which an open would wait for otherwise.
            return os.open(f"/proc/self/fd/{mapping_fd}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            os.close(mapping_fd)

    def _forget(self, index: int, sink: Sink) -> None:
        watched = self._watched.pop(index, None)
        if watched is not None and watched.fd >= 0:
            self._read(watched, sink)
            os.close(watched.fd)

    def _read(self, watched: _Watched, sink: Sink) -> None:
        _write_word(watched.fd, LISTENS, time.monotonic_ns() + _LISTENS_NS)
        words = _read_words(watched.fd, COUNT, 1)
        count = int(words[0]) if len(words) else watched.count
        if not watched.count < count < 1 << 62:
            return
        first = max(watched.count, count - SLOTS)
        self.lost_count += min(first - watched.count, 1 << 32)
        numbers = np.arange(first, count)
        ring = _read_words(watched.fd, FIRST, SLOT * SLOTS)
        if len(ring) != SLOT * SLOTS:
            return
        now_ns = time.monotonic_ns()  # after reading: marks may have ended since it began
        rows = ring.reshape(SLOTS, SLOT)[numbers % SLOTS]
        begin_ns, end_ns = rows[:, 1], rows[:, 2]
        is_whole = (rows[:, 0] == (numbers + 1).astype(np.uint64)) & (begin_ns <= end_ns) & (end_ns <= now_ns)
        watched.count = count
        now_s = time.monotonic()
        watched.left = min(SLOTS, watched.left + _MOST_A_SECOND * (now_s - watched.read_s))
        watched.read_s = now_s
        kept = rows[is_whole][: int(watched.left)]
        watched.left -= len(kept)
        self.lost_count += len(rows) - len(kept)
        self._write(watched, kept, sink)

    def _write(self, watched: _Watched, rows: npt.NDArray[np.uint64], sink: Sink) -> None:
        raw = np.ascontiguousarray(rows[:, 4:8]).view(_NAME_TYPE).reshape(-1)
        made, texts = np.zeros(len(rows), MARK_DTYPE), dict[bytes, int]()
        kept = 0
        for (_, begin_ns, end_ns, tid), name in zip(rows[:, :4].tolist(), raw.tolist()):
            index = self._index_of.get(tid)
            if index is None or (name not in watched.names and len(watched.names) >= _MOST_NAMES):
                self.lost_count += 1
                continue
            watched.names.add(name)
            made[kept] = begin_ns, index, texts.setdefault(name, len(texts)), float(end_ns - begin_ns)
            kept += 1
        if kept:
            names = [without_controls(each) for each in texts]
            sink.write("marks", {"texts": names}, {"rows": made[:kept]})


def _device_of_memory() -> int:
    """Of the file system that memory files are on, where no other files are."""
    fd = os.memfd_create("bpfprof-device", os.MFD_CLOEXEC)
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


def _read_words(fd: int, first: int, count: int) -> npt.NDArray[np.uint64]:
    """Fewer where the program has made the file shorter."""
    with contextlib.suppress(OSError):
        data = os.pread(fd, 8 * count, 8 * first)
        return np.frombuffer(data[: len(data) // 8 * 8], np.uint64)
    return np.zeros(0, np.uint64)


def _write_word(fd: int, place: int, value: int) -> None:
    """Not beyond the end of the file, which the program may have moved or sealed."""
    with contextlib.suppress(OSError):
        if os.fstat(fd).st_size == BYTES:
            os.pwrite(fd, value.to_bytes(8, "little"), 8 * place)
