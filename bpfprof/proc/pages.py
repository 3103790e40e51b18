"""Many small reads of a process's memory again and again: addresses in, words out.

What lies near to each other is read together: a thousand objects of a Python program lie in some hundred pages, which
one system call brings.
"""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.ids import Pid
from bpfprof.proc.reader import reader

_PAGE_BYTES, _PAGE_WORDS = 4096, 512
_ADDRESS_LIMIT = 1 << 56  # see memory.py
_IOVECS = 1024  # in one call (UIO_MAXIOV), 4 MiB
_PAGES_LIMIT = 1 << 15  # 128 MB


class UnreadableError(Exception):
    """There is no word at this address."""


class Pages:
    """Pages of a process, each read when the first of its words is asked for, and again by `refresh()`.

    Nothing holds the process still meanwhile, so pages may be of different moments. `trail` has the index of each word
    that was asked for since it was emptied; an index stays the same until `forget()`.
    """

    def __init__(self, pid: Pid) -> None:
        self._pid = pid
        self.forget()

    def forget(self) -> None:
        """Begins anew, without pages."""
        self.trail: list[int] = []
        self._slots: dict[int, int] = {}  # page -> where it is in the content; -1: it cannot be read
        self._pages: list[int] = []  # by slot
        self._hold(np.zeros(16 * _PAGE_WORDS, np.uint64))

    @property
    def count(self) -> int:
        """How many pages were read."""
        return len(self._pages)

    def refresh(self) -> None:
        """Reads all pages again; the words of those that cannot be read any more are 0."""
        pages = np.array(self._pages, np.uint64)
        content = self._content.reshape(-1, _PAGE_WORDS)
        position = 0
        while position < len(pages):
            count = self._read(pages[position : position + _IOVECS], position)
            position += count
            if count < _IOVECS and position < len(pages):
                content[position] = 0
                position += 1

    def word(self, address: int) -> int:
        """The word at an address, which is a multiple of 8. Raises UnreadableError."""
        slot = self._slots.get(address >> 12)
        if slot is None:
            slot = self._add(address >> 12)
        if slot < 0 or address & 7:
            raise UnreadableError
        index = slot << 9 | (address & 0xFFF) >> 3
        self.trail.append(index)
        return self._words[index]

    def read(self, address: int, size: int) -> bytes:
        """`size` bytes, at least one, from an address on. Raises UnreadableError."""
        pages = range(address >> 12, (address + size - 1 >> 12) + 1)
        slots = [self._slots[page] if page in self._slots else self._add(page) for page in pages]
        if min(slots) < 0:
            raise UnreadableError
        return self._content.reshape(-1, _PAGE_WORDS)[slots].tobytes()[address & 0xFFF :][:size]

    def at(self, index: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Words by their index."""
        return np.asarray(self._content[index])

    def _hold(self, content: npt.NDArray[np.uint64]) -> None:
        self._content, self._words = content, content.data

    def _add(self, page: int) -> int:
        """The slot of a page that was not read yet."""
        slot = self.count
        if slot >= _PAGES_LIMIT or not 0 < page < _ADDRESS_LIMIT >> 12:
            return -1
        if (slot + 1) * _PAGE_WORDS > len(self._content):
            self._hold(np.concatenate([self._content, np.zeros_like(self._content)]))
        if self._read(np.array([page], np.uint64), slot):
            self._slots[page] = slot
            self._pages.append(page)
        else:
            self._slots[page] = -1
        return self._slots[page]

    def _read(self, pages: npt.NDArray[np.uint64], slot: int) -> int:
        """Reads pages into the content from a slot on; how many, up to the first that cannot be read."""
        remote = np.empty((len(pages), 2), np.uint64)
        remote[:, 0], remote[:, 1] = pages << np.uint64(12), _PAGE_BYTES
        try:
            data = reader().read_pages(self._pid, remote.tobytes())
        except OSError:
            return 0
        count = len(data) // _PAGE_BYTES
        content = self._content[slot * _PAGE_WORDS : (slot + count) * _PAGE_WORDS]
        content[:] = np.frombuffer(data, np.uint64, len(content))
        return count
