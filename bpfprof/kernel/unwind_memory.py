"""The unwind tables of the kernel side, mapped into memory: rows, rules and mappings in, word indices out.

Programs read while this writes, so what refers to something is written after it. Layouts: struct bp_chunk and below it
in ebpf/abi.h. For several threads at once.
"""

from __future__ import annotations

import bisect
import contextlib
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from bpfprof import abi
from bpfprof import array_types as npt
from bpfprof.abi.dtypes import FILE_DTYPE, MAPPING_DTYPE, RULE_DTYPE
from bpfprof.dataclass import dataclass
from bpfprof.elf.cfi.rules import NO_RULE_ID, Rules
from bpfprof.kernel.tables import Tables
from bpfprof.unwind.rows import FRAME_POINTER_ID, PAGE_BITS, RULE_BITS, RULE_MASK, UNREAD_ID, FileRows, RuleTable

_CHUNK_WORDS = abi.CONSTANTS["BP_CHUNK_WORDS"]
_MAX_CHUNKS = abi.CONSTANTS["BP_MAX_CHUNKS"]
_MAPPING_WORDS = MAPPING_DTYPE.itemsize // 4
MAX_MAPPINGS = 4096  # of one process; the kernel side's search takes fewer than 8192
# A program that found the old table is done with it after microseconds; a child's record, copied from its parent's at
# fork, is written anew when its birth is noticed.
_REUSE_AFTER_S = 10.0
# A table that was used since so long stays: each stack that is still met is heard of every BP_RESEND_NS (2 s).
_IN_USE_S = 6.0
_REUSE_TABLE_AFTER_S = 0.1  # nothing but a program under way can still refer to it
_LEFT_FOR_MAPPINGS = 8  # files leave one in so many words to mappings
_FULL = "no room beside the unwind tables in use (--table-memory)"


class UnwindMemoryFull(Exception):
    """No room for more rows: all chunks are in use, and so are the tables in them."""


