"""Functions by address: symbols with names in some text in, indices and names out. Not only for ELF files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bpfprof import array_types as npt

UNSIZED, LOCAL, UNTYPED = 1, 2, 4  # bits of `rank`: the lower, the better the name
SYMBOL_DTYPE = np.dtype(
    [
        ("start", "<u8"),
        ("end", "<u8"),  # first address behind it; of UNSIZED ones, how far they reach when no other symbol follows
        ("name", "<u4"),  # offset into its text
        ("rank", "u1"),
        ("text", "u1"),  # which of the texts
    ],
    align=True,
)
# (offset, size) -> that many bytes, fewer at the end of the text. A name ends at a zero byte.
ReadText = Callable[[int, int], bytes]
Addresses = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]

_EXTENT_DTYPE = np.dtype(
    [
        ("start", "<u8"),
        ("end", "<u8"),
        ("limit", "<u8"),
        ("first", "<u4"),  # of the symbols, sorted by address
        ("count", "<u4"),
        ("is_label", "?"),  # local, untyped and without a size: most often a jump target
    ],
    align=True,
)
OF_SYMBOLS = 3  # of the columns of a table; the others are of addresses
COLUMNS = {
    **{"_names": "<u4", "_ranks": "u1", "_text_numbers": "u1"},
    **{"starts": "<u8", "ends": "<u8", "_first": "<u4", "_counts": "<u4", "_outer": "<i8"},
}
_SHORT_NAME_BYTES = 256  # read at first; few names are longer
_NAME_LIMIT_BYTES = 16 << 10  # the longest in libtorch_cpu 2.13 has 7 KiB
_CANDIDATE_LIMIT = 32  # symbols at one address among which a name is chosen


class SymbolTable:
    """Symbols grouped by address, ascending; an index names one address that has symbols.

    Of several symbols at an address the name is that of the best rank (a function before an untyped label, global
    or weak before local, with a size before without), then with the fewest leading underscores, without a version,
    the shortest, the first by alphabet.
    """

    def __init__(
        self,
        symbols: npt.NDArray[np.void],
        texts: Sequence[ReadText],
        problems: Sequence[str] = (),
        *,
        has_versions: bool = False,
    ) -> None:
        """`symbols` has SYMBOL_DTYPE, in any order. `problems` says why symbols may be missing.

        With `has_versions` what follows an `@` is no part of a name: `memcpy@@GLIBC_2.14`.
        """
        self._texts = tuple(texts)
        self.problems = tuple(problems)
        self._has_versions = has_versions
        order = np.argsort(symbols["start"]).astype(np.uint32)
        self._names = symbols["name"][order]
        self._ranks = symbols["rank"][order]
        self._text_numbers = symbols["text"][order]
        starts, ends = symbols["start"][order], symbols["end"][order]
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = starts[1:] != starts[:-1]
        first = np.flatnonzero(is_first).astype(np.uint32)
        if not len(first):
            self.starts = self.ends = np.zeros(0, np.uint64)
            return
        sized_ends = np.maximum.reduceat(np.where(self._ranks & UNSIZED, starts, ends), first)
        extents = np.zeros(len(first), _EXTENT_DTYPE)
        extents["start"], extents["end"] = starts[first], sized_ends
        extents["limit"] = np.maximum.reduceat(ends, first)
        extents["first"], extents["count"] = first, np.diff(first, append=np.uint32(len(order)))
        del starts, ends, sized_ends, is_first
        extents["is_label"] = np.minimum.reduceat(self._ranks, first) == UNSIZED | LOCAL | UNTYPED
        extents = _resolve_extents(extents)
        self.starts, self.ends = extents["start"].copy(), extents["end"].copy()
        self._first, self._counts = extents["first"].copy(), extents["count"].copy()
        self._outer = _outer(self.starts, self.ends)

    @classmethod
    def of_columns(
        cls, columns: Sequence[npt.NDArray[Any]], texts: Sequence[ReadText], has_versions: bool
    ) -> SymbolTable:
        """What `columns` gave, with the same texts. Raises ValueError for what none can have given."""
        table = cls(np.zeros(0, SYMBOL_DTYPE), texts, has_versions=has_versions)
        for name, column in zip(COLUMNS, columns):
            setattr(table, name, column)
        if not len(table):
            return table
        ends = table._first.astype(np.int64) + table._counts
        is_named = int(ends.max()) <= len(table._names) and int(table._text_numbers.max()) < len(texts)
        if not is_named or not table._counts.all() or int(table._outer.max()) >= len(table):
            raise ValueError("not the columns of a table of symbols")
        return table

    @property
    def columns(self) -> list[npt.NDArray[Any]]:
        """All that the table is but for its texts: of_columns() makes another one of it. None without symbols."""
        return [getattr(self, name) for name in COLUMNS] if len(self.starts) else []

    @property
    def texts(self) -> tuple[ReadText, ...]:
        return self._texts

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def size_bytes(self) -> int:
        """Memory that it takes, names not included: they are read when they are asked for."""
        return sum(column.nbytes for column in vars(self).values() if isinstance(column, np.ndarray))

    def find(self, addresses: Addresses) -> Indices:
        """The index of the symbol that covers each address, -1 where none does."""
        if not len(self.starts):
            return np.full(len(addresses), -1, np.int64)
        # In order, because then most of a search is in the cache already.
        order = np.argsort(addresses)
        wanted = addresses[order]
        found = np.searchsorted(self.starts, wanted, side="right") - 1
        found = np.where((found >= 0) & (wanted >= self.ends[found]), self._outer[found], found)
        result = np.empty(len(found), np.int64)
        result[order] = np.where((found >= 0) & (wanted < self.ends[found]), found, -1)
        return result

    def names(self, indices: Indices) -> list[str]:
        """As written in the file, at most 16 KiB each; "" for -1 and where the text cannot be read."""
        distinct, positions = np.unique(indices, return_inverse=True)
        names = [self._name(index) if 0 <= index < len(self) else "" for index in distinct.tolist()]
        return [names[position] for position in positions.tolist()]

    def _name(self, index: int) -> str:
        first = int(self._first[index])
        count = min(int(self._counts[index]), _CANDIDATE_LIMIT)
        if count == 1:
            return self._read_name(first)[0]
        return min(self._preference(symbol) for symbol in range(first, first + count))[-1]

    def _preference(self, symbol: int) -> tuple[bool, int, int, bool, int, str]:
        name, has_version = self._read_name(symbol)
        underscore_count = len(name) - len(name.lstrip("_"))
        return not name, int(self._ranks[symbol]), underscore_count, has_version, len(name), name

    def _read_name(self, symbol: int) -> tuple[str, bool]:
        read, offset = self._texts[self._text_numbers[symbol]], int(self._names[symbol])
        raw = read(offset, _SHORT_NAME_BYTES)
        end = raw.find(b"\0")
        if end < 0 and len(raw) == _SHORT_NAME_BYTES:
            raw = read(offset, _NAME_LIMIT_BYTES)
            end = raw.find(b"\0")
        name = raw[: end if end >= 0 else None]
        version = name.find(b"@", 1) if self._has_versions else -1
        return name[: version if version >= 0 else None].decode("utf-8", "replace"), version >= 0


def _resolve_extents(extents: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Those that stand for a function, with their final `end`; those without a size come with `end` = `start`."""
    # A symbol without a size inside one that has a size is a place in a function.
    extents = extents[~(_is_within(extents) & (extents["end"] == extents["start"]))]
    # Hand-written assembly has unsized functions full of labels, so these do not end a function.
    functions = ~extents["is_label"]
    extents["end"][functions] = _closed(*(extents[field][functions] for field in ("start", "end", "limit")))
    extents = extents[~(_is_within(extents) & extents["is_label"])]
    extents["end"] = _closed(extents["start"], extents["end"], extents["limit"])
    return extents


def _closed(starts: Addresses, ends: Addresses, limits: Addresses) -> Addresses:
    """The ends, where those that have none yet reach to the next start or to their limit."""
    following = np.append(starts[1:], ~np.uint64(0))
    return np.where(ends == starts, np.minimum(limits, following), ends)


def _is_within(extents: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Whether one that starts before it ends behind its start."""
    is_within = np.zeros(len(extents), np.bool_)
    is_within[1:] = np.maximum.accumulate(extents["end"])[:-1] > extents["start"][1:]
    return is_within


def _outer(starts: Addresses, ends: Addresses) -> Indices:
    """Which earlier one goes on where this ends, the furthest-reaching; -1 where none does.

    Pieces of hand-written functions lie within each other like this.
    """
    reach = np.maximum.accumulate(ends)
    is_furthest = np.ones(len(ends), np.bool_)
    is_furthest[1:] = ends[1:] > reach[:-1]
    furthest = np.maximum.accumulate(np.where(is_furthest, np.arange(len(ends)), 0))
    outer = np.full(len(ends), -1, np.int64)
    outer[1:] = np.where(reach[:-1] > ends[1:], furthest[:-1], -1)
    return outer
