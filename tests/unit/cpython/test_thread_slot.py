"""Where the thread state is found, in the ways that compilers have to reach a thread-local variable."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from bpfprof.cpython.code_objects import Unresolved
from bpfprof.cpython.layout import NONE
from bpfprof.cpython.layouts_static import STATIC_LAYOUTS
from bpfprof.cpython.thread_slot import ThreadSlot, find_thread_slot
from bpfprof.cpython.thread_state import ThreadStateRef
from bpfprof.model.ids import RuntimeAddress
from tests.unit.cpython.test_thread_state import FakeMemory

GETTER, TABLE, POINTER, STATE = 0x10000, 0x20000, 0x70000, 0x90000
LAYOUT = replace(STATIC_LAYOUTS[3, 12], version=(3, 15), runtime_tss=NONE)
THREADS = [ThreadStateRef(RuntimeAddress(0x91000), 2, 0x78000), ThreadStateRef(RuntimeAddress(STATE), 1, POINTER)]
OFFSET = -40
PROLOGUE, END = b"\xf3\x0f\x1e\xfa\x55\x48\x89\xe5", b"\x5d\xc3"  # endbr64; push %rbp; mov %rsp,%rbp ... pop %rbp; ret


def relative(opcode: bytes, before: bytes) -> bytes:
    """An instruction that names TABLE, behind these bytes of the function."""
    return opcode + struct.pack("<i", TABLE - (GETTER + len(before) + len(opcode) + 4))


LOCAL = PROLOGUE + b"\x64\x48\x8b\x04\x25" + struct.pack("<i", OFFSET) + END
INITIAL = PROLOGUE + relative(b"\x48\x8b\x05", PROLOGUE) + b"\x64\x48\x8b\x00" + END
# As gcc 16 compiles it for Debian's libpython3.15: call __tls_get_addr; pop %rbp; mov 0x28(%rax),%rax.
CALL = b"\xe8\0\0\0\0"
DYNAMIC = (
    PROLOGUE + relative(b"\x48\x8d\x3d", PROLOGUE) + CALL + b"\x5d\x48\x8b\x80" + struct.pack("<i", 0x28) + b"\xc3"
)
PREFIXED = b"\x66" + relative(b"\x48\x8d\x3d", b"\x66") + b"\x66\x66\x48" + CALL + b"\x48\x8b\x00\xc3"


def memory_with(code: bytes, table: tuple[int, int], to_free: int = 0) -> FakeMemory:
    """Module 3 has its block at POINTER - 0x100; the thread state of the other thread is not bound yet."""
    words = {TABLE: table[0], TABLE + 8: table[1], POINTER + OFFSET: STATE, POINTER + 8: 0x80000, 0x78000 + 8: 0}
    words |= {0x80000 + 3 * 16: POINTER - 0x100, 0x80000 + 3 * 16 + 8: to_free, 0x78000 + OFFSET: 0}
    padded = code.ljust(64, b"\x90")
    words |= {GETTER + at: int.from_bytes(padded[at : at + 8], "little") for at in range(0, 64, 8)}
    return FakeMemory(words)


@pytest.mark.parametrize(
    ("code", "table"),
    [
        (LOCAL, (0, 0)),
        (INITIAL, ((1 << 64) + OFFSET, 0)),
        (DYNAMIC, (3, 0x100 + OFFSET - 0x28)),
        (PREFIXED, (3, 0x100 + OFFSET)),
    ],
    ids=["local exec", "initial exec", "local dynamic", "general dynamic"],
)
def test_ways_to_a_variable(code: bytes, table: tuple[int, int]) -> None:
    assert find_thread_slot(memory_with(code, table), 0x1000, LAYOUT, GETTER, THREADS) == ThreadSlot((OFFSET,))


@pytest.mark.parametrize(
    ("getter", "code", "table", "to_free"),
    [
        (0, LOCAL, (0, 0), 0),
        (GETTER, b"\xe9\0\0\0\0", (0, 0), 0),
        (GETTER, LOCAL.replace(struct.pack("<i", OFFSET), struct.pack("<i", 8)), (0, 0), 0),
        (GETTER, DYNAMIC, (0, 0), 0),
    ],
    ids=["no function", "other code", "another variable", "not linked yet"],
)
def test_what_is_not_proven(getter: int, code: bytes, table: tuple[int, int], to_free: int) -> None:
    found = find_thread_slot(memory_with(code, table, to_free), 0x1000, LAYOUT, getter, THREADS)
    assert isinstance(found, Unresolved) and "thread-local variable" in found.reason


def test_a_key_that_is_not_made_yet() -> None:
    assert find_thread_slot(FakeMemory({}), 0x1000, STATIC_LAYOUTS[3, 12], 0, THREADS) is None


@pytest.mark.parametrize("entry_bytes", [16, 8], ids=["glibc", "musl"])
@pytest.mark.parametrize("absent", [None, "short vector", "0", "-1"])
def test_a_block_of_its_own(entry_bytes: int, absent: str | None) -> None:
    """A library that is loaded late has its variables behind the vector; a thread may have no block or entry yet."""
    place, vector, block = 0x100 + OFFSET, 0x80000, 0x60000
    count_at = {16: -16, 8: 0}[entry_bytes]
    words = {POINTER + 8: vector, vector + count_at: 3, vector + 3 * entry_bytes: block, block + place: STATE}
    if entry_bytes == 16:
        words[vector + 3 * 16 + 8] = block
    code = memory_with(PREFIXED, (3, place)).bytes
    other = 0x78000
    words |= {other + 8: 0x88000, 0x88000 + count_at: 2 if absent == "short vector" else 3}
    words |= {0x88000 + 3 * entry_bytes: {"0": 0, "-1": (1 << 64) - 1}.get(absent or "", block)}
    words[other + OFFSET] = words[POINTER + OFFSET] = 0
    memory = FakeMemory(words)
    memory.bytes = {**{at: byte for at, byte in code.items() if at < POINTER}, **memory.bytes}
    memory.pages = {at >> 12 for at in memory.bytes}
    found = find_thread_slot(memory, 0x1000, LAYOUT, GETTER, THREADS)
    assert found == ThreadSlot((8, entry_bytes * 3, place), 3, count_at)
    assert found.read(memory, POINTER) == STATE
    assert found.read(memory, other) == (0 if absent else STATE)


@pytest.mark.parametrize(
    ("key", "words", "offsets"),
    [
        (3, {POINTER + 0x310 + 3 * 16 + 8: STATE}, (0x310 + 3 * 16 + 8,)),
        (40, {POINTER + 0x518: 0x60000, 0x60000 + 8 * 16 + 8: STATE}, (0x518, 8 * 16 + 8)),
        (40, {POINTER + 0x80: 0x60000, 0x60000 + 40 * 8: STATE}, (0x80, 40 * 8)),
    ],
    ids=["first block", "second block", "musl"],
)
def test_ways_to_a_key(key: int, words: dict[int, int], offsets: tuple[int, ...]) -> None:
    layout = STATIC_LAYOUTS[3, 12]
    memory = FakeMemory({**words, 0x1000 + layout.runtime_tss: key << 32 | 1})
    assert find_thread_slot(memory, 0x1000, layout, 0, THREADS) == ThreadSlot(offsets)


def test_no_key_is_followed_too_far() -> None:
    layout = STATIC_LAYOUTS[3, 12]
    memory = FakeMemory({0x1000 + layout.runtime_tss: 1 << 63 | 1})
    assert isinstance(find_thread_slot(memory, 0x1000, layout, 0, THREADS), Unresolved)