class UnwindMemory:
    """Owns the memory maps of the unwind tables; the maps themselves belong to `Tables`.

    Where there is no room for a file's table, those of files that were not used for the longest time go.
    """

    def __init__(self, tables: Tables, limit_bytes: int = 4 * _CHUNK_WORDS * _MAX_CHUNKS) -> None:
        self.evicted_count = 0
        self._evicted: list[int] = []
        self._limit_chunks = min(_MAX_CHUNKS, max(1, limit_bytes // (4 * _CHUNK_WORDS)))
        all_words = self._limit_chunks * _CHUNK_WORDS
        self._file_words = all_words - all_words // _LEFT_FOR_MAPPINGS
        self._used_words = 0
        self._files: dict[int, _Placed] = {}
        self._tables = tables
        self._lock = threading.Lock()
        self._rules = RuleTable()
        self._rule_count = 0
        self._chunks: list[npt.NDArray[np.uint32]] = []
        self._free: list[tuple[int, int]] = []  # (start, words), by start
        self._released: deque[tuple[float, int, int]] = deque()  # mappings: (reuse them then, start, words)
        self._freed: deque[tuple[float, int, int]] = deque()  # the same of tables
        self._rule_rows = _map_rows(tables.fds["rules"], RULE_DTYPE, abi.CONSTANTS["BP_MAX_RULES"])
        self._file_rows = _map_rows(tables.fds["files"], FILE_DTYPE, abi.CONSTANTS["BP_MAX_FILES"])
        self._add_chunk(os.dup(tables.fds["chunk"]))
        self._publish_rules()

    def set_file(self, number: int, table: FileRows, rules: Rules) -> None:
        """Makes a file's rows known, in place of those before. `rules` are those that the rows refer to.

        Raises UnwindMemoryFull; those before stay then. May take the tables of other files away, see `take_evicted`.
        """
        with self._lock:
            adopted = self._rules.adopt(table, rules)
            self._publish_rules()
        while not self._set_file(number, adopted):
            time.sleep(2 * _REUSE_TABLE_AFTER_S)

    def _set_file(self, number: int, table: FileRows) -> bool:
        """False when there will be room for it soon."""
        with self._lock:
            try:
                pages, blocks = self._place(table)
            except UnwindMemoryFull:
                words = len(table.rows) + 2 * len(table.pages)
                if words > self._file_words or not self._evict(words):
                    raise
                return False
            if number in self._files:
                self._free_later(self._files[number])
            self._files[number] = _Placed(time.monotonic(), blocks)
            row, states = self._file_rows[number : number + 1], abi.ENUMS["bp_file_state"]
            row["state"] = states["BP_FILE_PENDING"]
            row["pages"], row["first_page"], row["page_count"] = pages, table.first_page, len(table.pages) - 1
            row["state"] = states["BP_FILE_READY"]
        return True

    def _free_later(self, placed: _Placed) -> int:
        """Words of a table that no stack will be taken by in a moment."""
        for start, size in placed.blocks:
            self._freed.append((time.monotonic() + _REUSE_TABLE_AFTER_S, start, size))
        return sum(size for _, size in placed.blocks)

    def note_used(self, numbers: Iterable[int]) -> None:
        """Stacks that were taken lately lead through these files."""
        now = time.monotonic()
        with self._lock:
            for number in numbers:
                if number in self._files:
                    self._files[number].used_s = now

    def take_evicted(self) -> list[int]:
        """Files whose tables were taken away since the last call; a stack that needs one ends there."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def _evict(self, words: int) -> bool:
        """Takes the tables away that were not used for the longest time; false when all that would help are in use."""
        limit_s, freed = time.monotonic() - _IN_USE_S, 0
        oldest = sorted((placed.used_s, number) for number, placed in self._files.items() if placed.used_s < limit_s)
        for _, number in oldest:
            if freed >= 2 * words:
                break
            self._file_rows["state"][number] = abi.ENUMS["bp_file_state"]["BP_FILE_PENDING"]
            freed += self._free_later(self._files.pop(number))
            self._evicted.append(number)
            self.evicted_count += 1
        return freed > 0

    def set_frame_pointers(self, number: int) -> None:
        """The file has no table: its code is left by frame pointers."""
        self._file_rows["state"][number] = abi.ENUMS["bp_file_state"]["BP_FILE_FRAME_POINTERS"]

    def rule_at(self, number: int, address: int) -> npt.NDArray[np.void] | None:
        """The rule (one row of RULE_DTYPE) at an ELF address of a file, as the kernel side finds it.

        Empty when there is none, None when the table is not made yet or does not have the function yet.
        """
        file, states = self._file_rows[number], abi.ENUMS["bp_file_state"]
        if file["state"] == states["BP_FILE_PENDING"]:
            return None
        if file["state"] == states["BP_FILE_FRAME_POINTERS"]:
            return self._rule_row(FRAME_POINTER_ID)
        page = (address >> PAGE_BITS) - int(file["first_page"])
        if not 0 <= page < int(file["page_count"]):
            return self._rule_rows[:0]
        first, count = self._read(int(file["pages"]) + 2 * page, 2).tolist()
        key = (address & (1 << PAGE_BITS) - 1) << RULE_BITS | RULE_MASK
        place = int(np.searchsorted(self._read(first, count), np.uint32(key), side="right"))
        rule = int(self._read(first + place - 1, 1)[0]) & RULE_MASK
        return None if rule == UNREAD_ID else self._rule_row(rule)

    def rows_before(self, number: int, address: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]:
        """(ELF addresses, ascending, the rules from there on) of the page of an address and of the one before it.

        Up to the address; nothing where there is no table. Rows without a rule are left out.
        """
        file, page_bytes = self._file_rows[number], 1 << PAGE_BITS
        addresses, rules = [np.zeros(0, np.int64)], [self._rule_rows[:0]]
        if file["state"] == abi.ENUMS["bp_file_state"]["BP_FILE_READY"]:
            for page in ((address >> PAGE_BITS) - 1, address >> PAGE_BITS):
                place = page - int(file["first_page"])
                if 0 <= place < int(file["page_count"]):
                    rows = self._read(*self._read(int(file["pages"]) + 2 * place, 2).tolist()).astype(np.int64)
                    rows = rows[~np.isin(rows & RULE_MASK, (NO_RULE_ID, UNREAD_ID))]
                    addresses.append(page * page_bytes + (rows >> RULE_BITS))
                    rules.append(self._rule_rows[rows & RULE_MASK])
        found = np.concatenate(addresses)
        return found[found <= address], np.concatenate(rules)[found <= address]

    def _rule_row(self, rule: int) -> npt.NDArray[np.void]:
        return self._rule_rows[rule : rule + 1] if rule != NO_RULE_ID else self._rule_rows[:0]

    def _read(self, index: int, count: int) -> npt.NDArray[np.uint32]:
        chunk, place = divmod(index, _CHUNK_WORDS)
        return self._chunks[chunk][place : place + count]

    def add_mappings(self, mappings: npt.NDArray[np.void]) -> int:
        """Word index of a copy of `mappings` (MAPPING_DTYPE, by address, at most MAX_MAPPINGS)."""
        with self._lock:
            index = self._allocate(max(1, len(mappings)) * _MAPPING_WORDS)
            self._write(index, mappings.view(np.uint32))
        return index

    def release_mappings(self, index: int, count: int) -> None:
        """No process record refers to them any more."""
        with self._lock:
            self._released.append((time.monotonic() + _REUSE_AFTER_S, index, max(1, count) * _MAPPING_WORDS))

    def _publish_rules(self) -> None:
        records = self._rules.records[self._rule_count :].view(RULE_DTYPE)
        self._rule_rows[self._rule_count : self._rule_count + len(records)] = records
        self._rule_count += len(records)

    def _place(self, table: FileRows) -> tuple[int, list[tuple[int, int]]]:
        """Writes rows and pages; returns the word index of the pages, and all that was taken, as (start, words).

        When there is no room nothing is kept.
        """
        taken: list[tuple[int, int]] = []
        try:
            places = self._place_rows(table, taken)
            index = self._allocate(places.size, for_file=True)
        except UnwindMemoryFull:
            for start, words in taken:
                self._put_back(start, words)
            raise
        self._write(index, places.reshape(-1))
        return index, [*taken, (index, places.size)]

    def _place_rows(self, table: FileRows, taken: list[tuple[int, int]]) -> npt.NDArray[np.uint32]:
        """(word index of the first row, rows) of each page. Notes in `taken` what was allocated."""
        counts = np.diff(table.pages)
        places = np.empty((len(counts), 2), np.uint32)
        places[:, 1] = counts
        page = 0
        while page < len(counts):
            start = int(table.pages[page]) - 1  # the row before is the first page's predecessor
            # One word more than there are rows: an empty page at the end begins there, which has to be in this chunk.
            end_page = int(np.searchsorted(table.pages, start + _CHUNK_WORDS - 1, "right")) - 1
            words = int(table.pages[end_page]) - start + 1
            index = self._allocate(words, for_file=True)
            taken.append((index, words))
            self._write(index, table.rows[start : int(table.pages[end_page])])
            places[page:end_page, 0] = table.pages[page:end_page] - np.uint32(start) + np.uint32(index)
            page = end_page
        return places

    def _write(self, index: int, words: npt.NDArray[np.uint32]) -> None:
        chunk, place = divmod(index, _CHUNK_WORDS)
        self._chunks[chunk][place : place + len(words)] = words

    def _allocate(self, words: int, for_file: bool = False) -> int:
        """Index of so many free words in a row, within one chunk and a multiple of 8."""
        words = _rounded(words)
        if words > _CHUNK_WORDS:
            raise UnwindMemoryFull(f"a table of {words} words")
        self._take_back()
        if for_file and self._used_words + words > self._file_words:
            raise UnwindMemoryFull(_FULL)
        position = next((n for n, (_, size) in enumerate(self._free) if size >= words), -1)
        if position < 0:
            if len(self._chunks) == self._limit_chunks:
                raise UnwindMemoryFull(_FULL)
            self._add_chunk(self._tables.new_chunk())
            position = len(self._free) - 1
        start, size = self._free[position]
        self._used_words += words
        if size > words:
            self._free[position] = (start + words, size - words)
        else:
            del self._free[position]
        return start

    def _add_chunk(self, fd: int) -> None:
        self._tables.add_chunk(len(self._chunks), fd)
        self._free.append((len(self._chunks) * _CHUNK_WORDS, _CHUNK_WORDS))
        self._chunks.append(_map_rows(fd, np.dtype(np.uint32), _CHUNK_WORDS))
        os.close(fd)

    def _take_back(self) -> None:
        for waiting in (self._released, self._freed):
            while waiting and waiting[0][0] < time.monotonic():
                _, start, words = waiting.popleft()
                self._put_back(start, words)

    def _put_back(self, start: int, words: int) -> None:
        self._used_words -= _rounded(words)
        position = bisect.bisect(self._free, (start, 0))
        self._free.insert(position, (start, _rounded(words)))
        with contextlib.suppress(IndexError):
            self._join(position)
        if position:
            self._join(position - 1)

    def _join(self, position: int) -> None:
        """Makes one of two neighbours that touch, but not across chunks."""
        (start, words), (next_start, next_words) = self._free[position], self._free[position + 1]
        if start + words == next_start and next_start % _CHUNK_WORDS:
            self._free[position : position + 2] = [(start, words + next_words)]


@dataclass
class _Placed:
    """The table of one file: when it was used last, and what it takes, as (start, words)."""

    used_s: float
    blocks: list[tuple[int, int]]


def _rounded(words: int) -> int:
    """What is taken for so many words."""
    return max(8, words + 7 & ~7)


def _map_rows(fd: int, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
    size = dtype.itemsize * count
    return np.frombuffer(mmap.mmap(fd, size + -size % mmap.PAGESIZE), dtype, count)
