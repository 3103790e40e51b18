"""One process of a recording: what is known of it, for the kernel side and for the recording's tables."""

from __future__ import annotations

import os
from dataclasses import dataclass

from bpfprof import abi
from bpfprof.capture.codes import ProcessCodes
from bpfprof.cpython.code_objects import identity_start
from bpfprof.cpython.detect import TSD_DATA_OFFSET, TSD_ENTRY_BYTES, TSD_FIRST_BLOCK, Interpreter
from bpfprof.cpython.layout import NONE, Layout
from bpfprof.model.ids import Pid
from bpfprof.proc.memory import ProcessMemory
from bpfprof.proc.text import without_controls
from bpfprof.recording.tables import RecordedProcess


@dataclass(slots=True)
class TrackedProcess:
    """One process of the recording, by its index there."""

    index: int
    pid: Pid
    name: str
    command_line: list[str]
    codes: ProcessCodes
    memory: ProcessMemory | None = None
    interpreter: Interpreter | None = None
    note: str = ""  # why it has no Python frames
    is_kernel_thread: bool = False
    is_looked_at: bool = True  # false until the kernel side asks for it
    is_changing: bool = False  # it runs another program, and what is known is still of the one before
    detect_until_s: float = 0.0  # until when its interpreter may still be starting; 0: it is known
    asked_again_s: float = 0.0  # when the kernel side may ask for it again


def kernel_record(process: TrackedProcess, follow_children: bool, mappings: tuple[int, int, int] | None) -> bytes:
    """A packed bp_process; `mappings` are (word index, count, generation) in the unwind tables."""
    flags = 0
    values: dict[str, int | bytes] = {}
    if process.is_looked_at or process.is_kernel_thread:
        is_known = not process.detect_until_s and not process.is_changing
        flags |= abi.ProcessFlags["BP_PROCESS_KNOWN" if is_known else "BP_PROCESS_ASKED"]
    if follow_children:
        flags |= abi.ProcessFlags["BP_PROCESS_FOLLOW_CHILDREN"]
    if process.is_kernel_thread:
        flags |= abi.ProcessFlags["BP_PROCESS_KERNEL"]
    if mappings is not None:
        flags |= abi.ProcessFlags["BP_PROCESS_UNWIND"]
        values["mappings"], values["mapping_count"], values["generation"] = mappings
    if process.interpreter is not None and not process.is_changing:
        flags |= abi.ProcessFlags["BP_PROCESS_PYTHON"]
        values["tss_offset"] = TSD_FIRST_BLOCK + TSD_DATA_OFFSET + TSD_ENTRY_BYTES * process.interpreter.tss_key
        values["eval_start"] = process.interpreter.eval_address
        values["layout"] = _kernel_layout(process.interpreter.layout)
        if process.interpreter.gil is not None and process.interpreter.layout.gil_locked == _after_holder(process):
            values["gil"], values["gil_bytes"] = process.interpreter.gil.address, process.interpreter.gil.size
    return abi.pack("bp_process", flags=flags, **values)


def _after_holder(process: TrackedProcess) -> int:
    """Where the kernel side takes _gil_runtime_state.locked to be."""
    return process.interpreter.layout.gil_last_holder + 8 if process.interpreter else NONE


def _kernel_layout(layout: Layout) -> bytes:
    """What the frame walk of the kernel side needs to know of a CPython version."""
    return abi.pack(
        "bp_python_layout",
        tstate_frame=layout.thread_frame,
        cframe_frame=0xFFFF if layout.cframe_frame == NONE else layout.cframe_frame,
        tstate_chunk=layout.thread_datastack_chunk,
        frame_code=layout.frame_code,
        frame_previous=layout.frame_previous,
        frame_instruction=layout.frame_instruction,
        frame_mark=layout.mark_offset,
        code_identity=identity_start(layout),
        name_hash=layout.unicode_hash if layout.code_version == NONE else 0,
        tstate_interpreter=layout.thread_interpreter,
        interpreter_gil=0xFFFF if layout.interpreter_gil == NONE else layout.interpreter_gil,
        gil_holder=layout.gil_last_holder,
        tstate_native_id=layout.thread_native_id,
    )


def command_name(command: tuple[str, ...]) -> str:
    """The comm that a command gets at exec: the first 15 bytes of its file name."""
    return without_controls(os.fsencode(os.path.basename(command[0]))[:15])


def recorded(process: TrackedProcess) -> RecordedProcess:
    """Its row in the recording's table of processes."""
    row = RecordedProcess(process.pid, process.name, process.command_line)
    row.is_kernel_thread, row.note = process.is_kernel_thread, process.note
    interpreter = process.interpreter
    if interpreter is not None:
        row.interpreter, row.version = "cpython", interpreter.version_text
        row.build = "free-threaded" if interpreter.free_threaded else ""
        row.entry_marks_from, row.shim_is_python = (
            interpreter.layout.entry_marks_from,
            interpreter.layout.shim_is_python,
        )
        row.gil = (interpreter.gil.address, interpreter.gil.size) if interpreter.gil else None
    return row
