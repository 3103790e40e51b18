"""The BPF programs, compiled by the host's compiler and run on memory images: registers and memory in, records out."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bpfprof import abi
from bpfprof import array_types as npt
from bpfprof.abi import ebpf_directory
from bpfprof.abi.dtypes import EVENT_DTYPE, MAPPING_DTYPE, PYTHON_FRAME_DTYPE, STACK_DTYPE, STRUCTS, THREAD_DTYPE
from bpfprof.kernel.kernel_facts import kernel_numbers
from bpfprof.kernel.sources import MAP_LINE, MAPS_BY_TYPE, compiler_flags, map_names, maps_header
from bpfprof.kernel.tables import OwnTables
from bpfprof.kernel.unwind_memory import UnwindMemory
from bpfprof.unwind.interpret import Registers

CONSTANTS, STATUS = abi.CONSTANTS, abi.ENUMS["bp_status"]
KEY_FACTOR = 0xFF51AFD7ED558CCD  # any odd number
PROCESS, CONFIG = abi.ENUMS["bp_process_flags"], abi.ENUMS["bp_config_flags"]
SANITIZED = "BPFPROF_HOST_SANITIZED"  # in the environment: compile with sanitizers; libasan must be loaded already
# -Wunused-value would have every READ_USER() looked at. Words of the target's stack are read where they lie.
_WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused-value")
_SANITIZERS = (
    "-fsanitize=address,undefined",
    "-fsanitize=bounds-strict",
    "-fno-sanitize=alignment",
    "-fno-sanitize-recover=all",
)
_HASH_ENTRIES = 16  # hash maps are searched from end to end here
CPUS = 2
TGID, TID = 1234, 1235
TASK, PT_REGS, THREAD_POINTER = 0xFFFF_8880_0000_1000, 0xFFFF_C900_0000_3F58, 0x7F00_0000_0740
# Places in struct pt_regs of the DWARF registers 0 to 15.
DWARF_PLACES = (10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0)
IP_PLACE = 16
EXACT = 1 << CONSTANTS["BP_EXACT_BIT"]
PREEMPT_COUNT = 64  # bytes above struct rq
_SEEN_AGAIN_NS = CONSTANTS["BP_RESEND_NS"] + 1

_SCALARS = {"__u32": "<u4", "__u64": "<u8"}

Segment = tuple[int, bytes]


class _Segment(ctypes.Structure):
    _fields_ = [("start", ctypes.c_uint64), ("size", ctypes.c_uint64), ("bytes", ctypes.c_void_p)]


class _Map(ctypes.Structure):
    """struct host_map"""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("key_bytes", "value_bytes", "entries")),
        *((name, ctypes.c_void_p) for name in ("keys", "is_used", "values", "inner")),
    ]


class _Memory(ctypes.Structure):
    _fields_ = [("segments", ctypes.POINTER(_Segment)), ("count", ctypes.c_uint64), ("reads", ctypes.c_uint64)]


class _Ring(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("used", "is_full", "waiting", "since", "wakeup")),
        ("bytes", ctypes.c_ubyte * (1 << 20)),
    ]


class _State(ctypes.Structure):
    """struct host_state"""

    _fields_ = [
        ("user", _Memory),
        ("kernel", _Memory),
        *((name, ctypes.c_uint64) for name in ("now_ns", "cpu", "pid_tgid", "task", "registers", "kernel_frame_count")),
        ("kernel_frames", ctypes.c_uint64 * 128),
        ("random", ctypes.c_uint64),
        ("events", _Ring),
        ("stacks", _Ring),
        ("copies", _Ring),
    ]


@dataclass(frozen=True)
class Stack:
    """A record of the stack ring. `pcs` and `exact` are of its native frames."""

    header: np.void
    python: npt.NDArray[np.void]
    native: tuple[int, ...]
    kernel: tuple[int, ...]

    @property
    def pcs(self) -> tuple[int, ...]:
        return tuple(word & ~EXACT for word in self.native)

    @property
    def exact(self) -> tuple[bool, ...]:
        return tuple(bool(word & EXACT) for word in self.native)

    @property
    def native_status(self) -> int:
        return int(self.header["native_status"])


def compiler() -> str:
    """The host's C compiler. Skips the test when there is none."""
    found = shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler (cc)")
    return found


