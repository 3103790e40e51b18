"""One process of a recording: what is known of it and its code objects, for the kernel side and the recording's table.

    fork, or there at the start        exec seen
      |      |           |           (any state) ----> CHANGING
      |      |           v                                |
      |      |         UNSEEN                             | the stacks from before it are taken
      |      |           | the kernel side met it,        |
      |      |           | or it runs Python              |
      |      |           v                                |
      |      +------> STARTING <--------------------------+
      |                  |  ^
      | interpreter found|  | code was mapped, and no
      | or not after 5 s |  | interpreter is known
      v                  v  |
    KERNEL_THREAD       KNOWN <------------+
                         |                 | after 0.25 s
                         +-------------> ASKED
                the kernel side met code that is in no known
                mapping, and nothing new was found

A child begins in the state of its parent. A process is UNSEEN only where the whole machine is watched.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import field
from enum import Enum, auto
from typing import Protocol

from bpfprof import abi
from bpfprof.cpython.code_objects import CodeObject, Identity, Unresolved, identity_start, read_code_object
from bpfprof.cpython.detect import Interpreter
from bpfprof.cpython.frame_values import VALUES_LAYOUTS
from bpfprof.cpython.layout import JIT_WITHOUT_FRAMES, NONE, PARKING_LOT, Layout
from bpfprof.dataclass import dataclass
from bpfprof.errors import TargetError
from bpfprof.model.ids import Pid
from bpfprof.proc import tasks
from bpfprof.proc.cgroups import cgroup_of
from bpfprof.proc.memory import CopiedMemory, ProcessMemory
from bpfprof.proc.text import without_controls
from bpfprof.recording.tables import RecordedProcess

_MASK64 = (1 << 64) - 1
_REST = 50  # times what a look took: of code that a process makes, of which some make 100 pieces a second
_VAIN_REST, _VAIN_AHEAD_S = 20, 0.25  # times what code cost that was not there; so much of it may come at once
_ELDERS = 8  # of a process that was forked, whose memory is read in its place: one that is forked again has no end
_GONE = Unresolved("process gone before its code was read")
_SUSPECTED_NS = 1_000_000_000  # so long a process counts as one that replaces code, and mostly one that does is found


class CodeReader(Protocol):
    """Reads the code object at an address, from a copy where there is one."""

    def __call__(self, address: int, copy: CopiedMemory | None = None) -> CodeObject | Unresolved: ...


def _gone(address: int, copy: CopiedMemory | None = None) -> Unresolved:
    """A CodeReader."""
    return _GONE


def _mix(hash_value: int, value: int) -> int:
    """mix() of ebpf/python_frames.bpf.h."""
    hash_value = ((hash_value ^ value) * 0xFF51AFD7ED558CCD) & _MASK64
    return hash_value ^ (hash_value >> 32)


def identity_hash(identity: Identity) -> int:
    """The same as the kernel side makes of it: code_identity() in ebpf/python_frames.bpf.h."""
    value = 1
    for first, second in zip(identity[::2], identity[1::2]):
        value = _mix(value, (first + second * 0x9E3779B97F4A7C15) & _MASK64)
    return value | 1


@dataclass
class ProcessCodes:
    """The known code objects of one process: address -> (identity, index in the recording, address of the code).

    elders: readers of those it was forked from, the last one first.
    """

    process: int
    reader: CodeReader
    elders: tuple[CodeReader, ...] = ()
    known: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    frames: dict[bytes, bytes] = field(default_factory=dict)  # Python frames as they came -> as they are recorded
    unread: dict[bytes, bytes] = field(default_factory=dict)  # the same of frames that could not be read in this turn
    unread_in: int = 0  # the turn, or while it rests the last one
    paid_until_s: float = 0.0  # for reading in vain, time.monotonic()

    @property
    def rests(self) -> bool:
        """Whether so much was read in vain that nothing is read for now."""
        return self.paid_until_s > time.monotonic()

    def read_in_vain(self, cost_s: float) -> None:
        """There is no code object, or another one: a stack may claim a thousand of them, each time others."""
        now_s = time.monotonic()
        self.paid_until_s = max(self.paid_until_s, now_s - _VAIN_REST * _VAIN_AHEAD_S) + _VAIN_REST * cost_s

    def forked(self, process: int, reader: CodeReader) -> ProcessCodes:
        """For a child: what the parent had is still at the same addresses, and may be read there when it is gone.

        The parent may have replaced one since: what is read is only used if it is the one the kernel side saw.
        """
        elders = (self.reader, *self.elders)[:_ELDERS]
        return ProcessCodes(process, reader, elders, dict(self.known), paid_until_s=self.paid_until_s)

    def read(self, address: int, copy: CopiedMemory | None = None) -> CodeObject | Unresolved:
        """The code object at an address, from a copy, or where the process or one it was forked from has it."""
        found = self.reader(address, copy)
        for elder in self.elders if copy is None else ():
            found = elder(address) if isinstance(found, Unresolved) else found
        return found

    def forget(self) -> None:
        """The process is gone, so nothing is asked of it; no circle of references keeps it until it is collected."""
        for known in (self.known, self.frames, self.unread):
            known.clear()
        self.reader, self.elders = _gone, ()


class State(Enum):
    """How much is known of a process; see the drawing above."""

    UNSEEN = auto()  # not looked at until the kernel side asks for it
    STARTING = auto()  # its interpreter may still be starting: looked for at each turn
    KNOWN = auto()
    ASKED = auto()  # KNOWN, but the kernel side is not to ask again for a while
    CHANGING = auto()  # it runs another program, and what is known is still of the one before
    KERNEL_THREAD = auto()  # it has no code of its own


@dataclass
class Process:
    """One process, by its index in the recording."""

    index: int
    pid: Pid
    since_ns: int = 0  # when it was born or ran another program, CLOCK_MONOTONIC; 0: before it was watched
    name: str = ""
    command_line: list[str] = field(default_factory=list)
    state: State = State.KNOWN
    until_s: float = 0.0  # when STARTING or ASKED ends, time.monotonic()
    stack_start: int = 0  # of tasks.stack_start(), when it was looked at first
    look_s: float = 0.0  # how long the last look at its code took
    rests_until_s: float = 0.0  # from such looks, time.monotonic()
    written: RecordedProcess | None = None  # its last row in the recording
    suspected_until_ns: int = 0  # of replacing code, CLOCK_MONOTONIC; 0: its Python is not recorded yet
    memory: ProcessMemory | None = None
    interpreter: Interpreter | None = None
    note: str = ""  # why it has no Python frames
    is_unread: bool = False  # it runs Python, but not by an interpreter that is read; the note says by which
    namespace_pid: int = 0  # its pid in its own pid namespace, where that is not ours
    cgroup: str = ""
    rank: str | None = None  # RecordedProcess.rank; None: its environment was not read yet
    given_name: str = ""  # what its program calls it
    parent_pid: int = 0  # of who made it, or whose child it was when it was seen first; 0: not known
    codes: ProcessCodes = field(init=False)

    def __post_init__(self) -> None:
        self.codes = ProcessCodes(self.index, self.read_code)

    def open_memory(self) -> None:
        """Its memory as it is now: that of before an exec stays with the program before."""
        self.close()
        try:
            self.memory = ProcessMemory(self.pid)
        except TargetError as error:
            self.note = str(error)

    def take_name(self) -> None:
        """What it is called now, by whom and where; what it had before where it is gone."""
        self.name = tasks.process_name(self.pid) or self.name
        self.command_line = tasks.process_command_line(self.pid) or self.command_line
        if self.state is not State.KERNEL_THREAD:
            self.namespace_pid = tasks.namespace_pid(self.pid) or self.namespace_pid
            self.cgroup = cgroup_of(self.pid) or self.cgroup
            if self.rank is None:
                self.rank = tasks.process_rank(self.pid)
            self.parent_pid = self.parent_pid or int(tasks.parent(self.pid) or 0)

    @contextlib.contextmanager
    def being_looked_at(self) -> Iterator[None]:
        """Within the block its code is looked at; then it rests for a time."""
        began_s = time.monotonic()
        yield
        ended_s = time.monotonic()
        self.look_s = ended_s - began_s
        self.rests_until_s = ended_s + _REST * self.look_s

    def is_rested(self, now_s: float) -> bool:
        return self.rests_until_s < now_s

    def close(self) -> None:
        """Closes its memory."""
        if self.memory is not None:
            self.memory.close()
        self.memory = None

    def read_code(self, address: int, copy: CopiedMemory | None = None) -> CodeObject | Unresolved:
        """The code object at an address, in the process's memory or in a copy of it."""
        memory, found = copy or self.memory, self.interpreter
        if memory is None or found is None:
            return _GONE
        return read_code_object(memory, found.layout, address, found.code_type_address)

    def recorded(self) -> RecordedProcess:
        """Its row in the recording's table."""
        row = RecordedProcess(self.pid, self.name, self.command_line, note=self.note)
        row.is_kernel_thread = self.state is State.KERNEL_THREAD
        row.namespace_pid, row.cgroup, row.is_unread = self.namespace_pid, self.cgroup, self.is_unread
        row.rank, row.given_name, row.parent_pid = self.rank or "", self.given_name, self.parent_pid
        found = self.interpreter
        if found is not None:
            row.interpreter, row.version, row.build = "cpython", found.version_text, found.build
            row.entry_marks_from, row.shim_is_python = found.layout.entry_marks_from, found.layout.shim_is_python
            row.gil = (found.gil.address, found.gil.size)
            row.gil_switch = found.gil.switch
        return row

    def kernel_record(
        self, follow_children: bool, mappings: tuple[int, int, int] | None, makes_code: bool = False
    ) -> bytes:
        """A packed bp_process; `mappings` are (word index, count, generation) in the unwind tables."""
        flags = {
            State.UNSEEN: 0,
            State.STARTING: abi.ProcessFlags["BP_PROCESS_ASKED"],
            State.CHANGING: abi.ProcessFlags["BP_PROCESS_ASKED"],
            State.KNOWN: abi.ProcessFlags["BP_PROCESS_KNOWN"],
            State.ASKED: abi.ProcessFlags["BP_PROCESS_KNOWN"] | abi.ProcessFlags["BP_PROCESS_ASKED"],
            State.KERNEL_THREAD: abi.ProcessFlags["BP_PROCESS_KNOWN"] | abi.ProcessFlags["BP_PROCESS_KERNEL"],
        }[self.state]
        values: dict[str, int | bytes] = {}
        if follow_children:
            flags |= abi.ProcessFlags["BP_PROCESS_FOLLOW_CHILDREN"]
        if mappings is not None:
            flags |= abi.ProcessFlags["BP_PROCESS_UNWIND"]
            flags |= abi.ProcessFlags["BP_PROCESS_MAKES_CODE"] if makes_code else 0
            values["mappings"], values["mapping_count"], values["generation"] = mappings
        if self.interpreter is not None and self.state is not State.CHANGING:
            flags |= abi.ProcessFlags["BP_PROCESS_PYTHON"]
            values |= _interpreter_values(self.interpreter)
            self.suspected_until_ns = self.suspected_until_ns or time.monotonic_ns() + _SUSPECTED_NS
            values["replaced_ns"] = max(0, self.suspected_until_ns - abi.CONSTANTS["BP_REPLACED_NS"])
        return abi.pack("bp_process", flags=int(flags), **values)


