"""Thread states and their Python frames, read from a running process.

The walk does in user space, one read a frame, what the BPF program does in the kernel: it is the oracle for it. The
target keeps running, so a chain may change under the walk; it then ends early and says so, or holds a stale frame.
"""

from __future__ import annotations

import struct

from bpfprof import abi
from bpfprof.cpython.layout import NONE, Layout
from bpfprof.dataclass import dataclass
from bpfprof.model.ids import RuntimeAddress
from bpfprof.proc.memory import Memory

FRAME_LIMIT = abi.CONSTANTS["BP_MAX_PYTHON_FRAMES"]
_INTERPRETER_LIMIT = 1024
_THREAD_LIMIT = 65536
_TAG_BITS = 3  # of references in frames, Include/internal/pycore_stackref.h (v3.14.10, v3.15.2); before 3.14 they are 0

_PTHREAD_TID = abi.CONSTANTS["BP_PTHREAD_TID"]

RawFrame = tuple[int, int, int]


@dataclass(frozen=True)
class ThreadStateRef:
    """One PyThreadState. `native_thread_id` is a gettid() in the target's innermost pid namespace."""

    address: RuntimeAddress
    native_thread_id: int
    pthread_id: int


@dataclass(frozen=True)
class FrameWalk:
    """`frames` are (code address, instruction address, mark), leaf first, entry frames of C included.

    `complete` is false when a frame could not be read, the chain loops, or it is longer than the limit. `addresses`:
    where the frames are.
    """

    frames: list[RawFrame]
    complete: bool
    addresses: list[int]


def read_thread_states(memory: Memory, layout: Layout, runtime_address: int) -> list[ThreadStateRef]:
    """Thread states of all interpreters, newest first as CPython links them. Ends early where a link is unreadable."""
    states: list[ThreadStateRef] = []
    for interpreter in read_interpreters(memory, layout, runtime_address):
        states += _threads_of(memory, layout, interpreter, _THREAD_LIMIT - len(states))
    return states


def find_main_interpreter(memory: Memory, runtime_address: int, layout: Layout) -> RuntimeAddress | None:
    """Address of the main PyInterpreterState; None while there is none, and in 3.6."""
    if layout.runtime_interpreters_main == NONE:
        return None
    return memory.read_pointer(runtime_address + layout.runtime_interpreters_main) or None


def read_interpreters(memory: Memory, layout: Layout, runtime_address: int) -> list[RuntimeAddress]:
    """Every PyInterpreterState, newest first as CPython links them. Ends early where a link is unreadable."""
    found: list[RuntimeAddress] = []
    address = memory.read_pointer(runtime_address + layout.runtime_interpreters_head)
    while address and address not in found and len(found) < _INTERPRETER_LIMIT:
        found.append(address)
        address = memory.read_pointer(address + layout.interpreter_next)
    return found


def _threads_of(memory: Memory, layout: Layout, interpreter: int, limit: int) -> list[ThreadStateRef]:
    states: list[ThreadStateRef] = []
    size = 8 + max(layout.thread_next, layout.thread_interpreter, layout.thread_pthread_id, layout.thread_native_id)
    address = memory.read_pointer(interpreter + layout.interpreter_threads_head)
    seen: set[int] = set()
    while address and address not in seen and len(states) < limit:
        seen.add(address)
        data = memory.read(address, size)
        if data is None:
            break
        if _u64(data, layout.thread_interpreter) != interpreter:  # freed, and used again for something else
            break
        pthread_id = _u64(data, layout.thread_pthread_id)
        if layout.thread_native_id == NONE:
            native_id = (memory.read_u64(pthread_id + _PTHREAD_TID) or 0) & 0xFFFFFFFF
        else:
            native_id = _u64(data, layout.thread_native_id)
        states.append(ThreadStateRef(address, native_id, pthread_id))
        address = RuntimeAddress(_u64(data, layout.thread_next))
    return states


def walk_frames(memory: Memory, layout: Layout, thread_state: int, limit: int = FRAME_LIMIT) -> FrameWalk:
    """The Python frames of one thread; a thread that runs no Python has none and is complete."""
    frame = memory.read_pointer(thread_state + layout.thread_frame)
    root: int | None = 0
    if layout.thread_base_frame != NONE:
        root = memory.read_u64(thread_state + layout.thread_base_frame)
    if frame and layout.cframe_frame != NONE:
        frame = memory.read_pointer(frame + layout.cframe_frame)
    frames: list[RawFrame] = []
    seen: dict[int, None] = {}  # keeps their order
    while frame is not None and frame != root:
        data = memory.read(frame, layout.frame_size)
        if data is None or frame in seen or len(frames) >= limit:
            return FrameWalk(frames, False, list(seen))
        seen[frame] = None
        frames.append(_frame(layout, data))
        frame = RuntimeAddress(_u64(data, layout.frame_previous))
    return FrameWalk(frames, frame is not None, list(seen))


def _frame(layout: Layout, data: bytes) -> RawFrame:
    code = _u64(data, layout.frame_code) & ~_TAG_BITS
    if not layout.lasti_bytes:
        return code, _u64(data, layout.frame_instruction), data[layout.mark_offset]
    lasti: int = struct.unpack_from("<i", data, layout.frame_instruction)[0]
    return code, code + lasti * layout.lasti_bytes, 0


def _u64(data: bytes, offset: int) -> int:
    value: int = struct.unpack_from("<Q", data, offset)[0]
    return value
