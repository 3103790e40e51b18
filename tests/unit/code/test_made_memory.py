"""Code that a process makes, from its mappings to its names in a recording, without the kernel's side."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from bpfprof import abi
from bpfprof.code.addresses import RawStack
from bpfprof.code.files import CodeFiles
from bpfprof.code.maps import NativeCode
from bpfprof.code.namer import Namer
from bpfprof.elf.cfi.rules import CfaKind, Rules
from bpfprof.kernel.unwind_memory import UnwindMemory
from bpfprof.model.ids import Pid
from bpfprof.model.samples import TRAMPOLINES
from bpfprof.recording.contents import Recording
from bpfprof.unwind.rows import FileRows, find
from tests.integration.recorded import INTERPRETERS, program, running
from tests.unit.code.fake_native import FakeMemory

_EXACT = 1 << abi.CONSTANTS["BP_EXACT_BIT"]


class Memory(FakeMemory):
    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[int, tuple[FileRows, Rules]] = {}

    def set_frame_pointers(self, number: int) -> None:
        pass

    def set_file(self, number: int, rows: FileRows, rules: Rules) -> None:
        self.tables[number] = rows, rules

    def take_evicted(self) -> list[int]:
        return []


@contextmanager
def following() -> Iterator[tuple[NativeCode, Memory]]:
    memory = Memory()
    unwind_memory = cast(UnwindMemory, memory)
    code = NativeCode(CodeFiles.start(unwind_memory), unwind_memory)
    try:
        yield code, memory
    finally:
        code.files.close()


@contextmanager
def removed(path: Path) -> Iterator[Path]:
    """A file of the target's that nobody else takes away."""
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def names_of(code: NativeCode, namer: Namer, recording: Recording, pid: int, *addresses: int) -> list[list[str]]:
    for address in addresses:
        namer.natives.numbers(pid, RawStack([address | _EXACT], 1, 0, 0))
    namer.write_new(recording)
    namer.finish(recording, lambda: False)
    found: list[list[str]] = [[] for _ in addresses]
    for row in np.sort(recording.names, order=("native", "since_ns")):
        found[int(row["native"]) - 1].append(recording.texts[int(row["function"])])
    return found


def test_code_that_comes_to_the_place_of_other_code() -> None:
    with following() as (code, _), running(sys.executable, program("made_again.py")) as target:
        pid, namer, recording = Pid(target.pid), Namer(code, False, 1 << 20), Recording()
        assert code.look_at(pid)
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
        address = int(next(line for line in maps if "rwx" in line).partition("-")[0], 16)
        assert names_of(code, namer, recording, pid, address) == [[]]
        target.tell("begin")
        times = json.loads(target.answer())
        assert names_of(code, namer, recording, pid, address) == [["first_made", "second_made"]]
    since_ns = sorted(recording.names["since_ns"].tolist())
    assert since_ns[0] == 0 and times["first_made"][1] <= since_ns[1] <= times["second_made"][0]


@pytest.mark.skipif("3.12" not in INTERPRETERS, reason="no CPython 3.12 under ~/.pyenv")
def test_trampolines_have_rules_and_names() -> None:
    with ExitStack() as stack:
        code, memory = stack.enter_context(following())
        target = stack.enter_context(running(INTERPRETERS["3.12"], "-X", "perf", program("part_time.py")))
        pid, namer, recording = Pid(target.pid), Namer(code, False, 1 << 20), Recording()
        names = stack.enter_context(removed(Path(f"/tmp/perf-{pid}.map")))
        assert code.look_at(pid) and not code.look_at(pid)
        code.files.background.wait(60)
        (row,) = [row for row in code.map_of[pid].rows if code.files.files[row[3]].path == TRAMPOLINES]
        table, rules = memory.tables[row[3]]
        lines = names.read_text().splitlines()
        main = next(line.split()[0] for line in lines if "py::main:/" in line)
        address = int(main, 16)
        assert row[0] <= address < row[1]
        rule = rules[find(table, address + 6 - row[2])]  # behind its call
        assert (rule["cfa_kind"], rule["cfa_offset"]) == (CfaKind.RSP, 16)
        ((name,),) = names_of(code, namer, recording, pid, address)
        assert name.startswith("py::main:/")


def test_a_process_that_is_gone_leaves_its_memory_to_nobody() -> None:
    with following() as (code, _), running(sys.executable, program("made_again.py")) as it:
        code.look_at(Pid(it.pid))
        first = {row[3] for row in code.map_of[Pid(it.pid)].rows}
        code.forget(Pid(it.pid))
        code.look_at(Pid(it.pid))
        again = {row[3] for row in code.map_of[Pid(it.pid)].rows}
        assert {code.files.files[number].path for number in first - again} == {"[memory]"}
