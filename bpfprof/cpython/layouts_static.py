"""Layouts of the versions that do not describe themselves, compiled from the headers of 3.6.15 to 3.12.1.

The tests compile them again from every header they find; 3.11.2 agrees. A minor version keeps these layouts between
its patch releases (the reason given for `_Py_DebugOffsets`, Include/internal/pycore_runtime.h of v3.13.0).
Structures: Include/internal/pycore_runtime.h (3.8: pycore_pystate.h, 3.7: pystate.h), pycore_interp.h, pycore_frame.h,
pycore_gil.h (3.7: gil.h); Include/cpython/pystate.h, object.h, code.h, unicodeobject.h, bytesobject.h, and of 3.6 to
3.10 frameobject.h (Include/ or Include/cpython/).
"""

from __future__ import annotations

from dataclasses import replace

from bpfprof.cpython.layout import NONE, Layout

_CPYTHON_3_11 = Layout(
    version=(3, 11),
    runtime_interpreters_head=40,
    runtime_interpreters_main=48,
    runtime_tss=592,  # gilstate.autoTSSkey
    runtime_gil=360,  # ceval.gil
    interpreter_next=0,
    interpreter_threads_head=16,
    interpreter_gil=NONE,
    thread_next=8,
    thread_interpreter=16,
    thread_pthread_id=152,
    thread_native_id=160,
    thread_datastack_chunk=296,
    thread_frame=56,  # cframe
    thread_base_frame=NONE,
    cframe_frame=8,
    frame_code=32,
    frame_previous=48,
    frame_instruction=56,
    lasti_bytes=0,
    mark_offset=68,  # is_entry, a bool
    frame_size=72,
    code_type=8,
    code_first_line=72,
    code_filename=112,
    code_qualname=128,
    code_linetable=136,
    code_adaptive=184,
    code_version=NONE,
    unicode_length=16,
    unicode_hash=24,
    unicode_state=32,
    unicode_ascii_size=48,  # with wstr, removed in 3.12 (PEP 623)
    unicode_compact_size=72,
    bytes_size=16,
    bytes_data=32,
    gil_last_holder=8,
    gil_locked=16,
    gil_switch=120,
    gil_size=208,
    entry_marks_from=1,
    shim_is_python=True,
    interpreter_modules=888,
    type_cached_keys=872,
    with_handler=49,  # WITH_EXCEPT_START, Include/opcode.h
)

_CPYTHON_3_12 = replace(
    _CPYTHON_3_11,
    version=(3, 12),
    runtime_tss=1544,  # autoTSSkey
    runtime_gil=NONE,
    interpreter_threads_head=72,
    interpreter_gil=384,  # ceval.gil, own or that of the main interpreter (PEP 684)
    thread_pthread_id=136,
    thread_native_id=144,
    thread_datastack_chunk=232,
    cframe_frame=0,
    frame_code=0,
    frame_previous=8,
    mark_offset=70,  # owner, a char
    code_first_line=68,
    code_adaptive=192,
    code_version=92,
    unicode_ascii_size=40,
    unicode_compact_size=56,
    entry_marks_from=3,  # FRAME_OWNED_BY_CSTACK, enum _frameowner in pycore_frame.h
    shim_is_python=False,
    interpreter_modules=944,  # imports.modules
    type_cached_keys=880,
)

_CPYTHON_3_10 = replace(
    _CPYTHON_3_11,
    version=(3, 10),
    runtime_interpreters_head=32,
    runtime_interpreters_main=40,
    runtime_tss=584,
    runtime_gil=352,
    interpreter_threads_head=8,  # tstate_head
    thread_pthread_id=176,
    thread_native_id=NONE,
    thread_datastack_chunk=NONE,
    thread_frame=24,
    cframe_frame=NONE,
    frame_previous=24,  # f_back
    frame_instruction=96,
    lasti_bytes=2,  # code units: commit fcb55c0037ba ("bpo-27129: Use instruction offsets") (in v3.10)
    mark_offset=NONE,
    frame_size=112,
    code_first_line=40,
    code_filename=104,
    code_qualname=NONE,
    code_linetable=120,
    code_adaptive=0,
    entry_marks_from=0,
    interpreter_modules=856,
    type_cached_keys=NONE,
)

_CPYTHON_3_9 = replace(_CPYTHON_3_10, version=(3, 9), frame_instruction=104, lasti_bytes=1)

_CPYTHON_3_8 = replace(
    _CPYTHON_3_9,
    version=(3, 8),
    runtime_tss=1392,
    runtime_gil=1152,
    interpreter_modules=56,
    with_handler=81,  # WITH_CLEANUP_START
)

_CPYTHON_3_7 = replace(
    _CPYTHON_3_8,
    version=(3, 7),
    runtime_interpreters_head=24,
    runtime_interpreters_main=32,
    runtime_tss=1504,
    runtime_gil=1264,
    code_first_line=36,  # co_posonlyargcount is new in 3.8 (PEP 570)
    code_filename=96,
    code_linetable=112,
    interpreter_modules=40,
)

# The runtime is here the variable `interp_head`, Python/pystate.c (v3.6.15).
_CPYTHON_3_6 = replace(
    _CPYTHON_3_7,
    version=(3, 6),
    runtime_interpreters_head=0,
    runtime_interpreters_main=NONE,
    runtime_tss=NONE,
    runtime_gil=NONE,
    thread_pthread_id=152,
    frame_instruction=120,
    frame_size=128,
    interpreter_modules=16,
)

STATIC_LAYOUTS: dict[tuple[int, int], Layout] = {
    layout.version: layout
    for layout in (
        _CPYTHON_3_6,
        _CPYTHON_3_7,
        _CPYTHON_3_8,
        _CPYTHON_3_9,
        _CPYTHON_3_10,
        _CPYTHON_3_11,
        _CPYTHON_3_12,
    )
}