def compile_programs(folder: Path) -> Path:
    """The library of all BPF programs."""
    here, library = Path(__file__).parent, folder / "programs.so"
    flags = [*_WARNINGS, *(_SANITIZERS if SANITIZED in os.environ else ())]
    types = SimpleNamespace(offset=_offset, percpu_distance=_percpu_distance, has_name=lambda _name: True)
    numbers = kernel_numbers(types, has_run_delay=True)  # type: ignore[arg-type]
    flags += [*compiler_flags([], takes_pointer=True), *(f"-D{name}={value}" for name, value in numbers.items())]
    includes = ["-I", str(ebpf_directory()), "-idirafter", str(ebpf_directory() / "include")]
    command = [compiler(), "-std=gnu11", "-O1", "-g", "-shared", "-fPIC", *flags, *includes, str(here / "host.c")]
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    subprocess.run([*command, "-o", str(library)], check=True, env=environment)
    return library


_OFFSETS: dict[tuple[str, str], int] = {}


def _offset(structure: str, member: str) -> int:
    """Of a member in the kernel's structures as they are here: each has 8 bytes of its own."""
    return _OFFSETS.setdefault((structure, member), 8 * len(_OFFSETS))


def _percpu_distance(first: str, second: str) -> int:
    """From struct rq of a CPU to its preempt_count()."""
    assert (first, second) == ("runqueues", "__preempt_count")
    return PREEMPT_COUNT


def member_offset(structure: str, member: str) -> int:
    """In bytes, of a member that some program reads; `member` can be of a structure in the structure."""
    return _OFFSETS[structure, member]


def pt_regs(registers: Registers) -> npt.NDArray[np.uint64]:
    """struct pt_regs with these values."""
    words = np.zeros(21, np.uint64)
    for number, value in {**registers.others, 6: registers.bp, 7: registers.sp}.items():
        words[DWARF_PLACES[number]] = value
    words[IP_PLACE] = registers.ip
    return words


