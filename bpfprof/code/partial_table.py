"""A table of a file with more code without rules than is waited for: functions that stacks ended in come first.

All of it takes seconds (elf/effort.py), in which half of the stacks of a training loop end in some dozen functions.
Those are found by their symbols.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import field

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.elf.cfi.rules import Rules
from bpfprof.elf.image import ElfImage
from bpfprof.elf.symbols.reader import read_symbols
from bpfprof.elf.symbols.table import SymbolTable
from bpfprof.unwind.rows import FileRows, find, with_functions

# Each time the whole table is written anew, some 50 ms of CPU of PyTorch's: 64 times cost as much as all of its code.
_MOST_ROUNDS, _AT_ONCE = 64, 64
_MOST_ADDRESSES = 4096
Publish = Callable[[FileRows, Rules], None]


@dataclass
class PartialTable:
    """For several threads at once: one wants, one follows, and one replaces it in the end."""

    image: ElfImage
    rows: FileRows
    rules: Rules
    _wanted: set[int] = field(default_factory=set)
    _known: set[int] = field(default_factory=set)  # addresses that were looked at, or will be
    _symbols: SymbolTable | None = None
    _round: int = 0
    _is_over: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def want(self, address: int) -> bool:
        """A stack ended at this address of the file; true when nobody was told yet to follow what is wanted."""
        is_full = len(self._known) >= _MOST_ADDRESSES or self._round >= _MOST_ROUNDS
        if is_full or address in self._known or find(self.rows, address):
            return False
        with self._lock:
            self._known.add(address)
            self._wanted.add(address)
            return len(self._wanted) == 1

    def follow(self, publish: Publish) -> bool:
        """Publishes the table with the functions that were wanted; true when there are more."""
        from bpfprof.elf.asm.traced_rules import traced_at  # it takes long to import, and is seldom needed

        with self._lock:
            some = [self._wanted.pop() for _ in range(min(_AT_ONCE, len(self._wanted)))]
        addresses = [address for address in some if not find(self.rows, address)]
        if addresses and not self._is_over:
            self._symbols = self._symbols or read_symbols(self.image)
            found = traced_at(self.image, self._symbols, np.array(sorted(addresses), np.int64))
            rows, rules = with_functions(self.rows, self.rules, found)
            with self._lock:
                if len(rows.rows) > len(self.rows.rows) and not self._is_over:
                    self.rows, self.rules, self._round = rows, rules, self._round + 1
                    publish(rows, rules)
        return bool(self._wanted) and self._round < _MOST_ROUNDS

    def replace(self, publish: Callable[[], None]) -> None:
        """Publishes what has all of it; nothing else comes after it."""
        with self._lock:
            publish()
            self._is_over = True
