"""Where a thread keeps its thread state: an interpreter's memory in, the way there from the thread pointer out.

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
from bpfprof.dataclass import dataclass
from bpfprof.proc.memory import ProcessMemory

# glibc x86-64: specific_1stblock in struct pthread, entries {seq, data}, and the pointers to such blocks behind it;
# nptl/descr.h (2.36), the same in 2.17 to 2.42.
_TSD_FIRST_BLOCK = 0x310
_TSD_ENTRY_BYTES = 16
_TSD_DATA_OFFSET = 8
_TSD_BLOCK_KEYS = 32  # PTHREAD_KEY_2NDLEVEL_SIZE
_TSD_BLOCKS = _TSD_FIRST_BLOCK + _TSD_ENTRY_BYTES * _TSD_BLOCK_KEYS
_KEY_LIMIT = 1024  # PTHREAD_KEYS_MAX, bits/local_lim.h; musl has 128
_TRIED_KEYS = 128  # all of musl's; programs seldom have more
_MUSL_TSD = 0x80  # tsd in struct pthread of x86-64, src/internal/pthread_impl.h (musl 1.2.0 to 1.2.5)

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
_NO_KEY = "Python's thread-specific key leads to no thread state (an unknown C library?)"
# The dynamic thread vector is the second word of struct pthread. glibc x86-64: tcbhead_t, sysdeps/x86_64/nptl/tls.h;
# entries {val, to_free}, sysdeps/generic/dl-dtv.h (2.26 and later), of which number -1 holds their count. Static blocks
# are never freed. musl: entries are pointers, and number 0 is the count; src/internal/pthread_impl.h (1.2.0 to 1.2.5).
_DTV_OFFSET = 8
_GLIBC_DTV, _MUSL_DTV = (16, -16), (8, 0)  # bytes of an entry, place of the count
_MODULE_LIMIT = 1 << 16


@dataclass(frozen=True)
class ThreadSlot:
    """Offsets to load from, the first from the thread pointer, each of the others from what was loaded before it.

    With `module` the first load gives a dynamic thread vector, which a thread may still have without that entry.
    """

    offsets: tuple[int, ...]
    module: int = 0
    count_at: int = 0

    def read(self, memory: ProcessMemory, thread_pointer: int) -> int | None:
        """The thread state's address, 0: the thread has none. None: it cannot be read."""
        address: int | None = memory.read_u64(thread_pointer + self.offsets[0])
        if self.module and address and (memory.read_u64(address + self.count_at) or 0) < self.module:
            return 0
        for offset in self.offsets[1:]:
            if not address or address == _UNALLOCATED:
                return address and 0
            address = memory.read_u64(address + offset)
        return address

    def kernel_values(self) -> dict[str, int]:
        """Fields of bp_process."""
        first, second, third = (*self.offsets, 0, 0)[:3]
        values = {"thread_slot": first, "slot_loads": len(self.offsets) - 1, "slot_second": second}
        return {**values, "slot_third": third, "tls_module": self.module, "tls_count": self.count_at}


_UNALLOCATED = (1 << 64) - 1  # TLS_DTV_UNALLOCATED, elf/dl-tls.c


def find_thread_slot(
    memory: ProcessMemory, runtime_address: int, layout: Layout, getter_address: int, threads: list[ThreadStateRef]
) -> ThreadSlot | Unresolved | None:
    """`getter_address` is that of PyGILState_GetThisThreadState(), 0: unknown. None: the interpreter is starting."""
    if layout.runtime_tss != NONE:
        tss = memory.read(runtime_address + layout.runtime_tss, 8)
        if tss is None or tss[:4] != b"\1\0\0\0":
            return None
        key = int.from_bytes(tss[4:], "little")
        candidates, otherwise = _slots(range(key, min(key + 1, _KEY_LIMIT))), _NO_KEY
    elif layout.version < (3, 7):
        candidates, otherwise = _slots(range(_TRIED_KEYS)), _NO_KEY
    else:
        candidates = _variable_offsets(memory, getter_address, threads)
        otherwise = "Python's thread-local variable was not found"
    # On x86-64 pthread_self() is the address of struct pthread, and the fs base: with glibc and with musl.
    for slot in candidates:
        if any(slot.read(memory, thread.pthread_id) == thread.address for thread in threads):
            return slot
    return Unresolved(otherwise)


def _slots(keys: range) -> Iterator[ThreadSlot]:
    for key in keys:
        block, entry = divmod(key, _TSD_BLOCK_KEYS)
        data = _TSD_ENTRY_BYTES * entry + _TSD_DATA_OFFSET
        yield ThreadSlot((_TSD_BLOCKS + 8 * block, data) if block else (_TSD_FIRST_BLOCK + data,))
        yield ThreadSlot((_MUSL_TSD, 8 * key))


def _variable_offsets(
    memory: ProcessMemory, getter_address: int, threads: list[ThreadStateRef]
) -> Iterator[ThreadSlot]:
    """Ways to `_Py_tss_gilstate`: a distance where it is in the static block of a thread, else through its vector."""
    code = memory.read(getter_address, _GETTER_BYTES) if getter_address else None
    found = _READS_VARIABLE.search(code or b"")
    if found is None:
        return
    if found["local"]:
        yield ThreadSlot((_signed(found["local"]),))
        return
    kind = "initial" if found["initial"] else "dynamic"
    entry = getter_address + found.end(kind) + _signed(found[kind])  # of the global offset table
    if kind == "initial":
        yield ThreadSlot((_signed(((memory.read_u64(entry) or 0) & 0xFFFFFFFF).to_bytes(4, "little")),))
        return
    module, place = memory.read_u64(entry) or 0, memory.read_u64(entry + 8) or 0
    place += _signed(found["far"] or found["near"] or b"\0")
    if not 0 < module < _MODULE_LIMIT or not 0 <= place < 1 << 31:
        return
    for thread in threads:
        vector = memory.read_u64(thread.pthread_id + _DTV_OFFSET) or 0
        block, to_free = (memory.read_u64(vector + _GLIBC_DTV[0] * module + word) for word in (0, 8))
        distance = (block or 0) + place - thread.pthread_id
        if block and to_free == 0 and -(1 << 31) <= distance < 0:
            yield ThreadSlot((distance,))
    for entry_bytes, count_at in (_GLIBC_DTV, _MUSL_DTV):
        yield ThreadSlot((_DTV_OFFSET, entry_bytes * module, place), module, count_at)


def _signed(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)
