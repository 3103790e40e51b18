"""Where a thread keeps its thread state: an interpreter's memory in, a distance from the thread pointer out.

Meant is the state that is bound to the thread (the one of PyGILState_Ensure()), not the current one, which is null
while the GIL is released. Up to 3.14 it is in a pthread-specific slot, since 3.15 in the thread-local variable
`_Py_tss_gilstate` (gh-131185: "Use a proper thread-local for cached thread states", python/cpython pull 132510). That
one has no exported symbol, but PyGILState_GetThisThreadState() does nothing but return it, so its code says where it
is. What was found is tried on the threads: a wrong key would often be 0, which is the right one by luck. CPython 3.6
has its key in a static variable: there the first key that passes is it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bpfprof.cpython.code_objects import Unresolved
from bpfprof.cpython.layout import NONE, Layout
from bpfprof.cpython.thread_state import ThreadStateRef
from bpfprof.proc.memory import ProcessMemory

# glibc x86-64: specific_1stblock in struct pthread, entries {seq, data}; nptl/descr.h (2.36), the same in 2.17 to 2.42.
_TSD_FIRST_BLOCK = 0x310
_TSD_ENTRY_BYTES = 16
_TSD_DATA_OFFSET = 8
_TSD_FIRST_BLOCK_KEYS = 32  # PTHREAD_KEY_2NDLEVEL_SIZE

# The ways of x86-64 code to a thread-local variable ("ELF Handling For Thread-Local Storage", section 4.4): local exec
# (mov %fs:N,%rax), initial exec (mov GOT,%rax; mov %fs:(%rax),%rax), and general or local dynamic (lea GOT,%rdi; call
# __tls_get_addr; mov N(%rax),%rax).
_READS_VARIABLE = re.compile(
    rb"\x64\x48\x8b\x04\x25(?P<local>.{4})"
    rb"|\x48\x8b\x05(?P<initial>.{4})\x64\x48\x8b\x00"
    rb"|\x48\x8d\x3d(?P<dynamic>.{4})(?:\x66\x66\x48|\x66\x48|\x67)?(?:\xe8|\xff\x15).{4}"
    rb"\x5d?\x48\x8b(?:\x80(?P<far>.{4})|\x40(?P<near>.)|\x00)",
    re.DOTALL,
)
_GETTER_BYTES = 48
_NO_KEY = "Python's thread-specific key leads to no thread state (a C library other than glibc?)"
# glibc x86-64: the dynamic thread vector is the second word of struct pthread, nptl/descr.h (tcbhead_t, sysdeps/x86_64/
# nptl/tls.h); entries {val, to_free}, sysdeps/generic/dl-dtv.h (2.26 and later). Static blocks are never freed.
_DTV_OFFSET = 8
_DTV_ENTRY_BYTES = 16


def find_thread_slot(
    memory: ProcessMemory, runtime_address: int, layout: Layout, getter_address: int, threads: list[ThreadStateRef]
) -> int | Unresolved | None:
    """`getter_address` is that of PyGILState_GetThisThreadState(), 0: unknown. None: the interpreter is starting."""
    if layout.runtime_tss != NONE:
        tss = memory.read(runtime_address + layout.runtime_tss, 8)
        if tss is None or tss[:4] != b"\1\0\0\0":
            return None
        key = int.from_bytes(tss[4:], "little")
        if key >= _TSD_FIRST_BLOCK_KEYS:
            limit = f"only keys below {_TSD_FIRST_BLOCK_KEYS} can be followed"
            return Unresolved(f"the thread-specific key of Python is {key}; {limit}")
        candidates, otherwise = _slots(range(key, key + 1)), _NO_KEY
    elif layout.version < (3, 7):
        candidates, otherwise = _slots(range(_TSD_FIRST_BLOCK_KEYS)), _NO_KEY
    else:
        candidates = _variable_offsets(memory, getter_address, threads)
        otherwise = "Python's thread-local variable was not found (a library that was loaded after the start?)"
    # On x86-64 glibc pthread_self() is the address of struct pthread, and the fs base.
    for offset in candidates:
        if any(memory.read_u64(thread.pthread_id + offset) == thread.address for thread in threads):
            return offset
    return Unresolved(otherwise)


def _slots(keys: range) -> Iterator[int]:
    return (_TSD_FIRST_BLOCK + _TSD_ENTRY_BYTES * key + _TSD_DATA_OFFSET for key in keys)


def _variable_offsets(memory: ProcessMemory, getter_address: int, threads: list[ThreadStateRef]) -> Iterator[int]:
    """Distances of `_Py_tss_gilstate` from the thread pointer, as far as it is in the static block of a thread."""
    code = memory.read(getter_address, _GETTER_BYTES) if getter_address else None
    found = _READS_VARIABLE.search(code or b"")
    if found is None:
        return
    if found["local"]:
        yield _signed(found["local"])
        return
    kind = "initial" if found["initial"] else "dynamic"
    entry = getter_address + found.end(kind) + _signed(found[kind])  # of the global offset table
    if kind == "initial":
        yield _signed((memory.read_u64(entry) or 0).to_bytes(8, "little"))
        return
    module, place = memory.read_u64(entry) or 0, memory.read_u64(entry + 8) or 0
    for thread in threads if module else ():
        vector = memory.read_u64(thread.pthread_id + _DTV_OFFSET) or 0
        block, to_free = (memory.read_u64(vector + _DTV_ENTRY_BYTES * module + word) for word in (0, 8))
        if block and to_free == 0:
            yield block + place + _signed(found["far"] or found["near"] or b"\0") - thread.pthread_id


def _signed(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)
