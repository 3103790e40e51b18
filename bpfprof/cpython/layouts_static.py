"""Layouts of the versions that do not describe themselves, compiled from the headers of 3.11.7 and 3.12.1.

The tests compile them again from every header they find; 3.11.2 agrees. A minor version keeps these layouts between
its patch releases (the reason given for `_Py_DebugOffsets`, Include/internal/pycore_runtime.h of v3.13.0).
Structures: Include/internal/pycore_runtime.h, pycore_interp.h,
pycore_frame.h, pycore_gil.h; Include/cpython/pystate.h, code.h, unicodeobject.h, bytesobject.h.
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
    mark_offset=68,  # is_entry, a bool
    frame_size=72,
    code_type=8,
    code_first_line=72,
    code_filename=112,
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
    gil_size=208,
    entry_marks_from=1,
    shim_is_python=True,
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
)

STATIC_LAYOUTS: dict[tuple[int, int], Layout] = {layout.version: layout for layout in (_CPYTHON_3_11, _CPYTHON_3_12)}
