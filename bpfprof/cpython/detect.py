"""Whether a process runs CPython, which one, and where: a pid in, an `Interpreter` or the reason why not out.

The runtime is found by its symbol, and the version read from the process or its file.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator

from bpfprof.cpython.code_objects import Unresolved
from bpfprof.cpython.gil import Gil, find_gil, static_gil
from bpfprof.cpython.layout import FREE_THREADED, Layout
from bpfprof.cpython.layouts_dynamic import (
    DEBUG_OFFSETS_BYTES,
    SUPPORTED_VERSIONS,
    layout_from_debug_offsets,
    read_debug_offsets_head,
)
from bpfprof.cpython.layouts_static import STATIC_LAYOUTS
from bpfprof.cpython.old_files import interpreters_variable, version_hex
from bpfprof.cpython.other_pythons import other_python
from bpfprof.cpython.thread_slot import ThreadSlot, find_thread_slot
from bpfprof.cpython.thread_state import find_main_interpreter, read_thread_states
from bpfprof.dataclass import dataclass
from bpfprof.elf.image import EM_X86_64, ElfError, ElfImage
from bpfprof.errors import TargetError
from bpfprof.model.ids import Pid, RuntimeAddress
from bpfprof.proc.living import living
from bpfprof.proc.maps import Mapping, open_mapped_file, read_maps
from bpfprof.proc.memory import ProcessMemory
from bpfprof.proc.privilege import why_unreadable
from bpfprof.proc.reader import reader
from bpfprof.proc.tasks import is_kernel_thread, start_time_ticks
from bpfprof.proc.unreadable import why_file_unreadable

_SILENT = "its memory does not answer"
_WITHOUT_LIMIT = 10_000  # files that were looked into in vain, and are remembered
_TRIES = 3  # a thread that comes or goes changes the list of threads while it is read
_PYTHON_FILE = re.compile(r"^(?:lib)?python(\d)[.\d]*")

_FILE_LIMIT = 4096  # files that are searched for an embedded interpreter
_SEARCH_CPU_S = 0.3  # of one look, which may be one file longer; the next goes on with the others
_YOUNG_SECONDS = 2.0  # a process this young may still be loading its libraries


@dataclass(frozen=True)
class Interpreter:
    """A running CPython. `thread_slot` is the way from the thread pointer to the thread state.

    `code_type_address` is that of PyCode_Type and `eval_address` that of `_PyEval_EvalFrameDefault`, 0 when unknown.
    """

    version_text: str
    build: str  # FREE_THREADED; "": an ordinary one
    runtime_address: RuntimeAddress
    layout: Layout
    thread_slot: ThreadSlot
    gil: Gil
    code_type_address: RuntimeAddress
    eval_address: RuntimeAddress
    main_address: int  # of the main interpreter, 0: not known


@dataclass(frozen=True)
class NotPython:
    """No interpreter that can be looked into. With `retry` the answer may change soon: it is starting, or was slow.

    With `may_load_one` it may change too, when the process, which has just started, maps more code. `version` is set
    when there is an interpreter, but one that is not supported, not ready or not to be followed.
    """

    reason: str
    retry: bool = False
    may_load_one: bool = False
    version: tuple[int, int] | None = None
    is_unread: bool = False  # it runs Python, by an interpreter that cannot be looked into


ENDED = NotPython("it ended before it was looked at")


class _LongSearchError(Exception):
    """There are files that were not looked at yet."""


@dataclass(frozen=True)
class _Runtime:
    """What the file says that holds `_PyRuntime` (3.6: `interp_head`); an address is 0 where it is not known."""

    address: RuntimeAddress
    version_hex: int  # Py_Version, 0 when it cannot be told
    gil: Gil | None  # where it lies in variables of the file
    traces_references: bool  # built with Py_TRACE_REFS: objects begin with two more pointers
    code_type_address: RuntimeAddress
    eval_address: RuntimeAddress
    getter_address: RuntimeAddress  # of PyGILState_GetThisThreadState()


def find_interpreter(
    pid: Pid, memory: ProcessMemory | None = None, without_runtime: dict[tuple[str, int], str] | None = None
) -> Interpreter | NotPython:
    """TargetError when the process is gone or may not be read.

    `without_runtime` holds (device, inode) of files that were looked into in vain, and takes those of this process:
    each with the name of what else runs Python there, "": nothing does.
    """
    if memory is None:
        with ProcessMemory(pid) as own_memory:
            return find_interpreter(pid, own_memory, without_runtime)
    without_runtime = {} if without_runtime is None else without_runtime
    if len(without_runtime) >= _WITHOUT_LIMIT:
        without_runtime.clear()  # a machine may build programs all day
    mappings = read_maps(pid)
    if not mappings and not is_kernel_thread(pid):
        return ENDED
    miss: NotPython | None = None
    unread: list[tuple[Mapping, OSError]] = []
    try:
        # A python3 that is linked statically may also load libpython, whose copy of the runtime then stays unused.
        for runtime in _runtimes(pid, mappings, without_runtime, unread):
            found = _inspect(memory, runtime)
            if isinstance(found, Interpreter):
                return found
            miss = miss or found
    except TimeoutError:
        miss = miss or NotPython("its files do not answer", retry=True)
    except _LongSearchError:
        miss = miss or NotPython("not all of its files were looked at", retry=True)
    if pid in reader().unanswering:  # whatever was missed may be there
        return NotPython(_SILENT, retry=True, version=miss.version if miss else None)
    if miss is not None:
        return miss
    others = (without_runtime.get((mapping.device, mapping.inode)) for mapping in mappings)
    if name := next(filter(None, others), ""):
        return NotPython(f"{name} is not CPython", is_unread=True)
    for mapping, error in unread:
        is_named = _PYTHON_FILE.match(os.path.basename(mapping.path)) is not None
        why = why_file_unreadable(pid, mapping, error)
        return NotPython(f"whether it runs Python is not known: {why}", may_load_one=_is_young(pid), is_unread=is_named)
    return NotPython("no Python interpreter in this process", may_load_one=_is_young(pid))


def why_not(error: TargetError) -> NotPython:
    """What to say of a process where find_interpreter() raised this."""
    if isinstance(error.__cause__, TimeoutError):
        return NotPython(_SILENT, retry=True)
    is_refused = isinstance(error.__cause__, PermissionError)
    return NotPython(why_unreadable()) if is_refused else ENDED


def _inspect(memory: ProcessMemory, runtime: _Runtime) -> Interpreter | NotPython:
    head_bytes = memory.read(runtime.address, DEBUG_OFFSETS_BYTES)
    if head_bytes is None:
        version = _minor_version(runtime.version_hex)
        return NotPython("the interpreter's memory is not readable", retry=True, version=version)
    head = read_debug_offsets_head(head_bytes)
    number, is_free_threaded = head or (runtime.version_hex, False)
    version = _minor_version(number)
    if runtime.traces_references and not head:
        return _unsupported(version, beside="; it was built with Py_TRACE_REFS")
    layout = layout_from_debug_offsets(head_bytes, version, is_free_threaded) if head else STATIC_LAYOUTS.get(version)
    build = FREE_THREADED if is_free_threaded else ""
    if layout is None:
        is_other = version in SUPPORTED_VERSIONS and not build  # an alpha or a beta
        return _unsupported(version, build, f", as {_version_text(number)} has it" if is_other else "")
    slot = None
    for _ in range(_TRIES):
        threads = read_thread_states(memory, layout, runtime.address)
        slot = find_thread_slot(memory, runtime.address, layout, runtime.getter_address, threads) if threads else None
        if slot is not None:
            break
    gil = runtime.gil or find_gil(memory, runtime.address, layout)
    if slot is None or gil is None:
        return NotPython("the interpreter is still starting", retry=True, version=version)
    if isinstance(slot, Unresolved):
        return NotPython(slot.reason, version=version, is_unread=True)
    text, code_type, evaluation = _version_text(number), runtime.code_type_address, runtime.eval_address
    main = find_main_interpreter(memory, runtime.address, layout) or 0
    return Interpreter(text, build, runtime.address, layout, slot, gil, code_type, evaluation, main)


def _runtimes(
    pid: Pid, mappings: list[Mapping], without: dict[tuple[str, int], str], unread: list[tuple[Mapping, OSError]]
) -> Iterator[_Runtime]:
    """unread: takes files that cannot be opened, the likeliest first. Raises _LongSearchError."""
    end_s: float | None = None
    for mapping, is_likely in _candidates(pid, mappings):
        if (mapping.device, mapping.inode) in without:
            continue
        if end_s is not None and time.thread_time() > end_s:
            raise _LongSearchError
        end_s = end_s or time.thread_time() + _SEARCH_CPU_S
        try:
            fd = open_mapped_file(pid, mapping)
        except TimeoutError:
            raise
        except OSError as error:
            unread.append((mapping, error))
            continue
        runtime, other = None, ""
        with contextlib.suppress(ElfError), ElfImage(fd) as image:
            runtime = _runtime_in(image, mapping, is_likely)
            other = "" if runtime else other_python(image, mapping.path)
        if runtime is None:
            without[mapping.device, mapping.inode] = other
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
    names = ("Py_Version", "PyCode_Type", "_PyEval_EvalFrameDefault", "PyGILState_GetThisThreadState")
    version, *others = (image.find_symbol(name, dynamic_only=not is_likely) for name in names)
    # Py_Version is a const unsigned long, exported since 3.11.
    number = int.from_bytes(image.read(version.address, 8) or b"", "little") if version else version_hex(image)
    addresses = (RuntimeAddress(symbol.address + bias if symbol else 0) for symbol in others)
    gil = None if runtime else static_gil(image, bias)
    # Objects/object.c (v3.6.15 to v3.12.1), exported by these builds alone.
    traces = image.find_symbol("_Py_ForgetReference", dynamic_only=True) is not None
    return _Runtime(RuntimeAddress(address + bias), number, gil, traces, *addresses)


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
        return reader().stat(pid, f"/proc/{living(pid)}/exe").inode
    except OSError:
        return 0


def _unsupported(version: tuple[int, int], build: str = "", beside: str = "") -> NotPython:
    number = f"{version[0]}.{version[1]}" if version > (0, 0) else "of an unknown version"
    name = " ".join(filter(None, (build, "CPython", number)))
    return NotPython(f"{name} is not supported yet{beside}", version=version, is_unread=True)


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
