"""Layouts of 3.13 and later, which describe themselves: the bytes of `_Py_DebugOffsets` in, a `Layout` out.

The structure stands at the start of `_PyRuntime` and is statically initialised; struct _Py_DebugOffsets,
Include/internal/pycore_runtime.h (v3.13.0). All its fields are 8 bytes; their order changes between minor versions.
"""

from __future__ import annotations

import struct
from dataclasses import replace

from bpfprof.cpython.layout import NONE, Layout
from bpfprof.cpython.layouts_static import STATIC_LAYOUTS

_COOKIE = b"xdebugpy"
_OFFSET_LIMIT = 1 << 20  # `_PyRuntimeState` of 3.13.0, which holds the largest of the structures, has 283320 bytes
_FRAME_SIZE_LIMIT = 256
_OBJECT_BYTES = {False: 16, True: 32}  # PyObject, by whether the build is free-threaded

# Sections and their fields in the order of v3.13.0, up to the last one of use here. A later version's table has all of
# them and more, some in between; a section that is empty here is new there.
_FIELDS_3_13 = {
    "runtime": "size finalizing interpreters_head",
    "interpreter": "size id next threads_head gc imports_modules sysdict builtins"
    " gil gil_state gil_state_enabled gil_state_locked gil_state_holder",
    "thread": "size prev next interp current_frame thread_id native_thread_id datastack_chunk status",
    "err_stackitem": "",
    "frame": "size previous executable instr_ptr localsplus owner",
    "code": "size filename name qualname linetable firstlineno argcount localsplusnames localspluskinds"
    " co_code_adaptive",
    "object": "size ob_type",
    "type": "size tp_name tp_repr tp_flags",
    "heap_type": "",
    "tuple": "size ob_item ob_size",
    "list": "size ob_item ob_size",
    "set": "",
    "dict": "size ma_keys ma_values",
    "float": "size ob_fval",
    "long": "size lv_tag ob_digit",
    "bytes": "size ob_size ob_sval",
    "unicode": "size state length asciiobject_size",
}
# Include/internal/pycore_debug_offsets.h (v3.14.10).
_FIELDS_3_14 = {
    **_FIELDS_3_13,
    "interpreter": "size id next threads_head threads_main gc imports_modules sysdict builtins"
    " gil gil_state gil_state_enabled gil_state_locked gil_state_holder code_object_generation tlbc_generation",
    "frame": _FIELDS_3_13["frame"] + " stackpointer tlbc_index",
    "code": _FIELDS_3_13["code"] + " co_tlbc",
    "set": "size used table mask",
}
# The same file in v3.15.2.
_FIELDS_3_15 = {
    **_FIELDS_3_14,
    "thread": "size prev next interp current_frame base_frame last_profiled_frame last_profiled_frame_seq"
    " thread_id native_thread_id datastack_chunk status holds_gil gil_requested current_exception exc_state",
    "err_stackitem": "exc_value",
    "type": _FIELDS_3_14["type"] + " tp_basicsize tp_dictoffset",
    "heap_type": "size ht_cached_keys",
    "unicode": _FIELDS_3_14["unicode"] + " compactunicodeobject_size",
}

# What a version's debug offsets leave out, from its headers; opcodes are in opcode_ids.h. All have as 3.12: co_version
# in code.h, the hash in unicodeobject.h, the size of the GIL in pycore_gil.h. FRAME_OWNED_BY_CSTACK is 3 in 3.13; in
# 3.14 and 3.15 that is FRAME_OWNED_BY_INTERPRETER, above which only C's own frames are (pycore_interpframe_structs.h).
_CPYTHON_3_13 = replace(STATIC_LAYOUTS[3, 12], version=(3, 13), runtime_tss=2160, cframe_frame=NONE, with_handler=44)
_CPYTHON_3_14 = replace(_CPYTHON_3_13, version=(3, 14), runtime_tss=2336, with_handler=43)
# There autoTSSkey has become a thread-local variable: see thread_slot.py.
_CPYTHON_3_15 = replace(_CPYTHON_3_13, version=(3, 15), runtime_tss=NONE, type_cached_keys=888, with_handler=41)

_DESCRIBED: dict[tuple[int, int], tuple[Layout, dict[str, str]]] = {
    (3, 13): (_CPYTHON_3_13, _FIELDS_3_13),
    (3, 14): (_CPYTHON_3_14, _FIELDS_3_14),
    (3, 15): (_CPYTHON_3_15, _FIELDS_3_15),
}

