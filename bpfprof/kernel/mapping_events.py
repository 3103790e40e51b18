"""New executable memory of every process, as it is mapped: the kernel's perf side band in, `MappingEvent`s out.

One perf event a CPU that counts nothing (PERF_COUNT_SW_DUMMY), with a buffer for its side-band records. One is written
by mmap (so by dlopen and exec too) and by mprotect, when the outcome is executable; none by mremap. A task that begins
or ends writes one as well (PERF_RECORD_FORK and EXIT: perf_event_task_match(), kernel/events/core.c), which is skipped.

Layouts, in include/uapi/linux/perf_event.h of Linux 6.18: struct perf_event_mmap_page (the buffer's first page), struct
perf_event_header, and the records PERF_RECORD_LOST and PERF_RECORD_MMAP2 of enum perf_event_type.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Container, Iterable
from dataclasses import field

from bpfprof.dataclass import dataclass
from bpfprof.kernel import bpf_syscall
from bpfprof.kernel.attach import cpus
from bpfprof.kernel.refusals import refusal
from bpfprof.model.ids import Pid, RuntimeAddress

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
RING_BYTES = 16 * _PAGE_BYTES  # a power of two of pages: perf_mmap(), kernel/events/core.c

_HEAD_WORD, _TAIL_WORD = 1024 // 8, 1032 // 8  # perf_event_mmap_page.data_head, .data_tail
_HEADER = struct.Struct("<IHH")  # perf_event_header: type, misc, size
_RECORD_LOST, _RECORD_MMAP2 = 2, 10
_LOST = struct.Struct("<8xQQ")  # after the header: id, lost
_MMAP2 = struct.Struct("<8xI4xQQ16xQ16x")  # pid, addr, len, ino; up to the path
_TIME = struct.Struct("<Q")


@dataclass(frozen=True)
class MappingEvent:
    """Executable memory as it was right after it was mapped or made executable; it may be gone since.

    The range is the whole mapping's: the kernel merges neighbours before it tells. What the kernel says of the file
    beyond that there is one is not taken: on overlayfs it can be the layer's file, while /proc/PID/maps has the right
    one: commit fa4f4bae893f ("perf/core: Fix MMAP2 event device with backing files") (in v6.18).
    """

    pid: Pid
    start: RuntimeAddress
    size_bytes: int
    inode: int
    time_ns: int = field(default=0, compare=False)  # CLOCK_MONOTONIC

    @property
    def is_file(self) -> bool:
        """Whether a file is mapped, deleted or in memory only; not anonymous memory or the vdso."""
        return self.inode != 0


def parse_records(data: bytes, wanted: Container[int] | None = None) -> tuple[list[MappingEvent], int]:
    """The events of whole records in a row, in their order, and how many records are known to be lost.

    With `wanted`, the events of these pids only. What has an impossible size ends the parsing and counts as one lost
    record; other kinds of records are skipped.
    """
    events: list[MappingEvent] = []
    lost_count = position = 0
    while position < len(data):
        rest = len(data) - position
        kind, _, size = _HEADER.unpack_from(data, position) if rest >= _HEADER.size else (0, 0, 0)
        if not _HEADER.size <= size <= rest:
            return events, lost_count + 1
        if kind == _RECORD_MMAP2 and size >= _MMAP2.size:
            pid, start, length, inode = _MMAP2.unpack_from(data, position)
            if wanted is None or pid in wanted:
                (time_ns,) = _TIME.unpack_from(data, position + size - _TIME.size)  # sample_id has the time only
                events.append(MappingEvent(Pid(pid), RuntimeAddress(start), length, inode, time_ns))
        elif kind == _RECORD_MMAP2:
            lost_count += 1
        elif kind == _RECORD_LOST:
            lost_count += _LOST.unpack_from(data, position)[1] if size >= _LOST.size else 1
        position += size
    return events, lost_count


class _Ring:
    """The reading end of one event's buffer; owns the descriptor."""

    __slots__ = ("_map", "fd", "tail", "words")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        try:
            # Writable: the kernel then keeps what lies between data_tail and data_head.
            self._map = mmap.mmap(fd, _PAGE_BYTES + RING_BYTES)
        except OSError:
            os.close(fd)
            raise
        self.words = memoryview(self._map).cast("Q")
        self.tail = self.words[_TAIL_WORD]

    def take(self) -> bytes | None:
        """All that is there; None, with nothing kept, when the kernel's position cannot be.

        The order that the kernel asks for is data_head, then the data, then data_tail (perf_output_put_handle() in
        kernel/events/ring_buffer.c). The interpreter does them one after another, and x86-64 moves no load before
        another and no store before a load.
        """
        head = self.words[_HEAD_WORD]
        pending, start = head - self.tail, self.tail % RING_BYTES
        data = None
        if 0 <= pending <= RING_BYTES:
            first = _PAGE_BYTES + start
            before_wrap = min(pending, RING_BYTES - start)
            data = self._map[first : first + before_wrap]
            data += self._map[_PAGE_BYTES : _PAGE_BYTES + pending - before_wrap]
        self.words[_TAIL_WORD] = self.tail = head
        return data

    def close(self) -> None:
        self.words.release()
        self._map.close()
        os.close(self.fd)


class MappingEvents:
    """What is mapped on the CPUs that were online when this was opened; there must be no other reader.

    Records of one CPU come in their order; those of a thread that migrated, or of several CPUs, in none.
    """

    def __init__(self, fds: Iterable[int]) -> None:
        """Takes over descriptors with a perf buffer of RING_BYTES; UnsupportedError when the kernel refuses one."""
        self.lost_count = 0
        """Records that did not fit, or could not be read. The kernel tells with the CPU's next record that fits."""
        self._rings: list[_Ring] = []
        try:
            for fd in fds:
                self._rings.append(_Ring(fd))
        except OSError as error:
            self.close()
            raise refusal("the perf event of new mappings", error) from error

    @classmethod
    def open(cls) -> MappingEvents:
        """Begins to listen, on every CPU that is online. Raises UnsupportedError when the kernel refuses."""
        return cls(bpf_syscall.mapping_event_open(cpu) for cpu in cpus("online"))

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors for an epoll or poll, one a CPU; a record makes its CPU's readable, of a skipped kind too.

        Every look at a descriptor takes the readiness away (perf_poll(), kernel/events/core.c). So `drain()` once after
        they were added to an epoll, as what came before is not reported, and after each report, as it is not repeated.
        A record that does not fit makes nothing readable.
        """
        return tuple(ring.fd for ring in self._rings)

    def drain(self, wanted: Container[int] | None = None) -> list[MappingEvent]:
        """Everything since the last call, or of it what the pids in `wanted` mapped; never blocks.

        The rest is dropped before an event is made of it, which is what costs.
        """
        events: list[MappingEvent] = []
        for ring in self._rings:
            if ring.words[_HEAD_WORD] == ring.tail:
                continue
            data = ring.take()
            found, lost_count = parse_records(data, wanted) if data is not None else ([], 1)
            events += found
            self.lost_count += lost_count
        return events

    def close(self) -> None:
        """Stops listening; what was not drained is gone. Again is fine."""
        while self._rings:
            self._rings.pop().close()
