"""Arguments of a call that a thread sleeps in, read from outside, as the kernel side has them when a wait begins.

note_syscall(), note_parked(), note_lock() and note_range() of ebpf/ say what each is; here the thread sleeps already.
"""

from __future__ import annotations

from bpfprof import abi
from bpfprof.account.reasons import FUTEX_CALLS
from bpfprof.cpython.frame_values import VALUES_LAYOUTS
from bpfprof.cpython.layout import Layout
from bpfprof.model.syscalls import syscall_numbers
from bpfprof.proc.memory import Memory
from bpfprof.proc.tasks import BlockedSyscall

Arguments = tuple[int, int, int]

_POLLED, _PARKED, _RANGE = (1 << abi.CONSTANTS[f"BP_{name}_BIT"] for name in ("POLLED", "PARKED", "RANGE"))
_POLLED_MASK = (1 << abi.CONSTANTS["BP_POLLED_BITS"]) - 1
_ADDRESS_MASK = 0x00FFFFFFFFFFFFFC
_POLLS, _FCNTL = syscall_numbers("poll", "ppoll"), syscall_numbers("fcntl")
_LOCK_WAITS = (7, 38)  # F_SETLKW, F_OFD_SETLKW: include/uapi/asm-generic/fcntl.h
_RANGE_BEGIN = 8  # of struct flock: l_start
# struct wait_entry on the thread's own stack, Python/parking_lot.c (v3.14.0): park_arg, addr, sema.
_PARKS_FROM, _OWN_STACK_BYTES, _ADDRESS_BEFORE, _IS_PARKED = (3, 14), 4096, 8, 3


def call_arguments(call: BlockedSyscall, memory: Memory, layout: Layout | None, frame: int) -> Arguments:
    """`frame`: the address of the innermost Python frame, 0: none."""
    first, second, third = call.args[:3]
    if call.number in _POLLS and second == 1:
        polled = memory.read_u64(first)
        return (first if polled is None else _POLLED | polled & _POLLED_MASK), second, third
    if call.number in _FCNTL and second in _LOCK_WAITS:
        begin = memory.read_u64(third + _RANGE_BEGIN)
        return first, second, third if begin is None else begin & (_RANGE - 1) | _RANGE
    if call.number not in FUTEX_CALLS or layout is None:
        return first, second, third
    if layout.version >= _PARKS_FROM and 0 <= first - call.stack_pointer < _OWN_STACK_BYTES:
        mutex = memory.read_u64(first - _ADDRESS_BEFORE) or 0
        state = memory.read(mutex, 1) if mutex >> 12 else None
        if state and state[0] & _IS_PARKED == _IS_PARKED:
            first, second = mutex, second | _PARKED
    known = VALUES_LAYOUTS.get(layout.version) if frame else None
    third = (memory.read_u64(frame + known.frame_values) or 0) & _ADDRESS_MASK if known else 0
    return first, second, third
