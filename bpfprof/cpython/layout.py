"""Where one version of CPython keeps what the walkers need: offsets in bytes, x86-64."""

from __future__ import annotations

from bpfprof.dataclass import dataclass

NONE = -1  # this version has no such field
FREE_THREADED = "free-threaded"  # what such a build is called
PARKING_LOT = (3, 13)  # from here on there is Python/parking_lot.c, where threads wait for locks of one byte
JIT_WITHOUT_FRAMES = (3, 14)  # the code of its own JIT has no frames: ebpf/native_frames.bpf.h


@dataclass(frozen=True)
class Layout:
    """One CPython minor version. Prefixes: runtime_ `_PyRuntimeState`, interpreter_ `PyInterpreterState`,
    thread_ `PyThreadState`, frame_ `_PyInterpreterFrame` (before 3.11 `PyFrameObject`), code_ `PyCodeObject`,
    unicode_ `PyASCIIObject`, bytes_ `PyBytesObject`, gil_ `struct _gil_runtime_state`.
    """

    version: tuple[int, int]

    runtime_interpreters_head: int
    runtime_interpreters_main: int
    runtime_tss: int  # autoTSSkey: int _is_initialized, then the pthread_key_t; NONE in 3.6 and from 3.15 on
    runtime_gil: int  # the GIL itself, NONE where each interpreter points to one, and in 3.6

    interpreter_next: int
    interpreter_threads_head: int
    interpreter_gil: int  # pointer to the GIL, NONE where the runtime holds it

    thread_next: int
    thread_interpreter: int
    thread_pthread_id: int  # thread_id, what pthread_self() returns
    thread_native_id: int  # native_thread_id, what gettid() returns in the innermost pid namespace; NONE before 3.11
    thread_datastack_chunk: int  # the chunk that holds the newest frames, NONE before 3.11
    thread_frame: int  # pointer to the current frame, or to the _PyCFrame where there is one
    thread_base_frame: int  # pointer to the frame below all others, which is none; NONE before 3.15
    cframe_frame: int  # current_frame in _PyCFrame, NONE where the thread state points to the frame

    frame_code: int
    frame_previous: int
    frame_instruction: int  # prev_instr (last one started), instr_ptr (the one being executed), f_lasti (either)
    lasti_bytes: int  # before 3.11: what f_lasti counts; 0: frames are no PyFrameObject and have an address instead
    mark_offset: int  # the byte that tells where one call of the C evaluation function begins; NONE: each frame
    frame_size: int  # bytes from the start of a frame that hold all of the above

    code_type: int
    code_first_line: int
    code_filename: int  # the name, the qualified name (where there is one) and the line table follow it
    code_qualname: int  # NONE before 3.11
    code_linetable: int
    code_adaptive: int  # what frame_instruction counts from: the bytecode, or before 3.11 the code object
    code_version: int  # a number that no other code object of the process has, NONE before 3.12

    unicode_length: int
    unicode_hash: int
    unicode_state: int
    unicode_ascii_size: int  # characters of a compact ASCII string begin here
    unicode_compact_size: int  # those of another compact string; in a legacy string the pointer to them

    bytes_size: int
    bytes_data: int

    gil_last_holder: int
    gil_locked: int
    gil_switch: int  # switch_cond and switch_mutex, up to the end: where those wait that gave the GIL away
    gil_size: int

    # A mark of this value or more is an entry: the frame is the outermost one that its call of the C evaluation
    # function runs. Leaf first, the Python frames of one call end with the entry: including it when `shim_is_python`.
    entry_marks_from: int
    shim_is_python: bool  # whether an entry-marked frame is itself the frame of a Python function

    interpreter_modules: int  # pointer to sys.modules
    type_cached_keys: int  # ht_cached_keys of PyHeapTypeObject, NONE before 3.11
    with_handler: int  # opcode that a handler of a `with` begins with: WITH_EXCEPT_START of opcode_ids.h

    @property
    def slot_stays(self) -> bool:
        """Whether a thread's slot keeps its first thread state, whichever interpreter it runs.

        Since 3.12 it has the one that runs: bind_gilstate_tstate(), Python/pystate.c (v3.12.0).
        """
        return self.version < (3, 12)
