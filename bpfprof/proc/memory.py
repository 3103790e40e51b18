"""The memory of a process, by /proc/PID/mem or in a copy: addresses in, bytes out, None where nothing can be read."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

from bpfprof.errors import TargetError
from bpfprof.model.ids import Pid, RuntimeAddress

READ_LIMIT_BYTES = 1 << 20
# User space ends below 2^56 with five-level page tables (Documentation/arch/x86/x86_64/mm.rst, Linux 6.6).
_ADDRESS_LIMIT = 1 << 56


class Memory(ABC):
    """Reads that are the same wherever the bytes come from."""

    __slots__ = ()

    def read(self, address: int, size: int) -> bytes | None:
        """Exactly `size` bytes; None if any of them is unreadable or `size` is above READ_LIMIT_BYTES."""
        data = self.read_up_to(address, size)
        return data if len(data) == size else None

    @abstractmethod
    def read_up_to(self, address: int, size: int) -> bytes:
        """As many of `size` bytes as are readable from `address` on; b"" if none is."""

    def read_u64(self, address: int) -> int | None:
        data = self.read(address, 8)
        return None if data is None else int.from_bytes(data, "little")

    def read_pointer(self, address: int) -> RuntimeAddress | None:
        """A null pointer is 0, not a miss."""
        value = self.read_u64(address)
        return None if value is None else RuntimeAddress(value)


class CopiedMemory(Memory):
    """What was copied of a process's memory: (address, bytes) each. They may overlap."""

    __slots__ = ("_copies",)

    def __init__(self, copies: list[tuple[int, bytes]]) -> None:
        self._copies = copies

    def read_up_to(self, address: int, size: int) -> bytes:
        """As many of `size` bytes as were copied from `address` on."""
        found = (data[address - start :][: max(0, size)] for start, data in self._copies if start <= address)
        return max(found, key=len, default=b"")


class ProcessMemory(Memory):
    """Keeps one descriptor on /proc/PID/mem. It stays with the address space it was opened on, also after an exec."""

    __slots__ = ("_fd",)

    def __init__(self, pid: Pid) -> None:
        """TargetError when there is no such process or its memory may not be read."""
        self._fd = -1
        try:
            self._fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise TargetError(f"the memory of process {pid} cannot be read: {error.strerror}") from error

    def __enter__(self) -> ProcessMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Reads after this are misses."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read_up_to(self, address: int, size: int) -> bytes:
        """As many of `size` bytes as are readable from `address` on; b"" if none is."""
        # A read that meets an unmapped page returns what came before it: mem_rw(), fs/proc/base.c (Linux 6.1).
        if not 0 < address < _ADDRESS_LIMIT or not 0 < size <= READ_LIMIT_BYTES or self._fd < 0:
            return b""
        try:
            return os.pread(self._fd, size, address)
        except OSError:
            return b""
