"""Whether a process runs CPython, which one, and where: a pid in, an `Interpreter` or the reason why not out.

The runtime is found by its symbol, the version from the process or its file, and the thread-specific key that leads to
the thread state is tried on the threads themselves: a wrong offset would often give 0, which is the right key by luck.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bpfprof.cpython.gil import Gil, find_gil, static_gil
from bpfprof.cpython.layout import NONE, Layout
from bpfprof.cpython.layouts_dynamic import DEBUG_OFFSETS_BYTES, layout_from_debug_offsets, read_debug_offsets_head
from bpfprof.cpython.layouts_static import STATIC_LAYOUTS
from bpfprof.cpython.old_files import interpreters_variable, version_hex
from bpfprof.cpython.thread_state import ThreadStateRef, read_thread_states
from bpfprof.elf.image import EM_X86_64, ElfError, ElfImage
from bpfprof.model.ids import Pid, RuntimeAddress
from bpfprof.proc.maps import Mapping, open_mapped_file, read_maps
from bpfprof.proc.memory import ProcessMemory
from bpfprof.proc.tasks import start_time_ticks

_PYTHON_FILE = re.compile(r"^(?:lib)?python(\d)[.\d]*")

# glibc x86-64: specific_1stblock in struct pthread, entries {seq, data}; nptl/descr.h (2.36), the same in 2.17 to 2.39.
TSD_FIRST_BLOCK = 0x310
TSD_ENTRY_BYTES = 16
TSD_DATA_OFFSET = 8
TSD_FIRST_BLOCK_KEYS = 32  # PTHREAD_KEY_2NDLEVEL_SIZE

_FILE_LIMIT = 4096  # files that are searched for an embedded interpreter
_YOUNG_SECONDS = 2.0  # a process this young may still be loading its libraries


@dataclass(frozen=True)
class Interpreter:
    """A running CPython. `tss_key` was proven to lead to the thread states.

    `code_type_address` is that of PyCode_Type and `eval_address` that of `_PyEval_EvalFrameDefault`, 0 when unknown.
    """

    version_text: str
    runtime_address: RuntimeAddress
    layout: Layout
    tss_key: int
    gil: Gil
    code_type_address: RuntimeAddress
    eval_address: RuntimeAddress


@dataclass(frozen=True)
class NotPython:
    """No interpreter that can be looked into. With `retry` the answer may change soon: the process has just started.

    `version` is set when there is an interpreter, but one that is not supported, not ready or not to be followed.
    """

    reason: str
    retry: bool = False
    version: tuple[int, int] | None = None


@dataclass(frozen=True)
class _Runtime:
    """What the file says that holds `_PyRuntime` (3.6: `interp_head`); an address is 0 where it is not known."""

    address: RuntimeAddress
    version_hex: int  # Py_Version, 0 when it cannot be told
    gil: Gil | None  # where it lies in variables of the file
    traces_references: bool  # built with Py_TRACE_REFS: objects begin with two more pointers
    code_type_address: RuntimeAddress
    eval_address: RuntimeAddress


def find_interpreter(
    pid: Pid, memory: ProcessMemory | None = None, without_runtime: set[tuple[str, int]] | None = None
) -> Interpreter | NotPython:
    """TargetError when the process is gone or may not be read.

    `without_runtime` holds (device, inode) of files that were looked into in vain, and takes those of this process.
    """
    if memory is None:
        with ProcessMemory(pid) as own_memory:
            return find_interpreter(pid, own_memory, without_runtime)
    without_runtime = set() if without_runtime is None else without_runtime
    mappings = read_maps(pid)
    miss: NotPython | None = None
    # A python3 that is linked statically may also load libpython, whose copy of the runtime then stays unused.
    for runtime in _runtimes(pid, mappings, without_runtime):
        found = _inspect(memory, runtime)
        if isinstance(found, Interpreter):
            return found
        miss = miss or found
    if miss is not None:
        return miss
    return NotPython("no Python interpreter in this process", retry=_is_young(pid))


def _inspect(memory: ProcessMemory, runtime: _Runtime) -> Interpreter | NotPython:
    head_bytes = memory.read(runtime.address, DEBUG_OFFSETS_BYTES)
    if head_bytes is None:
        version = _minor_version(runtime.version_hex)
        return NotPython("the interpreter's memory is not readable", retry=True, version=version)
    head = read_debug_offsets_head(head_bytes)
    number, is_free_threaded = head or (runtime.version_hex, False)
    version = _minor_version(number)
    if is_free_threaded:
        return _unsupported(version, "free-threaded ", "; it has no GIL")
    if runtime.traces_references and not head:
        return _unsupported(version, beside="; it was built with Py_TRACE_REFS")
    layout = layout_from_debug_offsets(head_bytes, version) if head else STATIC_LAYOUTS.get(version)
    if layout is None:
        return _unsupported(version)
    threads = read_thread_states(memory, layout, runtime.address)
    key = _thread_key(memory, runtime.address, layout, threads)
    gil = runtime.gil or find_gil(memory, runtime.address, layout)
    if key is None or not threads or gil is None:
        return NotPython("the interpreter is still starting", retry=True, version=version)
    if key >= TSD_FIRST_BLOCK_KEYS:
        limit = f"only keys below {TSD_FIRST_BLOCK_KEYS} can be followed"
        return NotPython(f"the thread-specific key of Python is {key}; {limit}", version=version)
    if not _leads_to_thread_state(memory, key, threads):
        reason = "Python's thread-specific key leads to no thread state (a C library other than glibc?)"
        return NotPython(reason, version=version)
    text, code_type, evaluation = _version_text(number), runtime.code_type_address, runtime.eval_address
    return Interpreter(text, runtime.address, layout, key, gil, code_type, evaluation)


def _thread_key(
    memory: ProcessMemory, runtime_address: int, layout: Layout, threads: list[ThreadStateRef]
) -> int | None:
    """None while the interpreter starts. CPython 3.6 has it in a static variable: the first key that will do is it."""
    if layout.runtime_tss == NONE:
        keys = range(TSD_FIRST_BLOCK_KEYS)
        return next((key for key in keys if _leads_to_thread_state(memory, key, threads)), 0 if threads else None)
    tss = memory.read(runtime_address + layout.runtime_tss, 8)
    return int.from_bytes(tss[4:], "little") if tss and tss[:4] == b"\1\0\0\0" else None


def _leads_to_thread_state(memory: ProcessMemory, key: int, threads: list[ThreadStateRef]) -> bool:
    slot = TSD_FIRST_BLOCK + TSD_ENTRY_BYTES * key + TSD_DATA_OFFSET
    # On x86-64 glibc pthread_self() is the address of struct pthread, and the fs base.
    return any(memory.read_u64(thread.pthread_id + slot) == thread.address for thread in threads)


def _runtimes(pid: Pid, mappings: list[Mapping], without: set[tuple[str, int]]) -> Iterator[_Runtime]:
    for mapping, is_likely in _candidates(pid, mappings):
        if (mapping.device, mapping.inode) in without:
            continue
        try:
            fd = open_mapped_file(pid, mapping)
        except OSError:
            continue
        try:
            with ElfImage(fd) as image:
                runtime = _runtime_in(image, mapping, is_likely)
        except ElfError:
            runtime = None
        if runtime is None:
            without.add((mapping.device, mapping.inode))
        else:
            yield runtime


def _runtime_in(image: ElfImage, mapping: Mapping, is_likely: bool) -> _Runtime | None:
    if image.machine != EM_X86_64:
        return None
    runtime = image.find_symbol("_PyRuntime", dynamic_only=not is_likely)
    bias = image.bias_of(mapping.start, mapping.offset, mapping.permissions)
    address = runtime.address if runtime else interpreters_variable(image)
    if address is None or bias is None:
        return None
    names = ("Py_Version", "PyCode_Type", "_PyEval_EvalFrameDefault")
    version, *others = (image.find_symbol(name, dynamic_only=not is_likely) for name in names)
    # Py_Version is a const unsigned long, exported since 3.11.
    number = int.from_bytes(image.read(version.address, 8) or b"", "little") if version else version_hex(image)
    code_type, evaluation = (RuntimeAddress(symbol.address + bias if symbol else 0) for symbol in others)
    gil = None if runtime else static_gil(image, bias)
    # Objects/object.c (v3.6.15 to v3.12.1), exported by these builds alone.
    traces = image.find_symbol("_Py_ForgetReference", dynamic_only=True) is not None
    return _Runtime(RuntimeAddress(address + bias), number, gil, traces, code_type, evaluation)


def _candidates(pid: Pid, mappings: list[Mapping]) -> Iterator[tuple[Mapping, bool]]:
    """The first executable mapping of each file: those named like Python, the executable, then the rest."""
    first: dict[tuple[str, int], Mapping] = {}
    for mapping in mappings:
        if mapping.is_file and mapping.is_executable:
            first.setdefault((mapping.device, mapping.inode), mapping)
    executable = _executable_inode(pid)
    rest: list[Mapping] = []
    for mapping in first.values():
        if _PYTHON_FILE.match(os.path.basename(mapping.path)):
            yield mapping, True
        else:
            rest.append(mapping)
    # A stripped library still has .dynsym; only an executable that embeds Python may have the symbol in .symtab alone.
    rest.sort(key=lambda mapping: mapping.inode != executable)
    for mapping in rest[:_FILE_LIMIT]:
        yield mapping, mapping.inode == executable


def _executable_inode(pid: Pid) -> int:
    """0 when it cannot be told."""
    try:
        return os.stat(f"/proc/{pid}/exe").st_ino
    except OSError:
        return 0


def _unsupported(version: tuple[int, int], kind: str = "", beside: str = "") -> NotPython:
    number = f"{version[0]}.{version[1]}" if version > (0, 0) else "of an unknown version"
    return NotPython(f"{kind}CPython {number} is not supported yet{beside}", version=version)


def _minor_version(version_hex: int) -> tuple[int, int]:
    return version_hex >> 24 & 0xFF, version_hex >> 16 & 0xFF


def _version_text(version_hex: int) -> str:
    """PY_VERSION_HEX as text, Include/patchlevel.h: 0x030c01f0 is 3.12.1, 0x030d00c2 is 3.13.0rc2."""
    major, minor, micro = version_hex >> 24 & 0xFF, version_hex >> 16 & 0xFF, version_hex >> 8 & 0xFF
    level = {0xA: "a", 0xB: "b", 0xC: "rc"}.get(version_hex >> 4 & 0xF, "")
    return f"{major}.{minor}.{micro}" + (f"{level}{version_hex & 0xF}" if level else "")


def _is_young(pid: Pid) -> bool:
    started = start_time_ticks(pid)
    if started is None:
        return False
    # proc(5): start times count from boot, suspended time included.
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
    return age < _YOUNG_SECONDS
