"""BPF ring buffers and the thread table read as numpy arrays, without a callback per record.

Layout (kernel/bpf/ringbuf.c, Documentation/bpf/ringbuf.rst): one page with the consumer position, one with the producer
position, then the data, mapped twice in a row so that no record wraps. A record has an 8-byte header
{u32 length | busy << 31 | discarded << 30, u32 page offset} and is padded to 8 bytes.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator

import numpy as np

from bpfprof import abi
from bpfprof import array_types as npt
from bpfprof.abi.dtypes import THREAD_DTYPE
from bpfprof.kernel.bpf_syscall import map_lookup_batch
from bpfprof.kernel.tables import Tables

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_HEADER_BYTES = 8
_BUSY, _DISCARDED = 1 << 31, 1 << 30


class RingBuffer:
    """The reading end of one BPF_MAP_TYPE_RINGBUF; there must be no other reader."""

    def __init__(self, map_fd: int, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        data_map = mmap.mmap(map_fd, _PAGE_BYTES + 2 * size_bytes, prot=mmap.PROT_READ, offset=_PAGE_BYTES)
        self._consumer = np.frombuffer(mmap.mmap(map_fd, _PAGE_BYTES), "<u8", 1)
        self._producer = np.frombuffer(data_map, "<u8", 1)
        self._bytes = np.frombuffer(data_map, "u1", 2 * size_bytes, _PAGE_BYTES)

    def _pending(self) -> tuple[int, int, int]:
        consumer, producer = int(self._consumer[0]), int(self._producer[0])
        return consumer, consumer & (self._size_bytes - 1), producer - consumer

    @property
    def fullness(self) -> float:
        """The part of it that waits to be drained."""
        return self._pending()[2] / self._size_bytes

    def drain_fixed(self, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
        """Takes all finished records, which must all be of `dtype`, as one array."""
        consumer, start, pending = self._pending()
        stride = _HEADER_BYTES + dtype.itemsize
        rows = self._bytes[start : start + pending // stride * stride].reshape(-1, stride)
        busy = rows[:, 3] & 0x80
        if busy.any():
            rows = rows[: int(busy.argmax())]
        records = rows[:, _HEADER_BYTES:].copy().view(dtype).reshape(-1)  # a copy: the kernel writes there again
        self._consumer[0] = consumer + len(rows) * stride
        return records

    def drain_records(self) -> Iterator[memoryview]:
        """Takes all finished records of any size, in order. The space is given back before the first is yielded."""
        consumer, start, pending = self._pending()
        data = memoryview(self._bytes[start : start + pending].tobytes())
        spans, position = [], 0
        while position < pending:
            (header,) = struct.unpack_from("<I", data, position)
            if header & _BUSY:
                break
            length = header & ~(_BUSY | _DISCARDED)
            if not header & _DISCARDED:
                spans.append((position + _HEADER_BYTES, position + _HEADER_BYTES + length))
            position += _HEADER_BYTES + (length + 7 & ~7)
        self._consumer[0] = consumer + position
        return (data[begin:end] for begin, end in spans)


class ThreadTable:
    """The table of the threads that the kernel side watches."""

    def __init__(self, tables: Tables) -> None:
        self._fd = tables.fds["threads"]
        self._tids = np.empty(abi.CONSTANTS["BP_MAX_THREADS"], "<u4")  # kept: the kernel clears new pages at some cost
        self._records = np.empty(len(self._tids), THREAD_DTYPE)

    def read(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.void]]:
        """(tids, records of THREAD_DTYPE) as they are now."""
        count = map_lookup_batch(self._fd, self._tids.ctypes.data, self._records.ctypes.data, len(self._tids))
        return self._tids[:count].copy(), self._records[:count].copy()
