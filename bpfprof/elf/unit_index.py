"""Which compilation unit holds an address: .debug_aranges, and the ranges of the units that are not in it.

DWARF 5: sections 6.1.2 (.debug_aranges) and 3.1.1 (ranges of a unit).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bpfprof.elf.debug_sections import DebugSections, ReadGuard, error_text
from bpfprof.elf.inlined_functions import Unit

UNIT_LIMIT = 50_000
RANGE_LIMIT = 1 << 20
ARANGES_LIMIT_BYTES = 4 << 20  # a quarter of a million ranges; pyelftools makes an object of each
_ARANGES_READS, _HEADER_READS = 4 << 20, 1000

_RANGE_DTYPE = np.dtype([("start", "<u8"), ("end", "<u8"), ("unit", "<u8")])
Ranges = npt.NDArray[np.void]


class UnitIndex:
    """Units are named by their offset in .debug_info."""

    def __init__(self, sections: DebugSections, guard: ReadGuard, report: Callable[[str], None]) -> None:
        self._sections, self._guard, self._report = sections, guard, report
        self._table: Ranges | None = None
        self._scanned: list[tuple[int, int, int]] = []
        self._next_unit = self._unit_count = 0
        self.units_without_ranges: list[int] = []

    def find(self, addresses: Sequence[int]) -> dict[int, int]:
        """The unit of each address; those in no known range are left out, and may be in `units_without_ranges`.

        The first time that an address is in no table all units are looked at, or as many as there is time for.
        """
        if self._table is None:
            self._table = self._read_table()
        found = _find(self._table, addresses)
        rest = [address for address in addresses if address not in found]
        if rest:
            self._scan(set(self._table["unit"].tolist()))
            found |= _find(np.array(self._scanned, _RANGE_DTYPE), rest)
        return found

    def _read_table(self) -> Ranges:
        size = self._sections.size_of("debug_aranges")
        if size > ARANGES_LIMIT_BYTES:
            self._report(".debug_aranges: larger than what is read of it")
        entries: list[Any] = []
        if 0 < size <= ARANGES_LIMIT_BYTES:
            self._guard.allow(_ARANGES_READS)
            try:
                entries = self._sections.dwarf().get_aranges().entries
            except Exception as error:
                if not self._guard.is_late:
                    self._report(f".debug_aranges: {error_text(error)}")
        ranges = [
            (entry.begin_addr, entry.begin_addr + entry.length, entry.info_offset)
            for entry in entries
            if 0 < entry.begin_addr < entry.begin_addr + entry.length < 1 << 64
        ]
        return np.array(ranges, _RANGE_DTYPE)

    def _scan(self, known: set[int]) -> None:
        """Go on through the units; those in `known` are told by the table."""
        size = self._sections.size_of("debug_info")
        while self._next_unit < size and self._unit_count < UNIT_LIMIT and len(self._scanned) < RANGE_LIMIT:
            offset = self._next_unit
            try:
                self._guard.check_time()
                self._guard.allow(_HEADER_READS)
                cu = self._sections.dwarf().get_CU_at(offset)
                following = offset + cu.size
                if offset not in known:
                    self._read_unit(cu)
            except Exception as error:
                if self._guard.is_late:
                    return  # and go on from here the next time
                self._report(f"unit at {offset:#x}: {error_text(error)}")
                following = size
            self._next_unit = following
            self._unit_count += 1
        if self._next_unit < size:
            self._report("too many units: not all are looked at")

    def _read_unit(self, cu: Any) -> None:
        try:
            unit = Unit(cu, self._guard)
            tag, ranges = unit.top.tag, list(unit.ranges_of(unit.top))
        except Exception as error:
            if self._guard.is_late:
                raise
            self._report(f"unit at {cu.cu_offset:#x}: {error_text(error)}")
            return
        if ranges:
            self._scanned += [(start, end, cu.cu_offset) for start, end in ranges if start < end < 1 << 64]
        elif tag == "DW_TAG_compile_unit" and "DW_AT_low_pc" not in unit.top.attributes:
            self.units_without_ranges.append(cu.cu_offset)


def _find(ranges: Ranges, addresses: Sequence[int]) -> dict[int, int]:
    """The unit of the smallest range that holds each address."""
    found: dict[int, int] = {}
    if not len(ranges):
        return found
    for address in addresses:
        holding = ranges[(ranges["start"] <= address) & (address < ranges["end"])]
        if len(holding):
            found[address] = int(holding["unit"][np.argmin(holding["end"] - holding["start"])])
    return found
