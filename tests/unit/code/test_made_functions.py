"""Functions in memory that nothing lists: those of this process, found around an address."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator

import pytest

from bpfprof.code.made_functions import PAGE_BYTES, find_function
from bpfprof.elf.cfi.rules import CfaKind
from bpfprof.elf.cfi.tables import read_call_frames
from bpfprof.elf.image import ElfImage
from bpfprof.model.ids import Pid
from bpfprof.proc.memory import ProcessMemory

# push rbx; push rbp; sub rsp, 0x88; mov ebp, 0x400; dec edi; jne to dec; add rsp, 0x88; pop rbp; pop rbx; ret
CODE = bytes.fromhex("53 55 48 81 ec 88 00 00 00 bd 00 04 00 00 ff cf 75 fc 48 81 c4 88 00 00 00 5d 5b c3")
LEAF = bytes.fromhex("ff cf 75 fc c3") + bytes(11)
NOT_FOLLOWED = bytes.fromhex("53 ff cf 75 fb c3") + bytes(10)  # returns to what it has pushed
PAGES = 80


class Buffer:
    def __init__(self) -> None:
        self.content = mmap.mmap(-1, PAGES * PAGE_BYTES)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.content))
        self.memory = ProcessMemory(Pid(os.getpid()))

    def rows_at(self, place: int) -> tuple[int, int, list[tuple[int, int, int]]] | None:
        """Begin and end of the function, and (place, kind of CFA, its offset) of its rows."""
        found = find_function(self.memory, self.start, self.start + len(self.content), self.start + place)
        if found is None:
            return None
        with ElfImage.from_bytes(found.content, "made") as image:
            frames = read_call_frames(image)
        rules = frames.rules[frames.rule]
        rows = zip(frames.address.tolist(), rules["cfa_kind"].tolist(), rules["cfa_offset"].tolist())
        assert found.bias == found.start
        return found.start - self.start, found.end - self.start, list(rows)


@pytest.fixture
def buffer() -> Iterator[Buffer]:
    made = Buffer()
    yield made
    made.memory.close()


def test_of_each_instruction_the_rule(buffer: Buffer) -> None:
    begin = 3 * PAGE_BYTES
    buffer.content[begin : begin + len(CODE)] = CODE
    found = buffer.rows_at(begin + 16)
    assert found is not None
    kinds = {kind for _, kind, offset in found[2] if offset}
    assert found[:2] == (begin, begin + len(CODE)) and kinds == {CfaKind.RSP}
    offsets = [(place, offset) for place, _, offset in found[2]]
    assert offsets == [(0, 8), (1, 16), (2, 24), (9, 160), (25, 24), (26, 16), (27, 8), (28, 0)]
    assert buffer.rows_at(begin + len(CODE)) is None and buffer.rows_at(begin + len(CODE) - 1) is not None


def test_it_begins_behind_an_empty_page_or_with_the_mapping(buffer: Buffer) -> None:
    for begin in (0, 7 * PAGE_BYTES):
        long = b"\x53\x5b" * PAGE_BYTES + LEAF  # push rbx; pop rbx
        buffer.content[begin : begin + len(long)] = long
        found = buffer.rows_at(begin + len(long) - 12)
        assert found is not None and found[:2] == (begin, begin + len(long) - 11)


def test_of_several_in_one_page_that_of_the_address(buffer: Buffer) -> None:
    code = bytes(64) + CODE.ljust(48, b"\xcc") + CODE  # as asmjit fills its blocks
    buffer.content[: len(code)] = code
    found = buffer.rows_at(64 + 48 + 16)
    assert found is not None and found[:2] == (112, 112 + len(CODE)) and found[2][1] == (1, CfaKind.RSP, 16)
    assert buffer.rows_at(32) is None


def test_what_cannot_be_followed_has_no_rules(buffer: Buffer) -> None:
    buffer.content[: len(NOT_FOLLOWED)] = NOT_FOLLOWED
    found = buffer.rows_at(2)
    assert found is None or not any(offset for _, _, offset in found[2])


def test_there_is_none_in_empty_or_unreadable_memory_nor_one_too_long(buffer: Buffer) -> None:
    assert buffer.rows_at(5 * PAGE_BYTES) is None
    assert find_function(buffer.memory, 0, PAGE_BYTES, 16) is None
    buffer.content[PAGE_BYTES:] = b"\x90" * ((PAGES - 1) * PAGE_BYTES)
    assert buffer.rows_at(70 * PAGE_BYTES) is None