class Host:
    """One loaded library: its maps, its memory and its clock."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self.state = _State.in_dll(self.library, "host")
        self.library.host_share_map.argtypes = [ctypes.c_uint32, ctypes.c_void_p]
        self.library.host_put_inner.argtypes = [ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p]
        self.library.host_value.argtypes = [ctypes.c_uint32, ctypes.c_void_p]
        self.library.host_value.restype = ctypes.c_void_p
        self.library.host_clear_map.argtypes = [ctypes.c_uint32]
        self.library.host_find_rule.argtypes = [ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p]
        self._maps = (_Map * 64).in_dll(self.library, "host_maps")
        self._numbers = {name: number for number, name in enumerate(map_names(), 1)}
        self._values: dict[str, npt.NDArray[Any]] = {}
        self._make_maps()
        self._kept: dict[str, object] = {}
        self._generations: dict[int, int] = {}  # of mappings, by their index
        self._old_generations = 0
        self.state.now_ns, self.state.cpu, self.state.pid_tgid = 10**12, 1, TGID << 32 | TID
        self.state.task, self.state.registers = TASK, PT_REGS
        self.forget_threads()

    def _make_maps(self) -> None:
        for name, kind, key, value, entries in MAP_LINE.findall(maps_header()):
            if kind == "RINGBUF":
                continue
            sizes = [np.dtype(item).itemsize for item in (_dtype(key), _dtype(value))]
            count = int(entries) if entries.isdigit() else CONSTANTS[entries]
            count = _HASH_ENTRIES if kind == "HASH" else count * CPUS if kind == "CPU_ARRAY" else count
            number, is_outer = self._numbers[name], kind == "CHUNK_ARRAY"
            assert not self.library.host_make_map(number, *sizes, count, kind == "HASH", is_outer)
            if not is_outer:
                content = (ctypes.c_char * (sizes[1] * count)).from_address(self._maps[number].values)
                self._values[name] = np.frombuffer(content, _dtype(value))

    def _use_maps(self, program_type: str) -> None:
        """MAP(walks) and its like are from now on those of programs of this type: "perf" or "sched"."""
        for name in MAPS_BY_TYPE:
            if f"{program_type}_{name}" in self._values:
                self._maps[self._numbers[name]] = self._maps[self._numbers[f"{program_type}_{name}"]]

    def values(self, name: str) -> npt.NDArray[Any]:
        """The values of an array map as they are in memory."""
        return self._values[name]

    def counter(self, status: str) -> int:
        """How often it was counted."""
        return int(self.values("counters")[STATUS[status]])

    def _update(self, name: str, key: int, value: bytes) -> None:
        assert not self.library.host_update(self._numbers[name], key.to_bytes(4, "little"), value)

    def thread(self, tid: int) -> np.void | None:
        """A thread's entry as it is in memory; None when it has none."""
        address = self.library.host_value(self._numbers["threads"], tid.to_bytes(4, "little"))
        if address is None:
            return None
        content = (ctypes.c_char * THREAD_DTYPE.itemsize).from_address(address)
        entry: np.void = np.frombuffer(content, THREAD_DTYPE)[0]
        return entry

    def watch(self, tid: int, **fields: int) -> None:
        """Makes a thread's entry anew; what is not in `fields` is 0."""
        self._update("threads", tid, abi.pack("bp_thread", **fields))

    def forget_threads(self) -> None:
        """There are no threads any more but TID, of which nothing is known, and nobody has started any."""
        for name in ("threads", "births"):
            self.library.host_clear_map(self._numbers[name])
        self.watch(TID)

    def process(self, tgid: int) -> np.void | None:
        """A process's entry as it is in memory; None when it has none."""
        address = self.library.host_value(self._numbers["processes"], tgid.to_bytes(4, "little"))
        if address is None:
            return None
        content = (ctypes.c_char * STRUCTS["bp_process"].itemsize).from_address(address)
        entry: np.void = np.frombuffer(content, STRUCTS["bp_process"])[0]
        return entry

    def unwind_memory(self) -> UnwindMemory:
        """The product's own writer of unwind tables, on new memory that the programs read."""
        self._old_generations += len(self._generations)
        self._generations.clear()
        tables = OwnTables.create()
        for name, struct, count in (("rules", "bp_rule", "BP_MAX_RULES"), ("files", "bp_file", "BP_MAX_FILES")):
            self._kept[name] = mapped = mmap.mmap(tables.fds[name], 0)
            self._values[name] = np.frombuffer(mapped, STRUCTS[struct], CONSTANTS[count])
            self.library.host_share_map(self._numbers[name], _address(mapped))
        for number in range(CONSTANTS["BP_MAX_CHUNKS"]):
            self.library.host_put_inner(self._numbers["chunks"], number, None)

        def add_chunk(number: int, fd: int) -> None:
            self._kept[f"chunk {number}"] = mapped = mmap.mmap(fd, abi.size("bp_chunk"))
            self.library.host_put_inner(self._numbers["chunks"], number, _address(mapped))

        shared = SimpleNamespace(fds=tables.fds, add_chunk=add_chunk, new_chunk=tables.new_chunk)
        memory = UnwindMemory(shared)  # type: ignore[arg-type]
        tables.close()
        return memory

    def set_config(self, flags: int, **more: int) -> None:
        record = abi.pack("bp_config", flags=flags, **{"key_factor": KEY_FACTOR, **more})
        self.library.host_update(self._numbers["config"], bytes(4), record)

    def set_process(self, flags: int, index: int = 0, count: int = 0, **more: int | bytes) -> None:
        """The process whose stacks are taken, TGID. `index` and `count` are of its mappings."""
        generation = self._generations.setdefault(index, 1 + len(self._generations) + self._old_generations)
        flags |= PROCESS["BP_PROCESS_KNOWN"]
        record = abi.pack("bp_process", flags=flags, mappings=index, mapping_count=count, generation=generation, **more)
        self._update("processes", TGID, record)

    def set_user_memory(self, segments: Sequence[Segment]) -> None:
        """What can be read: segments must not touch, for a read across two of them fails."""
        self._user = self._set_memory(self.state.user, segments)

    def hide(self, start: int) -> None:
        """Takes away the segment of user memory that starts there."""
        _, segments = self._user
        self.set_user_memory([segment for segment in segments if segment[0] != start])

    def set_registers(self, words: npt.NDArray[np.uint64]) -> None:
        """struct pt_regs; the task's thread pointer is THREAD_POINTER."""
        base = _OFFSETS["task_struct", "thread"] + _OFFSETS["thread_struct", "fsbase"]
        task = np.zeros(base // 8 + 1, np.uint64)
        task[base // 8] = THREAD_POINTER
        task[_OFFSETS["task_struct", "mm"] // 8] = TASK  # anything: it has not given its memory back
        self.set_kernel_memory([(PT_REGS, words), (TASK, task)])

    def set_kernel_memory(self, arrays: Sequence[tuple[int, npt.NDArray[Any]]]) -> None:
        """What programs read of the kernel: arrays and their addresses. Later changes to the arrays are seen."""
        memory = self.state.kernel
        memory.segments = (_Segment * len(arrays))(*((start, data.nbytes, data.ctypes.data) for start, data in arrays))
        memory.count = len(arrays)
        self._kept["kernel"] = arrays

    def _set_memory(self, memory: _Memory, segments: Sequence[Segment]) -> tuple[object, Sequence[Segment]]:
        addresses = [ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value for _, data in segments]
        array = (_Segment * max(1, len(segments)))(
            *((start, len(data), at) for (start, data), at in zip(segments, addresses))
        )
        memory.segments, memory.count, memory.reads = array, len(segments), 0
        return array, segments

    def sample(self, is_later: bool = True) -> tuple[np.void, Stack | None]:
        """One tick of the clock: the event that was sent, and the stack if one was.

        `is_later`: every stack sent before may be sent again.
        """
        self.state.now_ns += _SEEN_AGAIN_NS if is_later else 1000
        stacks = self.run("on_cpu", "perf", None)
        assert len(stacks) <= 1
        event = self.events[-1] if len(self.events) else np.zeros(1, EVENT_DTYPE)[0]
        return event, stacks[0] if stacks else None

    def run(self, program: str, program_type: str, context: object) -> list[Stack]:
        """Runs a program; its stacks. Its events are in `events`."""
        self._use_maps(program_type)
        self.state.events.used = self.state.stacks.used = self.state.copies.used = 0
        self.library[program](context)
        self.events = np.frombuffer(b"".join(_records(self.state.events)), EVENT_DTYPE)
        return [_parse(record) for record in _records(self.state.stacks)]

    def copies(self) -> list[bytes]:
        """The copies of code objects that the last program sent."""
        return _records(self.state.copies)

    def stack(self) -> Stack:
        """The stack of one tick, which must have one."""
        event, stack = self.sample()
        assert stack is not None and event["stack"] == stack.header["key"] and event["status"] == 0
        return stack

    def find_rule(self, index: int, count: int, pc: int) -> tuple[int, int]:
        """(enum bp_status, rule number) of a search in the tables."""
        rule = ctypes.c_uint64()
        return self.library.host_find_rule(index, count, pc, ctypes.byref(rule)), rule.value


def _records(ring: _Ring) -> list[bytes]:
    data, at, found = bytes(memoryview(ring.bytes)[: ring.used]), 0, []
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        found.append(data[at + 8 : at + 8 + size])
        at += 8 + size
    return found


def _parse(record: bytes) -> Stack:
    header = np.frombuffer(record, STACK_DTYPE, 1)[0]
    python = np.frombuffer(record, PYTHON_FRAME_DTYPE, header["python_count"], STACK_DTYPE.itemsize)
    words = np.frombuffer(record, np.uint64, -1, STACK_DTYPE.itemsize + python.nbytes)
    assert len(words) == int(header["native_count"]) + int(header["kernel_count"])
    count = int(header["native_count"])
    return Stack(header, python, tuple(words[:count].tolist()), tuple(words[count:].tolist()))


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(_SCALARS[name]) if name in _SCALARS else STRUCTS[name]


def _address(mapped: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped))


def mapping_array(mappings: Sequence[tuple[int, int, int, int]]) -> npt.NDArray[np.void]:
    """Mappings (start, end, bias, file number), sorted, as UnwindMemory.add_mappings takes them."""
    array = np.zeros(len(mappings), MAPPING_DTYPE)
    for position, (start, end, bias, number) in enumerate(sorted(mappings)):
        array[position] = (start, end, bias & (1 << 64) - 1, number, 0)
    return array
