"""Layouts against the headers of the interpreters that are installed, and the debug offsets that they carry."""

from __future__ import annotations

import dataclasses
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bpfprof.cpython.code_objects import IDENTITY_WORDS
from bpfprof.cpython.frame_values import VALUES_LAYOUTS
from bpfprof.cpython.layout import NONE, Layout
from bpfprof.cpython.layouts_dynamic import (
    DEBUG_OFFSETS_BYTES,
    SUPPORTED_VERSIONS,
    layout_from_debug_offsets,
    read_debug_offsets_head,
)
from bpfprof.cpython.layouts_static import STATIC_LAYOUTS
from bpfprof.elf.image import ElfImage
from tests import free_threaded, pyenv, sid

PROGRAM = r"""
#define Py_BUILD_CORE 1
#include <Python.h>
#include <stddef.h>
#include <stdio.h>
#include <frameobject.h>
#include <opcode.h>
#if PY_VERSION_HEX >= 0x03090000
#include "internal/pycore_runtime.h"
#include "internal/pycore_interp.h"
#elif PY_VERSION_HEX >= 0x03080000
#include "internal/pycore_pystate.h"
#elif PY_VERSION_HEX >= 0x03070000
#include "internal/pystate.h"
#endif
#if PY_VERSION_HEX >= 0x030b0000
#include "internal/pycore_frame.h"
#endif
#if PY_VERSION_HEX >= 0x030e0000
#include "internal/pycore_interpframe.h"
#define MARK_OF_C FRAME_OWNED_BY_INTERPRETER
#elif PY_VERSION_HEX >= 0x030c0000
#define MARK_OF_C FRAME_OWNED_BY_CSTACK
#endif
#define P(name, type, field) printf(#name " %zd\n", (Py_ssize_t)offsetof(type, field))
#define V(name, value) printf(#name " %zd\n", (Py_ssize_t)(value))
static unsigned state_bits(void *object) { return *(unsigned *)&((PyASCIIObject *)object)->state; }
int main(void) {
#if PY_VERSION_HEX < 0x03070000
 V(runtime_interpreters_head, 0);
 V(runtime_interpreters_main, -1);
 V(runtime_tss, -1);
 V(runtime_gil, -1);
 V(interpreter_gil, -1);
#elif PY_VERSION_HEX < 0x030c0000
 P(runtime_tss, _PyRuntimeState, gilstate.autoTSSkey);
 P(runtime_gil, _PyRuntimeState, ceval.gil);
 V(interpreter_gil, -1);
#else
#if PY_VERSION_HEX < 0x030f0000
 P(runtime_tss, _PyRuntimeState, autoTSSkey);
#else
 V(runtime_tss, -1);
#endif
 V(runtime_gil, -1);
 P(interpreter_gil, PyInterpreterState, ceval.gil);
#endif
#if PY_VERSION_HEX < 0x030b0000
 V(mark_offset, -1);
 V(entry_marks_from, 0);
#elif PY_VERSION_HEX < 0x030c0000
 P(mark_offset, _PyInterpreterFrame, is_entry);
 V(entry_marks_from, 1);
#else
 P(mark_offset, _PyInterpreterFrame, owner);
 V(entry_marks_from, MARK_OF_C);
#endif
#if PY_VERSION_HEX < 0x030f0000
 V(thread_base_frame, -1);
#else
 P(thread_base_frame, PyThreadState, base_frame);
#endif
#if PY_VERSION_HEX < 0x030b0000
 P(thread_frame, PyThreadState, frame);
 V(cframe_frame, -1);
 P(frame_code, PyFrameObject, f_code);
 P(frame_previous, PyFrameObject, f_back);
 P(frame_instruction, PyFrameObject, f_lasti);
 V(lasti_bytes, PY_VERSION_HEX < 0x030a0000 ? 1 : 2);
 V(thread_native_id, -1);
 V(thread_datastack_chunk, -1);
 P(interpreter_threads_head, struct _is, tstate_head);
 V(code_qualname, -1);
 V(code_adaptive, 0);
#else
 P(frame_previous, _PyInterpreterFrame, previous);
 V(lasti_bytes, 0);
 P(thread_native_id, PyThreadState, native_thread_id);
 P(thread_datastack_chunk, PyThreadState, datastack_chunk);
 P(interpreter_threads_head, PyInterpreterState, threads.head);
 P(code_qualname, PyCodeObject, co_qualname);
 P(code_adaptive, PyCodeObject, co_code_adaptive);
#endif
#if PY_VERSION_HEX < 0x030a0000
 P(code_linetable, PyCodeObject, co_lnotab);
#else
 P(code_linetable, PyCodeObject, co_linetable);
#endif
#if PY_VERSION_HEX < 0x030b0000
#elif PY_VERSION_HEX < 0x030d0000
 P(thread_frame, PyThreadState, cframe);
 P(cframe_frame, _PyCFrame, current_frame);
 P(frame_code, _PyInterpreterFrame, f_code);
 P(frame_instruction, _PyInterpreterFrame, prev_instr);
#else
 P(thread_frame, PyThreadState, current_frame);
 V(cframe_frame, -1);
 P(frame_code, _PyInterpreterFrame, f_executable);
 P(frame_instruction, _PyInterpreterFrame, instr_ptr);
#endif
#if PY_VERSION_HEX >= 0x03070000
 P(runtime_interpreters_head, _PyRuntimeState, interpreters.head);
 P(runtime_interpreters_main, _PyRuntimeState, interpreters.main);
 P(gil_last_holder, struct _gil_runtime_state, last_holder);
 P(gil_locked, struct _gil_runtime_state, locked);
 P(gil_switch, struct _gil_runtime_state, switch_cond);
 V(gil_size, sizeof(struct _gil_runtime_state));
 P(tss_initialized, Py_tss_t, _is_initialized); /* not in the layout */
 P(tss_key, Py_tss_t, _key);
#endif
 P(interpreter_next, struct _is, next);
 P(thread_next, PyThreadState, next);
 P(thread_interpreter, PyThreadState, interp);
 P(thread_pthread_id, PyThreadState, thread_id);
 P(code_type, PyObject, ob_type);
 P(code_first_line, PyCodeObject, co_firstlineno);
 P(code_filename, PyCodeObject, co_filename);
 P(code_name, PyCodeObject, co_name);
 P(unicode_length, PyASCIIObject, length);
 P(unicode_hash, PyASCIIObject, hash);
#if PY_VERSION_HEX >= 0x030c0000
 P(code_version, PyCodeObject, co_version);
#else
 V(code_version, -1);
#endif
 P(unicode_state, PyASCIIObject, state);
 V(unicode_ascii_size, sizeof(PyASCIIObject));
 V(unicode_compact_size, sizeof(PyCompactUnicodeObject));
 P(bytes_size, PyVarObject, ob_size);
 P(bytes_data, PyBytesObject, ob_sval);
#if PY_VERSION_HEX >= 0x030c0000
 P(interpreter_modules, PyInterpreterState, imports.modules);
#else
 P(interpreter_modules, PyInterpreterState, modules);
#endif
#if PY_VERSION_HEX >= 0x030b0000
 P(type_cached_keys, PyHeapTypeObject, ht_cached_keys);
#else
 V(type_cached_keys, -1);
#endif
#if PY_VERSION_HEX >= 0x03090000
 V(with_handler, WITH_EXCEPT_START);
#else
 V(with_handler, WITH_CLEANUP_START);
#endif
 P(values_flags, PyCodeObject, co_flags);
 P(values_stack_size, PyCodeObject, co_stacksize);
 P(values_used_names, PyCodeObject, co_names);
 P(values_tuple_items, PyTupleObject, ob_item);
#if PY_VERSION_HEX < 0x030b0000
 P(values_frame_values, PyFrameObject, f_localsplus);
 P(values_frame_locals, PyFrameObject, f_locals);
 P(values_names, PyCodeObject, co_varnames);
 V(values_kinds, -1);
 P(values_cell_names, PyCodeObject, co_cellvars);
 P(values_free_names, PyCodeObject, co_freevars);
#else
 P(values_frame_values, _PyInterpreterFrame, localsplus);
 P(values_frame_locals, _PyInterpreterFrame, f_locals);
 P(values_names, PyCodeObject, co_localsplusnames);
 P(values_kinds, PyCodeObject, co_localspluskinds);
 V(values_cell_names, -1);
 V(values_free_names, -1);
#endif
 /* not in the layout: facts that the code relies on */
 P(legacy_data, PyUnicodeObject, data);
 PyASCIIObject kind = {.state = {.kind = 7}}, compact = {.state = {.compact = 1}}, ascii = {.state = {.ascii = 1}};
 V(kind_bits, state_bits(&kind));
 V(compact_bit, state_bits(&compact));
 V(ascii_bit, state_bits(&ascii));
 V(version, PY_VERSION_HEX);
 return 0;
}
"""