def _interpreter_values(found: Interpreter) -> dict[str, int | bytes]:
    """Fields of bp_process."""
    values: dict[str, int | bytes] = {
        **found.thread_slot.kernel_values(),
        "eval_start": found.eval_address,
        "layout": _kernel_layout(found.layout),
    }
    if found.main_address and not found.layout.lasti_bytes:
        values["interpreters"] = found.runtime_address + found.layout.runtime_interpreters_head
        values["main_interpreter"] = found.main_address
    # The kernel side takes _gil_runtime_state.locked to follow the holder.
    if found.layout.gil_locked == found.layout.gil_last_holder + 8:
        values["gil"], values["gil_bytes"] = found.gil.address, found.gil.size
        values["gil_current"] = found.gil.current
    return values


def _kernel_layout(layout: Layout) -> bytes:
    """What the frame walk of the kernel side needs to know of a CPython version."""
    return abi.pack(
        "bp_python_layout",
        tstate_frame=layout.thread_frame,
        cframe_frame=0xFFFF if layout.cframe_frame == NONE else layout.cframe_frame,
        tstate_chunk=max(layout.thread_datastack_chunk, 0),
        frame_code=layout.frame_code,
        frame_previous=layout.frame_previous,
        frame_instruction=layout.frame_instruction,
        frame_mark=max(layout.mark_offset, 0),
        code_identity=identity_start(layout),
        name_hash=layout.unicode_hash if layout.code_version == NONE else 0,
        tstate_interpreter=layout.thread_interpreter,
        interpreter_gil=0xFFFF if layout.interpreter_gil == NONE else layout.interpreter_gil,
        gil_holder=layout.gil_last_holder,
        tstate_native_id=layout.thread_pthread_id if layout.thread_native_id == NONE else layout.thread_native_id,
        tstate_base_frame=0xFFFF if layout.thread_base_frame == NONE else layout.thread_base_frame,
        lasti_bytes=layout.lasti_bytes,
        tstate_next=layout.thread_next,
        tstate_thread_id=layout.thread_pthread_id,
        interpreter_next=layout.interpreter_next,
        interpreter_threads=layout.interpreter_threads_head,
        slot_stays=layout.slot_stays,
        jit_has_no_frames=layout.version == JIT_WITHOUT_FRAMES,
        object_size=layout.bytes_size,
        # They have None from 3.13 on: entry_frame in _PyEval_EvalFrameDefault, Python/ceval.c (v3.13.0).
        shim_mark=layout.entry_marks_from if layout.version >= (3, 13) else 0xFFFF,
        frame_values=_frame_values(layout),
        parks=layout.version >= PARKING_LOT,
    )


def _frame_values(layout: Layout) -> int:
    """Where the variables of a frame begin; 0: not known, as of the free-threaded builds, whose objects are larger."""
    known = VALUES_LAYOUTS.get(layout.version) if layout.code_type == 8 else None
    return known.frame_values if known else 0


def command_name(command: tuple[str, ...]) -> str:
    """The comm that a command gets at exec: the first 15 bytes of its file name."""
    return without_controls(os.fsencode(os.path.basename(command[0]))[:15])
