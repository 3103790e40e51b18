"""OpenBLAS's assembly, executed instruction by instruction: its rules against the stack as it was when it was called.

A thread that is stepped with ptrace tells at each function's first instruction where its return address and the
caller's rbp are; until it returns, the rules of every instruction that runs have to find the same. Only tests do that.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpfprof.elf.asm.traced_rules import traced_rules
from bpfprof.elf.cfi import tables as call_frames
from bpfprof.elf.cfi.rules import CallFrames
from bpfprof.elf.image import ElfImage
from bpfprof.elf.symbols.reader import read_symbols
from bpfprof.model.ids import Pid
from bpfprof.proc.maps import read_maps
from bpfprof.unwind.interpret import MappedFile, Registers, Stop, walk, walk_by
from bpfprof.unwind.rows import RuleTable, find
from tests.oracles.test_unwind_oracle import mapped_files

LIBRARIES = sorted(Path(np.__file__).parents[1].glob("numpy.libs/lib*openblas*"))
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("numpy") is None or not LIBRARIES, reason="needs numpy with OpenBLAS"),
]
# Sizes that leave remainders of every kind to the kernels; the random numbers are made before the reading of stdin.
PROGRAM = """
import sys
import numpy as np
random = np.random.default_rng(1).standard_normal
real = [random((n, n)) for n in (26, 3, 45, 9)]
every = [(a + 1j * a.T).astype(kind) if kind in "FD" else a.astype(kind) for a in real for kind in "fdFD"]
print("ready", flush=True)
sys.stdin.readline()
for a in every:
    a @ a, a @ a.T, a.T @ a[::-1], a @ a[0], a[0] @ a, np.vdot(a[0], a[1]), np.dot(a[0], a[-1])
    np.linalg.solve(a, a[0]), np.linalg.solve(a, a), np.linalg.inv(a), np.linalg.svd(a), np.linalg.eig(a)
    np.linalg.cholesky(a @ a.conj().T + 99 * np.eye(len(a))), np.linalg.qr(a), np.linalg.eigh(a + a.conj().T)
    np.linalg.lstsq(a, a[0], None), np.linalg.det(a)
print("done", flush=True)
"""
CALLS_OF_EACH = 2
STEPS_OF_A_CALL = 3000
STEPS_BETWEEN_WALKS = 997
CORES = {"this machine's": "", "SSE3": "PRESCOTT", "AVX": "SANDYBRIDGE", "AVX2": "HASWELL"}
BREAKPOINT = b"\xcc"
CONTINUE, STEP, GET_REGISTERS, SET_REGISTERS, SEIZE, INTERRUPT = 7, 9, 12, 13, 0x4206, 0x4207  # <sys/ptrace.h>
WORDS = 27  # of struct user_regs_struct
IP_WORD, SP_WORD = 16, 19
DWARF_WORDS = (10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0)


class Traced:
    """A thread that stands still between calls."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._call = ctypes.CDLL(None, use_errno=True).ptrace
        self._call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self._call.restype = ctypes.c_long
        self._words = (ctypes.c_uint64 * WORDS)()
        self._memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
        self._request(SEIZE)
        self._request(INTERRUPT)
        os.waitpid(pid, 0x40000000)

    def close(self) -> None:
        os.close(self._memory)

    def _request(self, request: int, data: object = None) -> None:
        assert self._call(request, self.pid, None, data) == 0, os.strerror(ctypes.get_errno())

    def resume(self, request: int) -> bool:
        """Until it stops again; False when it has ended instead."""
        delivered = 0
        while True:
            self._request(request, delivered or None)
            _, status = os.waitpid(self.pid, 0x40000000)
            if not os.WIFSTOPPED(status):
                assert status == 0
                return False
            delivered = os.WSTOPSIG(status)
            if delivered == signal.SIGTRAP:
                return True

    def registers(self) -> list[int]:
        self._request(GET_REGISTERS, ctypes.byref(self._words))
        return self._words[:]

    def set_ip(self, address: int) -> None:
        self._words[IP_WORD] = address
        self._request(SET_REGISTERS, ctypes.byref(self._words))

    def write(self, address: int, content: bytes) -> None:
        os.pwrite(self._memory, content, address)

    def read(self, address: int, size: int = 8) -> bytes:
        return os.pread(self._memory, size, address)

    def word(self, address: int) -> int | None:
        try:
            return int.from_bytes(self.read(address), "little")
        except (OSError, OverflowError):
            return None


@contextmanager
def traced(core: str) -> Iterator[Traced]:
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OPENBLAS_CORETYPE": core}
    command = [sys.executable, "-c", PROGRAM]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=env) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            thread = Traced(process.pid)
            process.stdin.write("\n")
            process.stdin.flush()
            yield thread
            thread.close()
        finally:
            process.kill()


