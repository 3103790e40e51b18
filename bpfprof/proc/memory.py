"""The memory of a process, by reader.py or in a copy: addresses in, bytes out, None where nothing can be read."""

from __future__ import annotations

import contextlib
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from bpfprof.errors import TargetError
from bpfprof.model.ids import Pid, RuntimeAddress
from bpfprof.proc.reader import OpenMemory, reader
from bpfprof.proc.reader_child import EACH_LIMIT, EACH_LIMIT_BYTES

READ_LIMIT_BYTES = 1 << 20
_PAGE_BITS, _BLOCK_BYTES = 12, 16 << 10
# User space ends below 2^56 with five-level page tables (Documentation/arch/x86/x86_64/mm.rst, Linux 6.6).
_ADDRESS_LIMIT = 1 << 56


class TimeIsOverError(Exception):
    """What a process has in its memory is read no further: see reads_until()."""


class _Limit(threading.local):
    """Of what a thread reads."""

    is_over: Callable[[], bool] = staticmethod(lambda: False)


_limit = _Limit()


@contextlib.contextmanager
def reads_until(is_over: Callable[[], bool]) -> Iterator[None]:
    """In the block this thread's reads of processes raise TimeIsOverError when it is over.

    So all that follows a stranger's structures has an end, however many of them there are.
    """
    before, _limit.is_over = _limit.is_over, is_over
    try:
        yield
    finally:
        _limit.is_over = before


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

    def read_each(self, addresses: Sequence[int], size: int) -> list[bytes]:
        """`size` bytes from each address on, all of them or b"": then a read of its own may bring more."""
        return [self.read(address, size) or b"" for address in addresses]

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


class MemoryAtOnce(Memory):
    """Of a memory that rests meanwhile, as that of a thread that sleeps: it is read in blocks, each once.

    A read of its own takes some 30 us (reader.py), and a deep stack has a thousand frames.
    """

    __slots__ = ("_block_of_page", "_memory")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._block_of_page: dict[int, tuple[int, bytes]] = {}  # where it begins, what is in it

    def read_up_to(self, address: int, size: int) -> bytes:
        """As many of `size` bytes as are readable from `address` on; b"" if none is."""
        page = address >> _PAGE_BITS
        block = self._block_of_page.get(page)
        if block is None:
            begin = page << _PAGE_BITS
            block = begin, self._memory.read_up_to(begin, _BLOCK_BYTES)
            for each in range(page, page + max(1, len(block[1]) >> _PAGE_BITS)):
                self._block_of_page[each] = block
        begin, data = block
        found = data[address - begin : address - begin + size]
        return found if len(found) == size or not data else self._memory.read_up_to(address, size)

    def read_each(self, addresses: Sequence[int], size: int) -> list[bytes]:
        """As Memory says: from the memory itself, which reads them together."""
        return self._memory.read_each(addresses, size)


class ProcessMemory(Memory):
    """Stays with the address space it was opened on, also after an exec. Where nothing answers is a miss, too."""

    __slots__ = ("_opened",)

    def __init__(self, pid: Pid) -> None:
        """TargetError when there is no such process or its memory may not be read."""
        self._opened: OpenMemory | None = None
        try:
            self._opened = reader().open_memory(pid)
        except OSError as error:
            raise TargetError(f"the memory of process {pid} cannot be read: {error.strerror}") from error

    def __enter__(self) -> ProcessMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Reads after this are misses."""
        if self._opened is not None:
            reader().close_memory(self._opened)
            self._opened = None

    def read_up_to(self, address: int, size: int) -> bytes:
        """As many of `size` bytes as are readable from `address` on; b"" if none is."""
        if _limit.is_over():
            raise TimeIsOverError
        if not 0 < address < _ADDRESS_LIMIT or not 0 < size <= READ_LIMIT_BYTES or self._opened is None:
            return b""
        try:
            return reader().read_memory(self._opened, address, size)
        except OSError:
            return b""

    def read_each(self, addresses: Sequence[int], size: int) -> list[bytes]:
        """`size` bytes from each address on, all of them or b"": then a read of its own may bring more.

        A thousand take a few times as long as one (reader.py).
        """
        found: list[bytes] = []
        for start in range(0, len(addresses), EACH_LIMIT):
            some = [each if 0 < each < _ADDRESS_LIMIT else 0 for each in addresses[start : start + EACH_LIMIT]]
            found += self._read_some(some, size)
        return found

    def _read_some(self, addresses: list[int], size: int) -> list[bytes]:
        if _limit.is_over():
            raise TimeIsOverError
        if self._opened is not None and 0 < size <= EACH_LIMIT_BYTES:
            with contextlib.suppress(OSError):
                data = reader().read_each(self._opened, struct.pack(f"{len(addresses)}Q", *addresses), size)
                parts = (data[at : at + size] for at in range(0, len(addresses) * size, size))
                return [part if is_whole else b"" for part, is_whole in zip(parts, data[len(addresses) * size :])]
        return [b""] * len(addresses)