def _find_includes() -> dict[str, Path]:
    folders = [*pyenv.paths("3.*/include/python3.*"), *Path("/usr/include").glob("python3.*")]
    folders += (sid.folder() / "usr/include").glob("python3.*")
    folders += (free_threaded.FOLDER / "include").glob("python3.*")
    versions = {folder: re.fullmatch(r"python3\.(\d+)[mt]?", folder.name) for folder in sorted(folders)}
    return {
        f"{folder.parent.parent.name}-{folder.name}": folder
        for folder, match in versions.items()
        if match and (3, int(match[1])) in SUPPORTED_VERSIONS and (folder / "Python.h").exists()
    }


INCLUDES = _find_includes()


def _debug_offsets(include: Path) -> bytes:
    """Of the interpreter that belongs to these headers."""
    prefix = include.parent.parent
    for path in [*prefix.glob(f"lib/**/lib{include.name}.so.1.0"), prefix / "bin" / include.name]:
        with ElfImage.open(str(path)) as image:
            symbol = image.find_symbol("_PyRuntime")
            data = image.read(symbol.address, DEBUG_OFFSETS_BYTES) if symbol else None
            if data:
                return data
    raise AssertionError(f"no interpreter beside {include}")


def _layout_of(include: Path) -> Layout:
    minor, is_free_threaded = int(include.name[len("python3.") :].rstrip("mt")), include.name.endswith("t")
    layout = STATIC_LAYOUTS.get((3, minor))
    layout = layout or layout_from_debug_offsets(_debug_offsets(include), (3, minor), is_free_threaded)
    assert layout is not None and layout.version == (3, minor)
    return layout


