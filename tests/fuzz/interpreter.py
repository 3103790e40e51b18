"""The memory of an interpreter: code objects, texts, line tables, chains of threads and frames, all of them garbage."""

from __future__ import annotations

import random
import struct

from bpfprof.cpython.code_objects import CodeObject, read_code_object, read_text
from bpfprof.cpython.layouts_static import STATIC_LAYOUTS
from bpfprof.cpython.line_tables import LineTable
from bpfprof.cpython.thread_state import read_thread_states, walk_frames
from bpfprof.model.ids import Pid
from bpfprof.proc.memory import ProcessMemory
from tests.fuzz.engine import Fuzzer

_BASE, _BYTES = 0x10000, 1 << 14
_SIZES = (0, 1, 8, 200, 1 << 20, (1 << 31) - 1, (1 << 63) - 1, (1 << 64) - 1)


class _Memory(ProcessMemory):
    """One piece of it; the rest is not readable."""

    def __init__(self, data: bytes) -> None:
        self.pid, self._fd, self._data = Pid(0), -1, data

    def read_up_to(self, address: int, size: int) -> bytes:
        return self._data[address - _BASE :][:size] if address >= _BASE else b""


class InterpreterMemory(Fuzzer):
    """16 KiB, of which most words point into it."""

    name = "interpreter"

    def seeds(self) -> list[bytes]:
        rng = random.Random(11)
        words = (
            rng.choice((0, _BASE + 8 * rng.randrange(_BYTES // 8), rng.choice(_SIZES))) for _ in range(_BYTES // 8)
        )
        tables = [rng.randbytes(200), bytes([0x80, 0, 0xD8, 4] * 50), read_code_object.__code__.co_code]
        return [struct.pack(f"<{_BYTES // 8}Q", *words), *tables]

    def mutant(self, data: bytes, other: bytes, rng: random.Random) -> bytes:
        if len(data) < _BYTES:
            return super().mutant(data, other, rng)
        changed = bytearray(data)
        for _ in range(rng.choice((1, 8, 64, 512))):
            value = rng.choice((_BASE + 8 * rng.randrange(_BYTES // 8), rng.choice(_SIZES), rng.randrange(1 << 64)))
            at = 8 * rng.randrange(len(changed) // 8)
            changed[at : at + 8] = struct.pack("<Q", value)
        return bytes(changed)

    def read(self, data: bytes, rng: random.Random) -> object:
        version, layout = rng.choice(sorted(STATIC_LAYOUTS.items()))
        table = LineTable.decode(version, data, rng.choice((0, 1, 1 << 30, (1 << 31) - 1)))
        lines = [table.nearest_line(offset) for offset in (-2, -1, 0, 1, 2, 50, 1 << 20)]
        assert all(0 <= line < 1 << 31 for line in lines)
        memory = _Memory(data)
        addresses = [_BASE + 8 * rng.randrange(_BYTES // 8) for _ in range(8)]
        codes = [read_code_object(memory, layout, address) for address in addresses]
        texts = [read_text(memory, layout, address, 1024) for address in addresses]
        assert all(text is None or len(text) <= 1024 for text in texts)
        states = read_thread_states(memory, layout, addresses[0])
        walks = [walk_frames(memory, layout, address) for address in addresses[:3]]
        good = sum(isinstance(code, CodeObject) for code in codes)
        reasons = {code.reason for code in codes if not isinstance(code, CodeObject)}
        return good, frozenset(reasons), len(states).bit_length(), max(len(walk.frames).bit_length() for walk in walks)
