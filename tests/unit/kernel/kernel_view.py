"""What the kernel side finds in the unwind tables: its searches (ebpf/unwind_tables.bpf.h), step by step in Python.

The words come from the maps themselves where there are any, as one system call copies them; else from files in memory
that stand for the maps.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

from bpfprof import abi
from bpfprof import array_types as npt
from bpfprof.abi.dtypes import FILE_DTYPE, MAPPING_DTYPE, RULE_DTYPE
from bpfprof.errors import UnsupportedError
from bpfprof.kernel import bpf_syscall, unwind_memory
from bpfprof.kernel.tables import Tables

CHUNK_WORDS = abi.CONSTANTS["BP_CHUNK_WORDS"]
RULE_BITS = abi.CONSTANTS["BP_ROW_RULE_BITS"]
NO_RULE, FRAME_POINTER = abi.CONSTANTS["BP_RULE_NO_RULE"], abi.CONSTANTS["BP_RULE_FRAME_POINTER"]
PENDING, READY, FRAME_POINTERS = (
    int(abi.ENUMS["bp_file_state"][f"BP_FILE_{name}"]) for name in ("PENDING", "READY", "FRAME_POINTERS")
)
MAPPING_STEPS = PAGE_STEPS = 13
MAPPING_WORDS = MAPPING_DTYPE.itemsize // 4
MASK64 = (1 << 64) - 1


class Missing(Exception):
    """The kernel side would stop here: what it needs is not there (yet)."""


def less(a: int, b: int) -> int:
    """less() of the kernel side, without its branch."""
    return ((a - b) & MASK64) >> 63


@dataclass
class KernelView:
    """In place of `Tables`: takes the chunks and reads them as programs would."""

    fds: dict[str, int]
    is_real: bool
    chunk_words: int = CHUNK_WORDS
    chunk_fds: dict[int, int] = field(default_factory=dict)
    _snapshots: dict[int, npt.NDArray[np.uint32]] = field(default_factory=dict)

    @classmethod
    def of_files(cls, monkeypatch: pytest.MonkeyPatch, chunk_words: int = CHUNK_WORDS) -> KernelView:
        """With files in memory for maps; chunks may be smaller than in the kernel."""
        monkeypatch.setattr(unwind_memory, "_CHUNK_WORDS", chunk_words)
        sizes = {
            "rules": RULE_DTYPE.itemsize * abi.CONSTANTS["BP_MAX_RULES"],
            "files": FILE_DTYPE.itemsize * abi.CONSTANTS["BP_MAX_FILES"],
            "chunk": 4 * chunk_words,
        }
        return cls({name: _memory_file(size) for name, size in sizes.items()}, False, chunk_words)

    @classmethod
    def of_maps(cls) -> KernelView:
        """With the kernel's own maps."""
        if os.geteuid() != 0:
            pytest.skip("making BPF maps needs root")
        try:
            tables = Tables.create()
        except UnsupportedError as error:
            pytest.skip(f"no BPF maps can be made here: {error}")
        view = cls(tables.fds, True)
        return view

    def tables(self) -> Tables:
        """For an UnwindMemory."""
        return cast(Tables, self)

    def new_chunk(self) -> int:
        """As Tables.new_chunk."""
        return Tables(self.fds).new_chunk() if self.is_real else _memory_file(4 * self.chunk_words)

    def add_chunk(self, number: int, fd: int) -> None:
        """As Tables.add_chunk; the chunk is kept to be read."""
        assert number == len(self.chunk_fds), "chunks come in order"
        self.chunk_fds[number] = os.dup(fd)
        if self.is_real:
            Tables(self.fds).add_chunk(number, fd)

    def close(self) -> None:
        for fd in (*self.chunk_fds.values(), *self.fds.values()):
            os.close(fd)

    # --- what programs read

    def look(self) -> None:
        """Reads the chunks anew; the searches below see what was there now."""
        self._snapshots.clear()

    def _words(self, index: int) -> npt.NDArray[np.uint32]:
        number = index // self.chunk_words
        if number not in self.chunk_fds:
            raise Missing(f"chunk {number}")
        if number not in self._snapshots:
            self._snapshots[number] = np.frombuffer(
                self._element(self.chunk_fds[number], 0, 4 * self.chunk_words), np.uint32
            )
        return self._snapshots[number]

    def _element(self, fd: int, index: int, size: int) -> bytes:
        if not self.is_real:
            return os.pread(fd, size, index * size)
        element = bpf_syscall.map_lookup(fd, index.to_bytes(4, "little"), size)
        assert element is not None
        return element

    def rule(self, number: int) -> npt.NDArray[np.void]:
        """A bp_rule, as an array of one."""
        return np.frombuffer(self._element(self.fds["rules"], number, RULE_DTYPE.itemsize), RULE_DTYPE)

    def file(self, number: int) -> dict[str, int]:
        """A bp_file."""
        row = np.frombuffer(self._element(self.fds["files"], number, FILE_DTYPE.itemsize), FILE_DTYPE)[0]
        return {name: int(row[name]) for name in FILE_DTYPE.names or ()}

    def find_rule(self, file: dict[str, int], address: int) -> int:
        """find_rule(): the number of the rule at an ELF address. Raises Missing."""
        if file["state"] != READY:
            if file["state"] == FRAME_POINTERS:
                return FRAME_POINTER
            raise Missing("table")
        page = ((address >> 12) - file["first_page"]) & MASK64
        if page >= file["page_count"]:
            return NO_RULE
        mask = self.chunk_words - 1
        at = file["pages"] + 2 * page
        words = self._words(at)
        base, rows = int(words[at & mask]), int(words[(at + 1) & mask])
        words = self._words(base)
        key = (address & 0xFFF) << RULE_BITS | (1 << RULE_BITS) - 1
        for _ in range(PAGE_STEPS):
            half = rows >> 1
            before = less(int(words[(base + half) & mask]), key + 1) & less(0, rows)
            base += before * (half + 1)
            rows = half - (before & ~rows & 1)
        assert rows == 0, "the search did not end"
        return int(words[(base - 1) & mask]) & (1 << RULE_BITS) - 1

    def find_mapping(self, first: int, count: int, address: int) -> npt.NDArray[np.void]:
        """find_mapping(): the bp_mapping of a runtime address. Raises Missing."""
        if not count:
            raise Missing("mappings")
        words, mask = self._words(first), self.chunk_words - 2

        def word64(index: int) -> int:
            place = index & mask
            return int(words[place]) | int(words[place + 1]) << 32

        low = 0
        for step in range(MAPPING_STEPS - 1, -1, -1):
            probe = low + (1 << step)
            inside = less(probe, count)
            start = word64(first + (probe & -inside) * MAPPING_WORDS)
            low += (inside & less(start, address + 1)) << step
        at = first + low * MAPPING_WORDS
        if not word64(at) <= address < word64(at + 2):
            raise Missing("mapping")
        place = at & (self.chunk_words - 1)
        return words[place : place + MAPPING_WORDS].view(MAPPING_DTYPE)


def _memory_file(size: int) -> int:
    fd = os.memfd_create("map")
    os.ftruncate(fd, size + -size % mmap.PAGESIZE)
    return fd


def random_mappings(chance: np.random.Generator, count: int) -> npt.NDArray[Any]:
    """Mappings by address, some of which touch."""
    edges = np.sort(chance.choice(1 << 20, 2 * count, replace=False)).astype(np.uint64) << np.uint64(12)
    made = np.zeros(count, MAPPING_DTYPE)
    made["start"], made["end"] = edges[::2], edges[1::2]
    touches = chance.random(count) < 0.3
    made["end"][:-1][touches[:-1]] = made["start"][1:][touches[:-1]]
    made["bias"], made["file"] = chance.integers(0, 1 << 63, count), np.arange(count)
    return made