@dataclass
class Checker:
    """Compares what the rules find with what was there when a function was called."""

    thread: Traced
    files: list[MappedFile]
    rules: RuleTable
    library: MappedFile
    steps: int = 0
    walks: int = 0
    kinds: set[int] = field(default_factory=set)

    def follow(self, end: int) -> None:
        """One call, from its first instruction to its return, or STEPS_OF_A_CALL of them."""
        words = self.thread.registers()
        begin, entry_sp, entry_bp = words[IP_WORD], words[SP_WORD], words[DWARF_WORDS[6]]
        return_address = self.thread.word(entry_sp)
        for _ in range(STEPS_OF_A_CALL):
            if words[SP_WORD] > entry_sp:
                return
            if begin <= words[IP_WORD] < end:
                self._check(words, (return_address, entry_sp + 8, entry_bp))
            if not self.thread.resume(STEP):
                return
            words = self.thread.registers()

    def _check(self, words: list[int], truth: tuple[int | None, int, int]) -> None:
        others = {number: words[word] for number, word in enumerate(DWARF_WORDS)}
        registers = Registers(words[IP_WORD], words[SP_WORD], words[DWARF_WORDS[6]], others)
        rule = self.rules.records[find(self.library.table, registers.ip - self.library.bias)]
        found: list[int | None] = []

        def read_word(address: int) -> int | None:
            found.append(address)
            return self.thread.word(address)

        result = walk_by(registers, read_word, lambda pc: rule, max_frames=2)
        where = hex(registers.ip - self.library.bias)
        assert result.pcs[1:2] == (truth[0],), f"{where}: {result}"
        assert found[0] == truth[1] - 8, f"{where}: the CFA is {truth[1] - 8 - (found[0] or 0)} bytes off"
        if rule["fp_kind"] == 1:
            assert self.thread.word(truth[1] + int(rule["fp_offset"])) == truth[2], f"{where}: rbp is saved elsewhere"
        else:
            assert rule["fp_kind"] == 0 and registers.bp == truth[2], f"{where}: rbp was changed"
        self.steps += 1
        self.kinds.add(int(rule["cfa_kind"]))
        if self.steps % STEPS_BETWEEN_WALKS == 0:
            whole = walk(registers, self.thread.word, self.files, self.rules.records)
            assert whole.stop == Stop.END_OF_STACK and len(whole.pcs) > 5, f"{where}: {whole}"
            self.walks += 1


@pytest.fixture(scope="module")
def functions() -> dict[int, tuple[int, str]]:
    """ELF address -> (end, name) of the functions that have rules though they have no FDE."""
    found: list[CallFrames] = []

    def keep(*arguments: Any) -> CallFrames:
        found.append(traced_rules(*arguments))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch, ElfImage.open(str(LIBRARIES[0])) as image:
        patch.setattr(call_frames, "traced_rules", keep)
        call_frames.read_call_frames(image)
        symbols = read_symbols(image)
        names = symbols.names(symbols.find(found[0].function_starts))
    if not names:
        pytest.skip("this OpenBLAS was built without assembly")
    return dict(zip(found[0].function_starts.tolist(), zip(found[0].function_ends.tolist(), names)))


@pytest.mark.parametrize(
    "core", [core if not CORES[core] else pytest.param(core, marks=pytest.mark.second_tier) for core in CORES]
)
def test_every_instruction_of_its_kernels(core: str, functions: dict[int, tuple[int, str]]) -> None:
    if core.startswith("AVX") and f" {core.lower()} " not in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"the processor has no {core}")
    calls: Counter[str] = Counter()
    with traced(CORES[core]) as thread:
        table = RuleTable()
        files = mapped_files(thread.pid, table)
        mappings = [it for it in read_maps(Pid(thread.pid)) if it.path == str(LIBRARIES[0]) and it.is_executable]
        library = next(it for it in files if it.start == mappings[0].start)
        checker = Checker(thread, files, table, library)
        first_bytes = {start: thread.read(start + library.bias, 1) for start in functions}
        for start in functions:
            thread.write(start + library.bias, BREAKPOINT)
        while thread.resume(CONTINUE):
            address = thread.registers()[IP_WORD] - 1
            end, name = functions[address - library.bias]
            thread.write(address, first_bytes[address - library.bias])
            thread.set_ip(address)
            calls[name] += 1
            checker.follow(end + library.bias)
            if calls[name] < CALLS_OF_EACH:
                thread.write(address, BREAKPOINT)
    print(f"{core}: {len(calls)} functions, {sum(calls.values())} calls", *sorted(calls))
    print(f"{checker.steps} instructions, {checker.walks} walks")
    assert len(calls) > 10 and checker.steps > 1000 and checker.walks > 0
