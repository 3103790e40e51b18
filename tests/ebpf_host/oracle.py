"""What the kernel side has to find: the interpreter of `bpfprof.unwind`, and what only the kernel side does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bpfprof.elf.cfi.rules import FLAG_SIGNAL, NO_RULE_ID
from bpfprof.model.ids import RuntimeAddress
from bpfprof.unwind.interpret import MappedFile, ReadWord, Registers, Stop, Walk, walk
from bpfprof.unwind.rows import BARE_LEAF_ID, FileRows, find
from tests.ebpf_host.host import CONSTANTS, STATUS, Segment

STATUS_OF = {
    Stop.END_OF_STACK: STATUS.BP_OK,
    Stop.NO_MAPPING: STATUS.BP_NATIVE_NO_MAPPING,
    Stop.NO_RULE: STATUS.BP_NATIVE_NO_RULE,
    Stop.UNREADABLE: STATUS.BP_NATIVE_FAULT,
    Stop.UNSUPPORTED: STATUS.BP_NATIVE_UNSUPPORTED,
    Stop.TOO_DEEP: STATUS.BP_NATIVE_TOO_DEEP,
    Stop.NOT_GROWING: STATUS.BP_NATIVE_NOT_GROWING,
}
MAX_FRAMES = CONSTANTS["BP_MAX_NATIVE_FRAMES"]


class _BareLeaf(list[MappedFile]):
    """The files of a walk; the first time they are gone through, the rule of a bare leaf holds at one address."""

    def __init__(self, files: Sequence[MappedFile], pc: int) -> None:
        super().__init__(files)
        table = FileRows(0, np.array([1, 2], np.uint32), np.array([0, BARE_LEAF_ID], np.uint32))
        self.first = [MappedFile(RuntimeAddress(pc), RuntimeAddress(pc + 1), pc, table)]

    def __iter__(self) -> Iterator[MappedFile]:
        yield from self.first
        self.first = []
        yield from super().__iter__()


def is_bare(files: Sequence[MappedFile], pc: int) -> bool:
    """Whether an address is in a file and has no rule."""
    mapped = next((item for item in files if item.start <= pc < item.end), None)
    return mapped is not None and find(mapped.table, pc - mapped.bias) == NO_RULE_ID


def expected_walk(registers: Registers, read_word: ReadWord, files: Sequence[MappedFile], rules: Any) -> Walk:
    """The walk of the kernel side: at most MAX_FRAMES; a leaf without a rule is one that has nothing on the stack."""
    if is_bare(files, registers.ip):
        files = _BareLeaf(files, registers.ip)
    return walk(registers, read_word, files, rules, MAX_FRAMES)


def exact_frames(pcs: Sequence[int], files: Sequence[MappedFile], rules: Any) -> tuple[bool, ...]:
    """For each frame of a walk, whether it was interrupted: the leaf, and those whose callee is a signal frame."""
    found = [True]
    for pc in pcs[:-1]:
        at = pc if found[-1] else pc - 1
        mapped = next(item for item in files if item.start <= at < item.end)
        flags = rules[find(mapped.table, at - mapped.bias)]["flags"]
        found.append(bool(flags & FLAG_SIGNAL))
    return tuple(found)


def reader(segments: Sequence[Segment]) -> ReadWord:
    """Words of these segments."""

    def read_word(address: int) -> int | None:
        for start, data in segments:
            if 0 <= address - start <= len(data) - 8:
                return int.from_bytes(data[address - start : address - start + 8], "little")
        return None

    return read_word