@pytest.mark.skipif(not INCLUDES, reason="no headers of CPython 3.6 to 3.15 (python3-dev, or pyenv)")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
@pytest.mark.parametrize("name", INCLUDES)
def test_layout_agrees_with_the_headers(name: str, tmp_path: Path) -> None:
    (tmp_path / "offsets.c").write_text(PROGRAM)
    program = str(tmp_path / "offsets")
    # Debian has pyconfig.h in a folder of its own.
    folders = f"-I{INCLUDES[name]}", f"-idirafter{INCLUDES[name].parent}", f"-I{INCLUDES[name]}/internal/mimalloc"
    subprocess.run(["gcc", "-w", *folders, "-o", program, str(tmp_path / "offsets.c")], check=True)
    out = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    truth = {key: int(value) for key, value in (line.split() for line in out.splitlines())}
    layout = dataclasses.asdict(_layout_of(INCLUDES[name]))
    compared = truth.keys() & layout.keys() - {"version"}
    assert {key: layout[key] for key in compared} == {key: truth[key] for key in compared}
    without_gil = {"gil_last_holder", "gil_locked", "gil_switch", "gil_size"} if layout["version"] == (3, 6) else set()
    others = {"version", "frame_size", "shim_is_python", *without_gil}
    assert layout.keys() - compared == others
    needed = ("frame_code", "frame_previous", "frame_instruction")
    assert layout["frame_size"] >= max(max(layout[key] for key in needed) + 8, layout["mark_offset"] + 1)
    in_head = {"flags", "stack_size", "names", "used_names", "kinds", "tuple_items"}  # of an object with 16 bytes
    shift = layout["code_type"] - 8
    values = dataclasses.asdict(VALUES_LAYOUTS[layout["version"]])
    assert {
        name: truth[f"values_{name}"] - shift * (name in in_head and at != NONE) for name, at in values.items()
    } == values
    assert truth["legacy_data"] == layout["unicode_compact_size"]
    assert (truth.get("tss_initialized", 0), truth.get("tss_key", 4)) == (0, 4)
    assert (truth["kind_bits"], truth["compact_bit"], truth["ascii_bit"]) == (7 << 2, 1 << 5, 1 << 6)
    # read_code_identity() takes the first line and the pointers in one read; fill_copy() of the kernel side masks it.
    assert layout["code_linetable"] + 8 - 8 * IDENTITY_WORDS <= min(layout["code_first_line"], 127)
    fields = ["filename", "name", *(["qualname"] if layout["code_qualname"] != NONE else []), "linetable"]
    assert [truth[f"code_{field}"] - layout["code_filename"] for field in fields] == [0, 8, 16, 24][: len(fields)]


def test_marks() -> None:
    before, after = STATIC_LAYOUTS[3, 11], STATIC_LAYOUTS[3, 12]
    assert (before.entry_marks_from, after.entry_marks_from) == (1, 3)
    assert before.shim_is_python and not after.shim_is_python
    assert before.interpreter_gil == NONE and after.runtime_gil == NONE


@pytest.mark.parametrize("name", [name for name in INCLUDES if int(name.rpartition(".")[2].rstrip("mt")) >= 13])
def test_debug_offsets_of_another_version_are_refused(name: str) -> None:
    """As those of alphas and betas are, in which fields were added one by one."""
    data, version, build = _debug_offsets(INCLUDES[name]), _layout_of(INCLUDES[name]).version, name.endswith("t")
    others = [other for other in SUPPORTED_VERSIONS if other >= (3, 13) and other != version]
    assert [layout_from_debug_offsets(data, other, build) for other in [*others, (3, 16)]] == [None] * (len(others) + 1)
    assert layout_from_debug_offsets(data, version, not build) is None
    for place in range(24, 24 + 8 * 60, 8):  # one field more or less
        assert layout_from_debug_offsets(data[:place] + bytes(8) + data[place:], version, build) is None
        assert layout_from_debug_offsets(data[:place] + data[place + 8 :] + bytes(8), version, build) is None


def test_debug_offsets_that_are_not_usable() -> None:
    head = b"xdebugpy" + (0x030D00F0).to_bytes(8, "little") + bytes(8)
    good = head + bytes(DEBUG_OFFSETS_BYTES - len(head))
    assert read_debug_offsets_head(b"xdebugpx" + good[8:]) is None
    assert read_debug_offsets_head(good[:16] + (1).to_bytes(8, "little") + good[24:]) == (0x030D00F0, True)
    rng = random.Random(1)
    for _ in range(300):
        layout_from_debug_offsets(head + rng.randbytes(DEBUG_OFFSETS_BYTES - len(head)), (3, 13))
