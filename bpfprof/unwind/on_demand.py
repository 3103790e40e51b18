"""Rows of a large file where stacks lead through it: addresses in it in, rows for the kernel side out.

All of libtorch_cpu's take 2 s to decode. A training loop leads through 700 of its 342,000 functions, which lie in a
quarter of it. So functions are read where they are asked for, and their neighbours after them. The rest has the rule
BP_RULE_UNREAD: a stack ends there, and says where.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property

import numpy as np

from bpfprof import array_types as npt
from bpfprof.elf.asm.traced_rules import SHORTEST_BYTES, traced_at, written_rules
from bpfprof.elf.cfi.implied_rules import builtins_at, implied_rules, linkage_addresses
from bpfprof.elf.cfi.lookup import FrameLookup
from bpfprof.elf.cfi.rules import (
    NO_RULE_ID,
    RULE_LIMIT,
    UNSUPPORTED_FIELDS,
    UNSUPPORTED_ID,
    Addresses,
    CallFrames,
    RuleFields,
    Rules,
    rows_in_order,
    rules_array,
)
from bpfprof.elf.image import ElfError, ElfImage
from bpfprof.elf.leb128 import Ints
from bpfprof.elf.parts import WatchedImage
from bpfprof.elf.symbols.kept import kept_symbols
from bpfprof.elf.symbols.table import SymbolTable
from bpfprof.model.grouping import each_once
from bpfprof.unwind.rows import PAGE_BITS, UNREAD_FIELDS, FileRows, compact, expanded

_BLOCK_FUNCTIONS = 1024  # neighbours, which are read together in some 6 ms
_BLOCKS_AT_ONCE, _UNTRACED_AT_ONCE, _AT_ONCE = 16, 256, 1024
_MOST_WANTED = 1 << 16
_FIRST_RULES: tuple[RuleFields, ...] = ((0,) * 7, UNSUPPORTED_FIELDS, UNREAD_FIELDS)
_UNREAD = 2  # the place of that


class Block:
    """Rows of CallFrames, and as the kernel side has them: `words`, of which pages from first_page on have `counts`."""

    def __init__(self, address: Addresses, rule: npt.NDArray[np.uint16]) -> None:
        self.address, self.rule = address, rule
        rows = compact(CallFrames(address, rule))
        self.first_page, self.counts, self.words = rows.first_page, np.diff(rows.pages), rows.rows[1:]


class RowsOnDemand:
    """For several threads at once: some want, one reads at a time."""

    def __init__(self, image: WatchedImage, lookup: FrameLookup) -> None:
        """Raises ElfError."""
        self.image = image
        self.new_count = 0  # functions that were read since it was made
        self._lookup = lookup
        low, high = lookup.code
        # Where blocks of neighbouring functions begin, and where the last one ends.
        self._edges = np.concatenate(([low], lookup.starts[_BLOCK_FUNCTIONS::_BLOCK_FUNCTIONS], [high]))
        *starts, end = np.split(self._edges.astype(np.uint64), len(self._edges))
        self._blocks = [Block(start, np.array([_UNREAD], np.uint16)) for start in starts]
        self._end = Block(end, np.array([NO_RULE_ID], np.uint16))
        self._is_whole = np.zeros(len(self._blocks), np.bool_)  # whether all of a block is read
        self._around = set[int]()  # blocks in which functions were read alone
        self._ids: dict[RuleFields, int] = {each: at for at, each in enumerate(_FIRST_RULES)}
        self._wanted = set[int]()
        self._lock, self._unkept = threading.Lock(), list[Callable[[], None]]()

    @classmethod
    def of(cls, image: ElfImage) -> RowsOnDemand | None:
        """None where a file does not say well where its functions are. Raises ElfError."""
        watched = WatchedImage(image)
        try:
            lookup = FrameLookup.of(watched)
            made = cls(watched, lookup) if lookup is not None else None
        except ElfError:
            watched.close()
            raise
        if made is None:
            watched.close()
        return made

    def take(self, table: FileRows, rules: Rules) -> None:
        """Begins with what was known of the same file before, and with what it was made from."""
        self.image.had_read(table.parts)
        address, rule = expanded(table)
        ids, edges = self._interned(rules)[rule], self._edges.astype(np.uint64)
        places = np.searchsorted(address, edges)
        # Each block begins with a row, also where the one before goes on.
        is_missing = np.append(address, ~np.uint64(0))[places[:-1]] != edges[:-1]
        before = np.append(np.uint16(_UNREAD), ids)[places[:-1]]
        address = np.insert(address, places[:-1][is_missing], edges[:-1][is_missing])
        ids = np.insert(ids, places[:-1][is_missing], before[is_missing])
        places = np.searchsorted(address, edges).tolist()
        self._blocks = [Block(address[begin:end], ids[begin:end]) for begin, end in zip(places, places[1:])]
        # A function has some rows.
        self._is_whole = np.array([len(block.address) >= _BLOCK_FUNCTIONS for block in self._blocks])

    @cached_property
    def _implied(self) -> CallFrames:
        """What holds where call frame information is missing; found when a function is read that was not kept."""
        known = self._lookup.frames(np.array(linkage_addresses(self.image), np.int64))
        return implied_rules(self.image, known, self._lookup.code)

    @cached_property
    def symbols(self) -> SymbolTable:
        """Of the file; read when it is first asked for."""
        return kept_symbols(self.image, self._unkept.append)

    def close(self) -> None:
        """Keeps the symbols for later runs, if they were read, and closes the image."""
        for keep in self._unkept:
            keep()
        self.image.close()

    @property
    def wanted_count(self) -> int:
        """Addresses that are wanted and were not read yet."""
        return len(self._wanted)

    def want(self, addresses: Ints) -> int:
        """Stacks lead through these addresses of the file; how many of them are neither known nor wanted already."""
        unread = addresses[self._is_unread(addresses)].tolist()
        with self._lock:
            count = len(self._wanted)
            self._wanted.update(unread[: max(0, _MOST_WANTED - count)])
            return len(self._wanted) - count

    def read(self) -> None:
        """Reads the functions that are wanted, or some of them."""
        with self._lock:
            wanted = np.array(sorted(self._wanted)[:_AT_ONCE], np.int64)
        numbers = self._number(wanted)
        chosen = np.unique(numbers).tolist()
        self._read_functions(chosen, wanted, 0)
        for number in chosen:
            self._follow(number, wanted[numbers == number])
        self._around.update(number for number in chosen if not self._is_whole[number])
        with self._lock:
            self._wanted.difference_update(wanted.tolist())

    def read_neighbours(self) -> bool:
        """Reads neighbours of functions that were wanted; false when there are none left."""
        chosen = sorted(self._around)[:_BLOCKS_AT_ONCE]
        if chosen:
            count = _BLOCK_FUNCTIONS
            starts = [self._lookup.starts[number * count : (number + 1) * count] for number in chosen]
            self._read_functions(chosen, np.concatenate(starts), SHORTEST_BYTES - 1)
            self._around.difference_update(chosen)
            self._is_whole[chosen] = True
        return bool(chosen)

    def table(self, publish: Callable[[FileRows, Rules], None]) -> None:
        """Publishes what is known now, and the rules that it refers to."""
        first, last = (int(edge) >> PAGE_BITS for edge in self._edges[[0, -1]])
        counts, words = np.zeros(last + 1 - first, np.int64), [np.zeros(1, np.uint32)]
        for block in (*self._blocks, self._end):
            counts[block.first_page - first :][: len(block.counts)] += block.counts
            words.append(block.words)
        pages = np.append(1, 1 + np.cumsum(counts)).astype(np.uint32)
        publish(FileRows(first, pages, np.concatenate(words)), rules_array(self._ids))

    def _number(self, addresses: Ints) -> Ints:
        return np.asarray(np.searchsorted(self._edges, addresses, side="right") - 1)

    def _is_unread(self, addresses: Ints) -> npt.NDArray[np.bool_]:
        found, numbers = np.zeros(len(addresses), np.bool_), self._number(addresses)
        for number in np.unique(numbers[(numbers >= 0) & (numbers < len(self._blocks))]).tolist():
            address, rule = self._blocks[number].address, self._blocks[number].rule
            own = numbers == number
            found[own] = rule[np.searchsorted(address, addresses[own].astype(np.uint64), side="right") - 1] == _UNREAD
        return found

    def _read_functions(self, numbers: list[int], addresses: Ints, gap: int) -> None:
        """At addresses in these blocks; between two of them that are no further apart there is nothing."""
        frames = self._lookup.frames(addresses)
        frames = written_rules(self.image, frames).over(frames).over(self._implied)
        functions = np.array([frames.function_starts, frames.function_ends]).astype(np.int64)
        for number in numbers:
            limits = self._edges[number : number + 2]
            own = slice(*np.searchsorted(functions[0], limits).tolist())
            self._fill(number, frames, _joined(functions[:, own].clip(*limits), gap))
        self.new_count += frames.function_count

    def _follow(self, number: int, addresses: Ints) -> None:
        """Code without call frame information at these addresses of a block."""
        bare = addresses[self._is_unread(addresses)][:_UNTRACED_AT_ONCE]
        builtins = builtins_at(self.symbols, bare) if len(bare) else CallFrames()
        if builtins.function_count:
            functions = np.array([builtins.function_starts, builtins.function_ends]).astype(np.int64)
            self._fill(number, builtins, functions.clip(*self._edges[number : number + 2]))
            bare = bare[self._is_unread(bare)]
        if len(bare):
            traced, looked = traced_at(self.image, self.symbols, bare, self._gaps(number, bare))
            self._fill(number, traced, _joined(looked, 0))

    def _gaps(self, number: int, addresses: Ints) -> Ints:
        """2 x N: for each address in no function with call frame information what is between those around it."""
        address = self._blocks[number].address
        at = np.searchsorted(address, addresses.astype(np.uint64), side="right")
        ends = np.append(address, np.uint64(self._edges[number + 1])).astype(np.int64)[at]
        starts = np.append(self._lookup.starts, self._lookup.code[1])
        following = starts[np.searchsorted(self._lookup.starts, addresses, side="right")]
        return np.array([address.astype(np.int64)[at - 1], np.minimum(ends, following)])

    def _fill(self, number: int, frames: CallFrames, looked: Ints) -> None:
        """Where nothing is known of a block, what `frames` say, and that there is nothing where was looked (2 x N)."""
        begin, end = self._edges[number : number + 2].astype(np.uint64)
        address, rule = self._blocks[number].address, self._blocks[number].rule
        edges = looked.ravel().astype(np.uint64)
        new = (
            frames.address[slice(*np.searchsorted(frames.address, (begin, end)))],
            edges[(edges >= begin) & (edges < end)],
        )
        both = each_once(np.concatenate((address, *new)))
        old = rule[np.searchsorted(address, both, side="right") - 1]
        found = self._interned(frames.rules)[frames.rule_at(both)]
        found[(found == NO_RULE_ID) & ~_is_in(looked, both.astype(np.int64))] = _UNREAD
        self._blocks[number] = Block(*rows_in_order(both, np.where(old == _UNREAD, found, old)))

    def _interned(self, rules: Rules) -> npt.NDArray[np.uint16]:
        """The numbers of these rules here."""
        found = np.full(len(rules), UNSUPPORTED_ID, np.uint16)
        for at, fields in enumerate(rules.tolist()):
            if fields in self._ids or len(self._ids) < RULE_LIMIT:
                found[at] = self._ids.setdefault(fields, len(self._ids))
        return found


def _joined(ranges: Ints, gap: int) -> Ints:
    """2 x N in any order -> the same, ascending and apart by at least so much."""
    starts, ends = ranges
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    is_first = np.append(True, starts[1:] > reach[:-1] + gap)[: len(starts)]
    is_last = np.append(is_first[1:], True)[: len(starts)]
    return np.array([starts[is_first], reach[is_last]])


def _is_in(ranges: Ints, addresses: Ints) -> npt.NDArray[np.bool_]:
    """Whether each address is in one of some ranges, ascending and apart."""
    place = np.searchsorted(ranges[0], addresses, side="right") - 1
    return np.asarray((place >= 0) & (addresses < np.append(ranges[1], 0)[place]))
