"""bpf(2) and perf_event_open(2) by number, for what BCC does through slower or larger ways.

Commands, attribute layouts, constants: include/uapi/linux/bpf.h and perf_event.h of Linux 6.18, all there since 5.8.
Every function raises OSError with the kernel's errno. Returned descriptors are close-on-exec.
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
    RAW_TRACEPOINT_OPEN = 17
    BTF_LOAD = 18
    LINK_CREATE = 28
    MAP_LOOKUP_BATCH = 24


def _call(number: int, *arguments: object) -> int:
    result: int = _libc.syscall(number, *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def _bpf(command: _Command, layout: str, *values: int | bytes) -> int:
    """`layout` is that of the command's part of union bpf_attr, in letters of the struct module."""
    attribute = struct.pack(layout, *values)
    return _call(_SYSCALL_BPF, int(command), attribute, len(attribute))


def _address(data: bytes) -> int:
    """Where the bytes are, for as long as the caller keeps them."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


BPF_F_NO_PREALLOC = 1
BPF_F_MMAPABLE = 1 << 10
_BPF_ANY, _BPF_NOEXIST, _BPF_EXIST = 0, 1, 2


def map_create(
    map_type: MapType, key_bytes: int, value_bytes: int, entries: int, name: str, flags: int = 0, inner_fd: int = 0
) -> int:
    """Descriptor of a new map; inner_fd: a map like those that an ARRAY_OF_MAPS will hold."""
    sizes = key_bytes, value_bytes, entries
    return _bpf(_Command.MAP_CREATE, "IIIIIII16s", map_type, *sizes, flags, inner_fd, 0, name.encode()[:15])


def map_update(fd: int, key: bytes, value: bytes, only_new: bool = False, only_old: bool = False) -> None:
    """Sets one element; with only_new FileExistsError where there is one, with only_old FileNotFoundError without."""
    mode = _BPF_NOEXIST if only_new else _BPF_EXIST if only_old else _BPF_ANY
    _bpf(_Command.MAP_UPDATE_ELEM, "IQQQ", fd, _address(key), _address(value), mode)


def map_lookup(fd: int, key: bytes, value_bytes: int) -> bytes | None:
    """One element (of a per-CPU map: all CPUs' copies, each rounded up to 8 bytes), None where there is none."""
    value = ctypes.create_string_buffer(value_bytes)
    try:
        _bpf(_Command.MAP_LOOKUP_ELEM, "IQQQ", fd, _address(key), ctypes.addressof(value), 0)
    except FileNotFoundError:
        return None
    return value.raw


def map_delete(fd: int, key: bytes) -> None:
    """Removes one element, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        _bpf(_Command.MAP_DELETE_ELEM, "IQQQ", fd, _address(key), 0, 0)


def map_lookup_batch(fd: int, keys_address: int, values_address: int, entries: int) -> int:
    """Copies a hash map's elements to two arrays of `entries`; returns how many.

    Fewer entries than the map has room for can end in ENOSPC at a full bucket.
    """
    position = ctypes.create_string_buffer(64)  # where a further call would go on
    attribute = bytearray(_BATCH.pack(0, ctypes.addressof(position), keys_address, values_address, entries, fd, 0, 0))
    buffer = (ctypes.c_char * len(attribute)).from_buffer(attribute)
    with contextlib.suppress(FileNotFoundError):  # ENOENT: the end was reached
        _call(_SYSCALL_BPF, int(_Command.MAP_LOOKUP_BATCH), buffer, len(attribute))
    count: int = _BATCH.unpack_from(attribute)[4]
    return count


_BATCH = struct.Struct("QQQQIIQQ")  # `batch` of union bpf_attr
_LICENSE = b"GPL"
UPROBE_LINK = 48  # BPF_TRACE_UPROBE_MULTI, an attach type
_LOG_BYTES = 1 << 20
_LOG_INSTRUCTIONS, _LOG_STATISTICS = 1, 4  # BPF_LOG_LEVEL1 and _STATS, include/linux/bpf_verifier.h
VERIFIER_IS_DONE = b"\nprocessed "  # begins the last line of its log, kernel/bpf/verifier.c
_LOAD_TRIES = 10
FUNCTION_INFO_BYTES = 8  # struct bpf_func_info: u32 first instruction, u32 type


def btf_load(content: bytes) -> int:
    """Descriptor of type information, for `program_load`."""
    return _bpf(_Command.BTF_LOAD, "QQIII", _address(content), 0, len(content), 0, 0)


def program_load(
    program_type: int,
    code: bytes,
    name: str,
    btf_fd: int,
    functions: bytes,
    log: ctypes.Array[ctypes.c_char] | None = None,
    log_level: int = _LOG_INSTRUCTIONS,
    attach_type: int = 0,
) -> int:
    """Descriptor of a program the verifier accepted; `log` takes what it says (which costs time).

    log_level: BPF_LOG_* of include/linux/bpf_verifier.h; 1 is each instruction, 4 statistics alone.
    functions: a struct bpf_func_info for the program itself and each function in it, with types of `btf_fd`.
    """
    log_fields = (log_level, len(log), ctypes.addressof(log)) if log is not None else (0, 0, 0)
    head = (program_type, len(code) // 8, _address(code), _address(_LICENSE), *log_fields, 0, 0, name.encode()[:15])
    info = (btf_fd, FUNCTION_INFO_BYTES, _address(functions), len(functions) // FUNCTION_INFO_BYTES)
    values = (*head, 0, attach_type, *info)
    for _ in range(_LOAD_TRIES):  # the verifier gives up with EAGAIN when a signal is pending
        with contextlib.suppress(BlockingIOError):
            return _bpf(_Command.PROG_LOAD, "IIQQIIQII16sIIIIQI", *values)
    return _bpf(_Command.PROG_LOAD, "IIQQIIQII16sIIIIQI", *values)


def verifier_log(program_type: int, code: bytes, name: str, btf_fd: int, functions: bytes, attach_type: int = 0) -> str:
    """What the verifier says of a program it refuses: with each instruction, if all of that fits."""
    log = ctypes.create_string_buffer(_LOG_BYTES)
    for level in (_LOG_INSTRUCTIONS, _LOG_STATISTICS):
        with contextlib.suppress(OSError):
            os.close(program_load(program_type, code, name, btf_fd, functions, log, level, attach_type))
        if VERIFIER_IS_DONE in log.value:
            break
    return log.value.decode(errors="replace")


def raw_tracepoint_open(name: str, program_fd: int) -> int:
    """Attaches a program; closing the returned descriptor detaches it."""
    name_bytes = name.encode()
    return _bpf(_Command.RAW_TRACEPOINT_OPEN, "QI", _address(name_bytes), program_fd)


_IOC_ENABLE, _IOC_SET_BPF = 0x2400, 0x40042408  # PERF_EVENT_IOC_*
_FLAG_CLOSE_ON_EXEC = 8
_ATTRIBUTE_SIZE_VER5 = 112
# struct perf_event_attr: the bit-field after read_format, from its lowest bit on.
_ATTRIBUTE_SAMPLE_ID_ALL, _ATTRIBUTE_CLOCK_ID, _SAMPLE_TIME = 1 << 18, 1 << 25, 1 << 2
_ATTRIBUTE_MMAP, _ATTRIBUTE_FREQUENCY, _ATTRIBUTE_WATERMARK, _ATTRIBUTE_MMAP2 = 1 << 8, 1 << 10, 1 << 14, 1 << 23
_TYPE_SOFTWARE, _COUNT_SW_DUMMY = 1, 9
_FORMAT_TIMES = 3  # PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING


def _perf_event_of_cpu(
    cpu: int, kind: tuple[int, int], flags: int, period: int = 0, sample_type: int = 0, wakeup: int = 0, clock: int = 0
) -> int:
    """An event (type, config) for every task on one CPU; what the other values mean is in `flags`."""
    head = (kind[0], _ATTRIBUTE_SIZE_VER5, kind[1], period, sample_type, _FORMAT_TIMES, flags, wakeup)
    attribute = struct.pack("<IIQQQQQI40xi", *head, clock).ljust(_ATTRIBUTE_SIZE_VER5, b"\0")
    return _call(_SYSCALL_PERF_EVENT_OPEN, attribute, -1, cpu, -1, _FLAG_CLOSE_ON_EXEC)


def perf_event_open(kind: tuple[int, int], cpu: int, program_fd: int, rate_hz: int, period: int = 0) -> int:
    """An event (type, config) for every task on one CPU that runs a program; closing the descriptor ends it.

    It runs about rate_hz times a second, or with a period each so many events.
    """
    flags, value = (0, period) if period else (_ATTRIBUTE_FREQUENCY, rate_hz)
    fd = _perf_event_of_cpu(cpu, kind, flags, value)
    fcntl.ioctl(fd, _IOC_SET_BPF, program_fd)
    fcntl.ioctl(fd, _IOC_ENABLE, 0)
    return fd


def perf_event_try(kind: tuple[int, int], cpu: int) -> None:
    """Opens an event (type, config) and closes it. OSError says why it cannot be counted."""
    os.close(_perf_event_of_cpu(cpu, kind, 0))


def perf_event_times(fd: int) -> tuple[int, int]:
    """How long an event was wanted and how long it was counted, in nanoseconds: a CPU has so many counters only."""
    _, enabled_ns, running_ns = struct.unpack("<QQQ", os.read(fd, 24))
    return enabled_ns, running_ns


def uprobe_link(program_fd: int, path: bytes, cookie_of_offset: dict[int, int], is_return: bool) -> int:
    """The same at many places of a file; the program, loaded for UPROBE_LINK, is given the cookie of each. Linux 6.6.

    `link_create.uprobe_multi` of union bpf_attr.
    """
    offsets = struct.pack(f"<{len(cookie_of_offset)}Q", *cookie_of_offset)
    cookies = struct.pack(f"<{len(cookie_of_offset)}Q", *cookie_of_offset.values())
    places = _address(path), _address(offsets), 0, _address(cookies), len(cookie_of_offset), int(is_return), 0
    return _bpf(_Command.LINK_CREATE, "IIIIQQQQIII4x", program_fd, 0, UPROBE_LINK, 0, *places)


def uprobe_open(kind: tuple[int, int], cpu: int, path: bytes, offset: int, program_fd: int) -> int:
    """Runs a program where code of the file is executed, or returned from; closing the descriptor ends it.

    kind: (the type of the uprobe PMU, its config). In every process that maps the file, on every CPU: the one that is
    given matters to perf's own samples only. uprobe_path and probe_offset are config1 and config2 of perf_event_attr.
    """
    head = struct.pack("<IIQ40xQQ", kind[0], _ATTRIBUTE_SIZE_VER5, kind[1], _address(path), offset)
    attribute = head.ljust(_ATTRIBUTE_SIZE_VER5, b"\0")
    fd = _call(_SYSCALL_PERF_EVENT_OPEN, attribute, -1, cpu, -1, _FLAG_CLOSE_ON_EXEC)
    try:
        fcntl.ioctl(fd, _IOC_SET_BPF, program_fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def mapping_event_open(cpu: int) -> int:
    """An event without samples; its buffer takes a PERF_RECORD_MMAP2 for every executable mapping made on one CPU.

    Each record is more bytes than the watermark, so it wakes a poll of the descriptor. It ends with its
    CLOCK_MONOTONIC time.
    """
    flags = _ATTRIBUTE_MMAP | _ATTRIBUTE_MMAP2 | _ATTRIBUTE_WATERMARK | _ATTRIBUTE_SAMPLE_ID_ALL | _ATTRIBUTE_CLOCK_ID
    kind, clock = (_TYPE_SOFTWARE, _COUNT_SW_DUMMY), time.CLOCK_MONOTONIC
    return _perf_event_of_cpu(cpu, kind, flags, sample_type=_SAMPLE_TIME, wakeup=1, clock=clock)
