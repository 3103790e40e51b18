"""Stacks of real programs: registers and a copy of the stack in; the kernel side's frames against the interpreter's and
eu-stack's (elfutils), frame by frame, with the same reason to stop.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from bpfprof.elf.image import ElfError, ElfImage
from bpfprof.kernel.unwind_memory import UnwindMemory
from bpfprof.model.ids import Pid, RuntimeAddress
from bpfprof.proc.maps import Mapping, open_mapped_file, read_maps
from bpfprof.proc.tasks import list_threads
from bpfprof.unwind.cache import load_rows
from bpfprof.unwind.interpret import MappedFile, Registers, Stop
from bpfprof.unwind.rows import FileRows, RuleTable
from tests.ebpf_host.host import CONFIG, DWARF_PLACES, IP_PLACE, PROCESS, Host, Segment, mapping_array
from tests.ebpf_host.oracle import STATUS_OF, expected_walk, is_bare, reader
from tests.integration.eu_stack import eu_stacks
from tests.integration.interpreters import MACHINE_PYTHONS
from tests.oracles.test_unwind_oracle import (
    PYTHON_SOURCE,
    QSORT_SOURCE,
    SLEEPERS_SOURCE,
    blocked,
    build,
)

pytestmark = [
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("eu-stack") is None or shutil.which("cc") is None,
        reason="needs root, eu-stack (elfutils) and cc",
    ),
]
STOPS = 25  # of a program that runs
RED_ZONE_BYTES = 128  # System V ABI, x86-64 supplement 1.0, section 3.2.2
STACK_LIMIT_BYTES = 1 << 20

HERE = Path(__file__).parent


@dataclass
class Count:
    """What was compared."""

    stacks: int = 0
    frames: int = 0
    bare: int = 0
    stops: Counter[str] = field(default_factory=Counter)


@dataclass
class Code:
    """Mappings of a process on both sides."""

    memory: UnwindMemory
    rules: RuleTable = field(default_factory=RuleTable)
    known: dict[str, tuple[int, FileRows]] = field(default_factory=dict)

    def read(self, pid: Pid) -> tuple[int, list[MappedFile]]:
        """Word index of the mappings, and the files."""
        rows, files = [], []
        for mapping in read_maps(pid):
            if not mapping.is_executable or not (mapping.is_file or mapping.path == "[vdso]"):
                continue
            with image_of(pid, mapping) as image:
                bias = None if image is None else image.bias_of(mapping.start, mapping.offset, mapping.permissions)
                if image is None or bias is None:
                    continue
                number, table = self._file(mapping.path, image)
            rows.append((mapping.start, mapping.end, bias, number))
            files.append(MappedFile(RuntimeAddress(mapping.start), RuntimeAddress(mapping.end), bias, table))
        return self.memory.add_mappings(mapping_array(rows)), files

    def _file(self, path: str, image: ElfImage) -> tuple[int, FileRows]:
        if path not in self.known:
            table, rules = load_rows(image, image.status() if path != "[vdso]" else os.stat("/proc/self"))
            self.memory.set_file(len(self.known) + 1, table, rules)
            self.known[path] = len(self.known) + 1, self.rules.adopt(table, rules)
        return self.known[path]


@contextmanager
def image_of(pid: Pid, mapping: Mapping) -> Iterator[ElfImage | None]:
    try:
        if mapping.path == "[vdso]":
            with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
                content = os.pread(memory.fileno(), mapping.end - mapping.start, mapping.start)
            image = ElfImage.from_bytes(content, "vdso")
        else:
            image = ElfImage(open_mapped_file(pid, mapping))
    except (ElfError, OSError):
        yield None
        return
    with image:
        yield image


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("real")


@pytest.fixture(scope="module")
def helper(folder: Path) -> str:
    return build(folder, "registers", (HERE / "registers.c").read_text())


@pytest.fixture
def code(host: Host) -> Code:
    host.set_config(CONFIG["BP_CONFIG_NATIVE"])
    host.state.kernel_frame_count = 0
    return Code(host.unwind_memory())


def stack_copies(pid: Pid, pointers: list[int]) -> list[list[Segment]]:
    """For each stack pointer the rest of the mapping it lies in."""
    mappings, copies = read_maps(pid), []
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for pointer in pointers:
            end = next(mapping.end for mapping in mappings if mapping.start <= pointer < mapping.end)
            start = pointer - RED_ZONE_BYTES
            copies.append([(start, os.pread(memory.fileno(), min(end - start, STACK_LIMIT_BYTES), start))])
    return copies


def compare(host: Host, code: Code, helper: str, pid: int, count: Count) -> None:
    """All threads of a process, which stand still."""
    index, files = code.read(Pid(pid))
    tids = [str(tid) for tid in list_threads(Pid(pid))]
    lines = subprocess.run([helper, *tids], capture_output=True, text=True, check=True).stdout.splitlines()
    words = {int(tid): np.array(rest, np.uint64) for tid, *rest in (map(int, line.split()) for line in lines)}
    copies = stack_copies(Pid(pid), [int(word[DWARF_PLACES[7]]) for word in words.values()])
    theirs = eu_stacks(pid)
    assert set(theirs) == set(words)
    host.set_process(PROCESS["BP_PROCESS_UNWIND"], index, len(files))
    rules = code.rules.records
    for (tid, word), memory in zip(words.items(), copies):
        others = {number: int(word[place]) for number, place in enumerate(DWARF_PLACES)}
        registers = Registers(int(word[IP_PLACE]), others[7], others[6], others)
        expected = expected_walk(registers, reader(memory), files, rules)
        host.set_registers(word)
        host.set_user_memory(memory)
        found = host.stack()
        assert found.pcs == expected.pcs and found.native_status == STATUS_OF[expected.stop], tid
        count.stacks, count.frames = count.stacks + 1, count.frames + len(found.pcs)
        count.stops[expected.stop.name] += 1
        if is_bare(files, registers.ip):  # eu-stack takes rbp for a frame pointer there
            count.bare += 1
            continue
        there = [hex(pc) for pc in theirs[tid]]
        if expected.stop != Stop.END_OF_STACK:
            there = there[: len(found.pcs)]
        assert [hex(pc) for pc in found.pcs] == there, f"thread {tid}: {expected.stop.name}"


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """None of its threads runs."""
    os.kill(pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 60
        while not all(
            Path(f"/proc/{pid}/task/{tid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
            for tid in list_threads(Pid(pid))
        ):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def compare_running(host: Host, code: Code, helper: str, command: list[str]) -> Count:
    """Stops a program again and again, wherever it is."""
    chance, count = random.Random(7), Count()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            for _ in range(STOPS):
                time.sleep(chance.uniform(0.005, 0.03))
                with stopped(process.pid):
                    compare(host, code, helper, process.pid, count)
        finally:
            process.kill()
    return count


@pytest.mark.parametrize("options", [(), ("-static",), ("-mstackrealign",)], ids=["plain", "static", "realigned"])
def test_sleeping_c_threads(host: Host, code: Code, options: tuple[str, ...], helper: str, folder: Path) -> None:
    count = Count()
    with blocked(build(folder, "sleepers" + "".join(options), SLEEPERS_SOURCE, *options)) as pid:
        compare(host, code, helper, pid, count)
    print(count)
    assert count.stacks == 61 and count.stops == {"END_OF_STACK": 61}


def test_more_frames_than_are_taken(host: Host, code: Code, helper: str, folder: Path) -> None:
    """Depths up to 4,000."""
    count = Count()
    source = SLEEPERS_SOURCE.replace("(void *)i", "(void *)(i * 210)").replace("64 + depth", "64")
    with blocked(build(folder, "deep", source)) as pid:
        compare(host, code, helper, pid, count)
    print(count)
    assert count.stops["TOO_DEEP"] >= 15 and count.stops["END_OF_STACK"] >= 30 and count.stacks == 61


def test_callbacks_of_qsort_below_a_signal(host: Host, code: Code, helper: str, folder: Path) -> None:
    count = Count()
    with blocked(build(folder, "sorter", QSORT_SOURCE)) as pid:
        compare(host, code, helper, pid, count)
    print(count)
    assert count.stacks == 21 and count.frames > 21 * 12


@pytest.mark.parametrize("name", MACHINE_PYTHONS)
def test_python_threads(host: Host, code: Code, name: str, helper: str) -> None:
    count = Count()
    with blocked(MACHINE_PYTHONS[name], "-c", PYTHON_SOURCE) as pid:
        compare(host, code, helper, pid, count)
    print(count)
    assert count.stacks == 25 and count.frames > 25 * 8


@pytest.mark.second_tier
@pytest.mark.parametrize(
    "options", [(), ("-static",), ("-fno-omit-frame-pointer", "-Wl,-z,lazy")], ids=["plain", "static", "lazy"]
)
def test_running_c_threads(host: Host, code: Code, options: tuple[str, ...], helper: str, folder: Path) -> None:
    count = compare_running(
        host, code, helper, [build(folder, f"busy{len(options)}", (HERE / "busy.c").read_text(), *options)]
    )
    print(count)
    assert count.stacks == 4 * STOPS and count.stops["END_OF_STACK"] > 0.9 * count.stacks


@pytest.mark.second_tier
@pytest.mark.parametrize("name", MACHINE_PYTHONS)
def test_running_python_threads(host: Host, code: Code, name: str, helper: str) -> None:
    count = compare_running(host, code, helper, [MACHINE_PYTHONS[name], str(HERE / "busy.py")])
    print(count)
    assert count.stacks == 4 * STOPS and count.stops["END_OF_STACK"] > 0.9 * count.stacks