# The same of free-threaded builds, whose objects begin with 16 bytes more and whose GIL with `enabled` (v3.13.5). Those
# of 3.14 and later, which copy the bytecode for each thread, are not known here.
_FREE_THREADED: dict[tuple[int, int], tuple[Layout, dict[str, str]]] = {
    (3, 13): (
        replace(_CPYTHON_3_13, code_version=108, unicode_hash=40, gil_switch=128, gil_size=216, type_cached_keys=896),
        _FIELDS_3_13,
    ),
}

SUPPORTED_VERSIONS = (*STATIC_LAYOUTS, *_DESCRIBED)

_HEAD = struct.Struct("<8sQQ")  # cookie, version, free_threaded
DEBUG_OFFSETS_BYTES = _HEAD.size + 8 * sum(len(names.split()) for names in _FIELDS_3_15.values())


def read_debug_offsets_head(data: bytes) -> tuple[int, bool] | None:
    """(PY_VERSION_HEX, whether it is free-threaded) of DEBUG_OFFSETS_BYTES of `_PyRuntime`; None before 3.13."""
    cookie, version, free_threaded = _HEAD.unpack_from(data)
    return (version, bool(free_threaded)) if cookie == _COOKIE else None


def layout_from_debug_offsets(data: bytes, version: tuple[int, int], is_free_threaded: bool = False) -> Layout | None:
    """`data` is DEBUG_OFFSETS_BYTES of `_PyRuntime`. None for a version not known here or absurd offsets."""
    known = _FREE_THREADED if is_free_threaded else _DESCRIBED
    if version not in known:
        return None
    undescribed, fields = known[version]
    names = [f"{section}.{name}" for section in fields for name in fields[section].split()]
    at = dict(zip(names, struct.unpack_from(f"<{len(names)}Q", data, _HEAD.size)))
    sizes = {name: at.get(name.partition(".")[0] + ".size", _OFFSET_LIMIT) for name in names}
    is_absurd = any(at[name] > min(sizes[name], _OFFSET_LIMIT) for name in names)
    if is_absurd or at["object.size"] != _OBJECT_BYTES[is_free_threaded]:
        return None  # the table is another one, as those of alphas and betas are
    layout = _layout(undescribed, at)
    return layout if layout.frame_size <= _FRAME_SIZE_LIMIT else None


def _layout(undescribed: Layout, at: dict[str, int]) -> Layout:
    frame_end = max(at["frame.executable"], at["frame.previous"], at["frame.instr_ptr"], at["frame.owner"] - 7) + 8
    return replace(
        undescribed,
        runtime_interpreters_head=at["runtime.interpreters_head"],
        runtime_interpreters_main=at["runtime.interpreters_head"] + 8,  # struct pyinterpreters: head, then main
        interpreter_next=at["interpreter.next"],
        interpreter_threads_head=at["interpreter.threads_head"],
        interpreter_gil=at["interpreter.gil"],
        interpreter_modules=at["interpreter.imports_modules"],
        thread_next=at["thread.next"],
        thread_interpreter=at["thread.interp"],
        thread_pthread_id=at["thread.thread_id"],
        thread_native_id=at["thread.native_thread_id"],
        thread_datastack_chunk=at["thread.datastack_chunk"],
        thread_frame=at["thread.current_frame"],
        thread_base_frame=at.get("thread.base_frame", NONE),
        frame_code=at["frame.executable"],
        frame_previous=at["frame.previous"],
        frame_instruction=at["frame.instr_ptr"],
        mark_offset=at["frame.owner"],
        frame_size=frame_end + 7 & ~7,
        code_type=at["object.ob_type"],
        code_first_line=at["code.firstlineno"],
        code_filename=at["code.filename"],
        code_qualname=at["code.qualname"],
        code_linetable=at["code.linetable"],
        code_adaptive=at["code.co_code_adaptive"],
        unicode_length=at["unicode.length"],
        unicode_state=at["unicode.state"],
        unicode_ascii_size=at["unicode.asciiobject_size"],
        # PyCompactUnicodeObject adds utf8_length and utf8, Include/cpython/unicodeobject.h (v3.13.0).
        unicode_compact_size=at["unicode.asciiobject_size"] + 16,
        bytes_size=at["bytes.ob_size"],
        bytes_data=at["bytes.ob_sval"],
        gil_last_holder=at["interpreter.gil_state_holder"] - at["interpreter.gil_state"],
        gil_locked=at["interpreter.gil_state_locked"] - at["interpreter.gil_state"],
    )
