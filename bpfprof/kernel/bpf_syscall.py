"""bpf(2) and perf_event_open(2) by number, for what BCC does through slower or larger ways.

Commands, attribute layouts, constants: include/uapi/linux/bpf.h and perf_event.h of Linux 6.18, all there since 5.8.
Every function raises OSError with the kernel's errno.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
import time
from enum import IntEnum

_SYSCALL_BPF = 321  # arch/x86/entry/syscalls/syscall_64.tbl
_SYSCALL_PERF_EVENT_OPEN = 298
_libc = ctypes.CDLL(None, use_errno=True)
_ATTRIBUTE_BYTES = 160


class MapType(IntEnum):
    """enum bpf_map_type, as far as used."""

    HASH = 1
    ARRAY = 2
    PERCPU_ARRAY = 6
    ARRAY_OF_MAPS = 12
    RINGBUF = 27


class _Command(IntEnum):
    MAP_CREATE = 0
    MAP_LOOKUP_ELEM = 1
    MAP_UPDATE_ELEM = 2
    MAP_DELETE_ELEM = 3
    PROG_LOAD = 5
    OBJ_GET_INFO_BY_FD = 15
    RAW_TRACEPOINT_OPEN = 17
    BTF_LOAD = 18
    MAP_LOOKUP_BATCH = 24
    ENABLE_STATS = 32


def _call(number: int, *arguments: object) -> int:
    result: int = _libc.syscall(number, *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def _bpf(command: _Command, attribute: bytes) -> bytes:
    buffer = ctypes.create_string_buffer(attribute, _ATTRIBUTE_BYTES)
    _call(_SYSCALL_BPF, int(command), buffer, max(len(attribute), 72))
    return buffer.raw


def _bpf_fd(command: _Command, attribute: bytes) -> int:
    buffer = ctypes.create_string_buffer(attribute, _ATTRIBUTE_BYTES)
    return _call(_SYSCALL_BPF, int(command), buffer, max(len(attribute), 72))


BPF_F_NO_PREALLOC = 1
BPF_F_MMAPABLE = 1 << 10
_BPF_ANY, _BPF_NOEXIST, _BPF_EXIST = 0, 1, 2


def map_create(
    map_type: MapType, key_bytes: int, value_bytes: int, entries: int, name: str, flags: int = 0, inner_fd: int = 0
) -> int:
    """File descriptor of a new map (close-on-exec); inner_fd: a map like those that an ARRAY_OF_MAPS will hold."""
    return _bpf_fd(
        _Command.MAP_CREATE,
        struct.pack("<IIIIIII16s", map_type, key_bytes, value_bytes, entries, flags, inner_fd, 0, name.encode()[:15]),
    )


def map_update(fd: int, key: bytes, value: bytes, only_new: bool = False, only_old: bool = False) -> None:
    """Sets one element; with only_new FileExistsError where there is one, with only_old FileNotFoundError without."""
    mode = _BPF_NOEXIST if only_new else _BPF_EXIST if only_old else _BPF_ANY
    key_buffer, value_buffer = (
        ctypes.create_string_buffer(key, len(key)),
        ctypes.create_string_buffer(value, len(value)),
    )
    addresses = ctypes.addressof(key_buffer), ctypes.addressof(value_buffer)
    _bpf(_Command.MAP_UPDATE_ELEM, struct.pack("<IxxxxQQQ", fd, *addresses, mode))


def map_lookup(fd: int, key: bytes, value_bytes: int) -> bytes | None:
    """One element (of a per-CPU map: all CPUs' copies, each rounded up to 8 bytes), None where there is none."""
    key_buffer, value = ctypes.create_string_buffer(key, len(key)), ctypes.create_string_buffer(value_bytes)
    try:
        _bpf(
            _Command.MAP_LOOKUP_ELEM,
            struct.pack("<IxxxxQQQ", fd, ctypes.addressof(key_buffer), ctypes.addressof(value), 0),
        )
    except FileNotFoundError:
        return None
    return value.raw


def map_delete(fd: int, key: bytes) -> None:
    """Removes one element; none there is fine."""
    key_buffer = ctypes.create_string_buffer(key, len(key))
    try:
        _bpf(_Command.MAP_DELETE_ELEM, struct.pack("<IxxxxQ", fd, ctypes.addressof(key_buffer)))
    except FileNotFoundError:
        return


def map_lookup_batch(fd: int, keys_address: int, values_address: int, entries: int) -> int:
    """Copies a hash map's elements to two arrays of `entries`; returns how many.

    Fewer entries than the map has room for can end in ENOSPC at a full bucket.
    """
    out_batch = ctypes.create_string_buffer(64)
    attribute = struct.pack(
        "<QQQQIIQQ", 0, ctypes.addressof(out_batch), keys_address, values_address, entries, fd, 0, 0
    )
    buffer = ctypes.create_string_buffer(attribute, _ATTRIBUTE_BYTES)
    with contextlib.suppress(FileNotFoundError):  # ENOENT: the end was reached
        _call(_SYSCALL_BPF, int(_Command.MAP_LOOKUP_BATCH), buffer, len(attribute))
    count: int = struct.unpack_from("<I", buffer.raw, 32)[0]
    return count


_LICENSE = ctypes.create_string_buffer(b"GPL")
_LOG_BYTES = 1 << 20
_LOAD_TRIES = 10
FUNCTION_INFO_BYTES = 8  # struct bpf_func_info: u32 first instruction, u32 type


def btf_load(content: bytes) -> int:
    """Descriptor of type information, for `program_load`."""
    buffer = ctypes.create_string_buffer(content, len(content))
    return _bpf_fd(_Command.BTF_LOAD, struct.pack("<QQIII", ctypes.addressof(buffer), 0, len(content), 0, 0))


def program_load(
    program_type: int,
    code: bytes,
    name: str,
    btf_fd: int,
    functions: bytes,
    log: ctypes.Array[ctypes.c_char] | None = None,
) -> int:
    """Descriptor of a program the verifier accepted; `log` takes what it says (which costs time).

    functions: a struct bpf_func_info for the program itself and each function in it, with types of `btf_fd`.
    """
    instructions, info = (
        ctypes.create_string_buffer(code, len(code)),
        ctypes.create_string_buffer(functions, len(functions)),
    )
    addresses = ctypes.addressof(instructions), ctypes.addressof(_LICENSE)
    log_part = (1, len(log), ctypes.addressof(log)) if log is not None else (0, 0, 0)
    attribute = struct.pack(
        "<IIQQIIQII16sIIIIQI",
        *(program_type, len(code) // 8, *addresses, *log_part, 0, 0, name.encode()[:15], 0, 0),
        *(btf_fd, FUNCTION_INFO_BYTES, ctypes.addressof(info), len(functions) // FUNCTION_INFO_BYTES),
    )
    for _ in range(_LOAD_TRIES):  # the verifier gives up with EAGAIN when a signal is pending
        try:
            return _bpf_fd(_Command.PROG_LOAD, attribute)
        except BlockingIOError:
            continue
    return _bpf_fd(_Command.PROG_LOAD, attribute)


def verifier_log(program_type: int, code: bytes, name: str, btf_fd: int, functions: bytes) -> str:
    """What the verifier says of a program it refuses."""
    log = ctypes.create_string_buffer(_LOG_BYTES)
    with contextlib.suppress(OSError):
        os.close(program_load(program_type, code, name, btf_fd, functions, log))
    return log.value.decode(errors="replace")


def raw_tracepoint_open(name: str, program_fd: int) -> int:
    """Attaches a program; closing the returned descriptor detaches it."""
    name_buffer = ctypes.create_string_buffer(name.encode())
    return _bpf_fd(_Command.RAW_TRACEPOINT_OPEN, struct.pack("<QI", ctypes.addressof(name_buffer), program_fd))


def enable_run_time_statistics() -> int:
    """The kernel measures every program's run time while the returned descriptor is open."""
    return _bpf_fd(_Command.ENABLE_STATS, struct.pack("<I", 0))


class ProgramInfo(tuple[int, int, int]):
    """(run_time_ns, run_count, verified_instructions) of a program, from struct bpf_prog_info."""

    @classmethod
    def of(cls, program_fd: int) -> ProgramInfo:
        info = ctypes.create_string_buffer(232)
        _bpf(_Command.OBJ_GET_INFO_BY_FD, struct.pack("<IIQ", program_fd, 232, ctypes.addressof(info)))
        run_time_ns, run_count = struct.unpack_from("<QQ", info.raw, 192)
        return cls((run_time_ns, run_count, struct.unpack_from("<I", info.raw, 216)[0]))


_IOC_ENABLE, _IOC_SET_BPF = 0x2400, 0x40042408  # PERF_EVENT_IOC_*
_FLAG_CLOSE_ON_EXEC = 8
_ATTRIBUTE_SIZE_VER5 = 112
# struct perf_event_attr: the bit-field after read_format, from its lowest bit on.
_ATTRIBUTE_SAMPLE_ID_ALL, _ATTRIBUTE_CLOCK_ID, _SAMPLE_TIME = 1 << 18, 1 << 25, 1 << 2
_ATTRIBUTE_MMAP, _ATTRIBUTE_FREQUENCY, _ATTRIBUTE_WATERMARK, _ATTRIBUTE_MMAP2 = 1 << 8, 1 << 10, 1 << 14, 1 << 23
_TYPE_SOFTWARE, _COUNT_SW_DUMMY = 1, 9


def _perf_event_of_cpu(
    event_type: int,
    config: int,
    period: int,
    flags: int,
    cpu: int,
    wakeup: int = 0,
    sample_type: int = 0,
    clock: int = 0,
) -> int:
    """A close-on-exec event for every task on one CPU; what `period`, `wakeup` and `clock` mean is in `flags`."""
    head = (event_type, _ATTRIBUTE_SIZE_VER5, config, period, sample_type, 0, flags, wakeup)
    attribute = struct.pack("<IIQQQQQI40xi", *head, clock).ljust(_ATTRIBUTE_SIZE_VER5, b"\0")
    buffer = ctypes.create_string_buffer(attribute, _ATTRIBUTE_SIZE_VER5)
    return _call(_SYSCALL_PERF_EVENT_OPEN, buffer, -1, cpu, -1, _FLAG_CLOSE_ON_EXEC)


def perf_event_open(event_type: int, config: int, rate_hz: int, cpu: int, program_fd: int) -> int:
    """A sampling event for every task on one CPU that runs a program; closing the descriptor ends it."""
    fd = _perf_event_of_cpu(event_type, config, rate_hz, _ATTRIBUTE_FREQUENCY, cpu)
    fcntl.ioctl(fd, _IOC_SET_BPF, program_fd)
    fcntl.ioctl(fd, _IOC_ENABLE, 0)
    return fd


def mapping_event_open(cpu: int, wakeup_bytes: int) -> int:
    """An event without samples; its buffer takes a PERF_RECORD_MMAP2 for every executable mapping made on one CPU.

    A poll of the descriptor wakes whenever more than `wakeup_bytes` came. A record ends with its CLOCK_MONOTONIC time.
    """
    flags = _ATTRIBUTE_MMAP | _ATTRIBUTE_MMAP2 | _ATTRIBUTE_WATERMARK | _ATTRIBUTE_SAMPLE_ID_ALL | _ATTRIBUTE_CLOCK_ID
    sampling = (_SAMPLE_TIME, time.CLOCK_MONOTONIC)
    return _perf_event_of_cpu(_TYPE_SOFTWARE, _COUNT_SW_DUMMY, 0, flags, cpu, wakeup_bytes, *sampling)
