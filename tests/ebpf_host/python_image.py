"""Memory of a thread that runs Python, written by hand: from its thread pointer to chains of frames and their code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bpfprof import abi
from tests.ebpf_host.host import CONSTANTS, PROCESS, THREAD_POINTER, Host, Segment, Stack

TSS_OFFSET = 0x310
STATE, CFRAME, CODE_OBJECTS, CHUNK = 0x5555_6000_0000, 0x7FFC_0000_2000, 0x7F22_0000_0000, 0x7F33_0004_0000
BASE_FRAME = STATE + 0x600  # never read
CHUNK_BYTES = 0x4000  # of a data-stack chunk: DATA_STACK_CHUNK_SIZE, Python/pystate.c (v3.11.0)
CODE_BYTES = 256
IDENTITY, NAME_HASH = 72, 24
_ADDRESS_BITS = 56

# CPython 3.11 has cframe and no version of code; 3.13 has neither; in 3.14 `owner` comes after `stackpointer`
# and references have tags (Include/internal/pycore_interpframe_structs.h and pycore_stackref.h, v3.14.10); in 3.15 the
# outermost frame stands on one that belongs to the thread state (Include/cpython/pystate.h, v3.15.2).
LAYOUTS: dict[str, dict[str, int]] = {
    "3.11": {"tstate_frame": 56, "cframe_frame": 8, "frame_code": 32, "frame_previous": 48, "frame_mark": 68},
    "3.13": {"tstate_frame": 72, "cframe_frame": 0xFFFF, "frame_code": 0, "frame_previous": 8, "frame_mark": 70},
    "3.14": {"tstate_frame": 72, "cframe_frame": 0xFFFF, "frame_code": 0, "frame_previous": 8, "frame_mark": 74},
}
LAYOUTS["3.15"] = LAYOUTS["3.14"] | {"tstate_base_frame": 80}
for _layout in LAYOUTS.values():
    _layout |= {
        "tstate_base_frame": _layout.get("tstate_base_frame", 0xFFFF),
        "tstate_chunk": 296,
        "frame_instruction": 56,
        "code_identity": IDENTITY,
    }
    _layout |= {"tstate_interpreter": 16, "interpreter_gil": 40, "gil_holder": 8, "tstate_native_id": 160}
    _layout |= {"tstate_next": 8, "tstate_thread_id": 168, "interpreter_next": 0, "interpreter_threads": 8}
    _layout |= {"object_size": 16, "shim_mark": 0xFFFF}
LAYOUTS["3.11"] |= {"name_hash": NAME_HASH, "interpreter_gil": 0xFFFF, "slot_stays": 1}
# Before 3.11 frames are other objects. f_lasti has 4 bytes, in words of 8 here.
FRAME_OBJECT = {"tstate_frame": 24, "tstate_chunk": 0, "cframe_frame": 0xFFFF, "frame_code": 32}
FRAME_OBJECT |= {"frame_previous": 24, "tstate_base_frame": 0xFFFF}
FRAME_OBJECT |= {"frame_instruction": 104, "frame_mark": 112, "code_identity": IDENTITY, "name_hash": NAME_HASH}
FRAME_OBJECT |= {"tstate_interpreter": 16, "interpreter_gil": 0xFFFF, "gil_holder": 8, "tstate_native_id": 176}
FRAME_OBJECT |= {"object_size": 16, "shim_mark": 0xFFFF}
FRAME_OBJECT_BYTES = 128  # what is read of one: ebpf/python_old_frames.bpf.h


@dataclass(frozen=True)
class Frame:
    """A frame at an address; `code` is the number of a code object."""

    address: int
    code: int
    instruction: int
    mark: int = 0

    @property
    def record(self) -> tuple[int, int]:
        """What a stack says of it."""
        return code_address(self.code) | self.mark << _ADDRESS_BITS, self.instruction


def code_address(number: int) -> int:
    """Where a code object is."""
    return CODE_OBJECTS + CODE_BYTES * number


def random_codes(seed: int) -> bytearray:
    """The memory of code objects."""
    return bytearray(np.random.default_rng(seed).bytes(CODE_BYTES * 300))


@dataclass(frozen=True)
class ThreadState:
    """A PyThreadState; `leaf` is the address of its innermost frame, `thread_pointer` 0: no thread of these tests."""

    address: int
    leaf: int
    native_id: int = 0
    interpreter: int = 0
    thread_pointer: int = 0
    thread_id: int = 0
    chunk: int = 0  # 0: that of the image
    previous_cframe: int = 0

    @property
    def cframe(self) -> int:
        """Where it has its _PyCFrame."""
        return CFRAME + self.address - STATE


@dataclass
class PythonImage:
    """`regions` is memory for frames: start -> bytes."""

    version: str = "3.11"
    chunk: int = CHUNK
    regions: dict[int, bytearray] = field(default_factory=lambda: {CHUNK: bytearray(CHUNK_BYTES)})
    codes: bytearray = field(default_factory=lambda: random_codes(5))

    def put(self, address: int, value: int, size: int = 8) -> None:
        """Writes a number into one of the regions."""
        start = max(start for start in self.regions if start <= address)
        self.regions[start][address - start : address - start + size] = value.to_bytes(size, "little")
        assert address + size <= start + len(self.regions[start]) and len(self.regions[start]) % 8 == 0

    def link(self, frames: Sequence[Frame], last: int = 0) -> None:
        """Writes frames, leaf first; `last` is what the outermost one has for its caller, 0: what is right."""
        layout = LAYOUTS[self.version]
        if not last and layout["tstate_base_frame"] != 0xFFFF:
            last = BASE_FRAME
        for frame, previous in zip(frames, [*(frame.address for frame in frames[1:]), last]):
            tag = self.version in ("3.14", "3.15") and frame.code % 2
            self.put(frame.address + layout["frame_code"], code_address(frame.code) | tag)
            self.put(frame.address + layout["frame_instruction"], frame.instruction)
            self.put(frame.address + layout["frame_previous"], previous)
            self.put(frame.address + layout["frame_mark"], frame.mark, 1)

    def install(self, host: Host, leaf: int, more: Sequence[Segment] = (), flags: int = 0, **process: int) -> None:
        """Makes it what the programs see; `leaf` is the address of the innermost frame of the only thread."""
        self.install_threads(host, [ThreadState(STATE, leaf, thread_pointer=THREAD_POINTER)], more, flags, **process)

    def install_threads(
        self,
        host: Host,
        threads: Sequence[ThreadState],
        more: Sequence[Segment] = (),
        flags: int = 0,
        **process: int,
    ) -> None:
        """Makes it what the programs see, with these threads."""
        segments: list[Segment] = [
            (CODE_OBJECTS, bytes(self.codes)),
            *((start, bytes(content)) for start, content in self.regions.items()),
            *more,
        ]
        for thread in threads:
            segments += self._segments(thread)
        host.set_user_memory(segments)
        flags |= PROCESS["BP_PROCESS_PYTHON"]
        packed = abi.pack("bp_python_layout", **LAYOUTS[self.version])
        host.set_process(flags, thread_slot=TSS_OFFSET, layout=packed, **process)

    def _segments(self, thread: ThreadState) -> list[Segment]:
        layout = LAYOUTS[self.version]
        has_cframe = layout["cframe_frame"] != 0xFFFF
        state = np.zeros(64, np.uint64)
        state[layout["tstate_frame"] // 8] = thread.cframe if has_cframe else thread.leaf
        state[layout["tstate_chunk"] // 8] = thread.chunk or self.chunk
        state[layout["tstate_native_id"] // 8] = thread.native_id
        if layout["tstate_base_frame"] != 0xFFFF:
            state[layout["tstate_base_frame"] // 8] = BASE_FRAME
        state[layout["tstate_interpreter"] // 8] = thread.interpreter
        state[layout.get("tstate_thread_id", 0) // 8] = thread.thread_id
        segments: list[Segment] = [(thread.address, state.tobytes())]
        segments.append(
            (thread.cframe, bytes(layout["cframe_frame"] % 0xFFFF) + _word(thread.leaf) + _word(thread.previous_cframe))
        )
        if thread.thread_pointer:
            segments.append((thread.thread_pointer + TSS_OFFSET, _word(thread.address)))
        return segments


def _word(value: int) -> bytes:
    return value.to_bytes(8, "little")


def frames_of(stack: Stack) -> list[tuple[int, int]]:
    """(code and mark, instruction) of each Python frame."""
    return [(int(frame["code"]), int(frame["instruction"])) for frame in stack.python]


def chain(count: int, low: int, high: int, step: Mapping[int, int] | int = 96) -> list[Frame]:
    """Leaf first: `count` frames that lie one below the other in [low, high), as in a data-stack chunk."""
    assert isinstance(step, int) and low + count * step <= high
    return [
        Frame(low + step * (count - 1 - n), n % 200, 0x7F44_0000_0000 + 2 * n, 1 if n % 7 == 6 else 0)
        for n in range(count)
    ]


TOO_DEEP_FRAMES = CONSTANTS["BP_MAX_PYTHON_FRAMES"]
