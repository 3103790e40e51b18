"""CPython's code for perf, found in memory by what it does, and its rules at every instruction."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import cast

import pytest

from bpfprof.code.trampolines import find_trampolines
from bpfprof.elf.cfi.rules import CfaKind
from bpfprof.elf.image import ElfImage
from bpfprof.proc.memory import ProcessMemory
from bpfprof.unwind.cache import decode_rows
from bpfprof.unwind.rows import find

START, ARENA = 0x7F12_3456_0000, 1 << 16
ENDBR64 = bytes.fromhex("f30f1efa")
# Copies of Python/asm_trampoline.S as gcc has assembled it, and (kind, offset) of the CFA at each instruction.
STACK, FRAME = int(CfaKind.RSP), int(CfaKind.RBP)
BEFORE_3_14 = (
    bytes.fromhex("4883ec08 ffd1 4883c408 c3"),
    {0: (STACK, 8), 4: (STACK, 16), 6: (STACK, 16), 10: (STACK, 8)},
)
SINCE_3_14 = bytes.fromhex("55 4889e5 ffd1 5d c3"), {0: (STACK, 8), 1: (STACK, 16), 4: (FRAME, 16), 7: (STACK, 8)}


@dataclass
class Memory:
    content: bytes

    def read(self, address: int, size: int) -> bytes | None:
        data = self.content[address - START :][:size]
        return data if len(data) == size else None


def memory(content: bytes) -> ProcessMemory:
    return cast(ProcessMemory, Memory(content))


@pytest.mark.parametrize("mark", [b"", ENDBR64], ids=["", "endbr64"])
@pytest.mark.parametrize("stride", [0, 32, 0x110], ids=["tight", "aligned", "with room for perf's tables"])
@pytest.mark.parametrize(("code", "rules"), [BEFORE_3_14, SINCE_3_14], ids=["3.12", "3.14"])
def test_every_instruction_has_its_rule(
    code: bytes, rules: dict[int, tuple[int, int]], stride: int, mark: bytes
) -> None:
    copy = (mark + code).ljust(stride, b"\0")
    content = (copy * (ARENA // len(copy))).ljust(ARENA, b"\0")
    found = find_trampolines(memory(content), START, START + ARENA)
    assert found is not None and (found.start, found.end, found.bias) == (START, START + ARENA, START)
    with ElfImage.from_bytes(found.content, "made") as image:
        table, rows = decode_rows(image)
    for number in (0, 1, 7, ARENA // len(copy) - 1):
        for place, (kind, offset) in rules.items():
            rule = rows[find(table, number * len(copy) + (len(mark) + place if place else 0))]
            assert (rule["cfa_kind"], rule["cfa_offset"], rule["ra_offset"]) == (kind, offset, -8)


def test_other_memory_is_left_alone() -> None:
    rng = random.Random(5)
    for content in (bytes(ARENA), b"\0" + BEFORE_3_14[0] * 100, b"", BEFORE_3_14[0], rng.randbytes(ARENA)):
        assert find_trampolines(memory(content), START, START + ARENA) is None


def test_damaged_arenas() -> None:
    rng = random.Random(6)
    for _ in range(100):
        content = bytearray(BEFORE_3_14[0] * 400)
        for _ in range(rng.randrange(1, 50)):
            content[rng.randrange(16, len(content))] = rng.randrange(256)
        found = find_trampolines(memory(bytes(content)), START, START + len(content))
        assert found is not None
        with ElfImage.from_bytes(found.content, "damaged") as image:
            decode_rows(image)
