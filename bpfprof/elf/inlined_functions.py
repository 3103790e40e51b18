"""One unit of .debug_info: asked addresses in; the function and the inlined functions at each out.

DWARF 5: sections 3.3.8 (inlined subroutines), 7.5 (layout), 7.5.6 (forms). Most entries are skipped by the sizes of
their forms, in a tenth of the time it takes pyelftools to read one; those of functions that have code it reads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bpfprof.elf.debug_sections import ReadGuard
from bpfprof.elf.leb128 import read_uleb

UNIT_LIMIT_BYTES = 64 << 20
ENTRY_LIMIT = 8 << 20  # of one unit
DEPTH_LIMIT = 64  # of inlined functions; those inlined further are left out
_REFERENCE_LIMIT = 8  # from an inlined function to its name
_NAME_LIMIT_BYTES = 16 << 10
_ENTRY_READS, _ABBREVIATION_READS, _RANGE_READS, _REFERENCE_READS = 5_000, 200_000, 100_000, 500_000
_CLOCK_EVERY_ENTRIES = 1024

_OTHER, _FUNCTION, _INLINED = 0, 1, 2
_PLACES = {"DW_AT_low_pc", "DW_AT_high_pc", "DW_AT_ranges"}
_KINDS = {"DW_TAG_subprogram": _FUNCTION, "DW_TAG_inlined_subroutine": _INLINED}

_ULEB, _STRING, _BLOCK1, _BLOCK2, _BLOCK4, _BLOCK, _UNKNOWN = -1, -2, -3, -4, -5, -6, -7
_SIZES = {  # section 7.5.6; those that depend on the unit are in _size_of
    **dict.fromkeys(("flag_present", "implicit_const"), 0),
    **dict.fromkeys(("data1", "ref1", "flag", "strx1", "addrx1"), 1),
    **dict.fromkeys(("data2", "ref2", "strx2", "addrx2"), 2),
    **dict.fromkeys(("strx3", "addrx3"), 3),
    **dict.fromkeys(("data4", "ref4", "ref", "ref_sup4", "strx4", "addrx4"), 4),
    **dict.fromkeys(("data8", "ref8", "ref_sup8", "ref_sig8"), 8),
    "data16": 16,
    **dict.fromkeys(("sdata", "udata", "ref_udata", "strx", "addrx", "loclistx", "rnglistx"), _ULEB),
    **dict.fromkeys(("GNU_addr_index", "GNU_str_index"), _ULEB),
    **{"string": _STRING, "block1": _BLOCK1, "block2": _BLOCK2, "block4": _BLOCK4},
    **dict.fromkeys(("block", "exprloc"), _BLOCK),
}
_OFFSETS = {"sec_offset", "strp", "line_strp", "strp_sup", "GNU_ref_alt", "GNU_strp_alt"}
_BLOCK_LENGTH_SIZES = {_BLOCK1: 1, _BLOCK2: 2, _BLOCK4: 4}


class CodeEntry(NamedTuple):
    """A function, or an inlined one and where it is called; 0 when unknown."""

    offset: int  # in .debug_info
    call_file: int
    call_line: int


Chain = tuple[CodeEntry, ...]  # the function, what is inlined into it, what is inlined into that


class _Abbreviation(NamedTuple):
    kind: int
    has_children: bool
    fixed_size: int  # of the attributes, when `steps` is empty
    steps: tuple[int, ...]  # sizes, and the negative numbers above


class _Scope(NamedTuple):
    depth: int
    addresses: list[int]
    chain: Chain


class Unit:
    """A compilation unit of pyelftools."""

    def __init__(self, cu: Any, guard: ReadGuard) -> None:
        """Raises whatever pyelftools raises."""
        self._cu = cu
        self._guard = guard
        guard.allow(_ABBREVIATION_READS)
        self._abbreviation_table = cu.get_abbrev_table()
        guard.allow(_ENTRY_READS)
        self.top = cu.get_top_DIE()
        self._abbreviations: dict[int, _Abbreviation] = {}
        self._names: dict[int, str] = {}
        self.has_foreign_names = False  # that lie in another file (dwz -m)

    def chains_at(self, addresses: Sequence[int], best: dict[int, tuple[int, Chain]]) -> None:
        """Put (bytes of the innermost range, chain) for `addresses`, which ascend, into `best`.

        What was found before an error, which may be of any class, is there.
        """
        scopes: list[_Scope] = []
        for at, kind, depth, lowest, has_children in self._entries():
            while scopes and scopes[-1].depth >= lowest:
                scopes.pop()
            if kind == _FUNCTION:
                outer: Sequence[int] = addresses
            elif kind == _INLINED and scopes and scopes[-1].addresses:
                outer = scopes[-1].addresses
            else:
                continue
            die = self._read_entry(at)
            inside = self._inside(outer, die)
            entry = CodeEntry(at, *(integer(die.attributes.get(key)) for key in ("DW_AT_call_file", "DW_AT_call_line")))
            chain = (*scopes[-1].chain, entry) if kind == _INLINED else (entry,)
            if has_children and len(scopes) < DEPTH_LIMIT:
                scopes.append(_Scope(depth, sorted(inside), chain))
            for address, size in inside.items():
                known_size, known = best.get(address, (1 << 64, ()))
                if size < known_size or (kind == _INLINED and known and known[-1] == chain[-2]):
                    best[address] = size, chain

    def _entries(self) -> Iterator[tuple[int, int, int, int, bool]]:
        """(offset in .debug_info, kind, depth, lowest depth since the last one, has children) of those of interest."""
        start, size = self._cu.cu_offset, self._cu.size
        if size > UNIT_LIMIT_BYTES:
            raise ValueError("a unit is too large")
        stream = self._cu.dwarfinfo.debug_info_sec.stream
        self._guard.allow(1)
        stream.seek(start)
        data: bytes = stream.read(size)
        at, depth, lowest, abbreviations = self._cu.cu_die_offset - start, 0, 0, self._abbreviations
        for count in range(ENTRY_LIMIT):
            if at >= len(data):
                return
            if count % _CLOCK_EVERY_ENTRIES == 0:
                self._guard.check_time()
            entry_at, code = at, data[at]
            at += 1
            if code >= 0x80:
                code, at = read_uleb(data, entry_at)
            if code == 0:
                depth -= 1
                lowest = min(lowest, depth)
            else:
                abbreviation = abbreviations.get(code) or self._abbreviation(code)
                kind, has_children, fixed_size, steps = abbreviation
                at = self._skip(data, at, entry_at, steps) if steps else at + fixed_size
                if kind:
                    yield start + entry_at, kind, depth, lowest, has_children
                    lowest = depth + has_children
                depth += has_children
            if depth <= 0:
                return
        raise ValueError("a unit has too many entries")

    def _abbreviation(self, code: int) -> _Abbreviation:
        declaration = self._abbreviation_table.get_abbrev(code)
        specifications = declaration["attr_spec"]
        steps: list[int] = []
        for size in (self._size_of(specification.form) for specification in specifications):
            if steps and size >= 0 and steps[-1] >= 0:
                steps[-1] += size
            else:
                steps.append(size)
        has_place = not _PLACES.isdisjoint([specification.name for specification in specifications])
        kind = _KINDS.get(declaration["tag"], _OTHER) if has_place else _OTHER
        fixed_size = sum(steps) if len(steps) < 2 and min(steps, default=0) >= 0 else -1
        made = _Abbreviation(
            kind, declaration.has_children(), max(0, fixed_size), tuple(steps) if fixed_size < 0 else ()
        )
        self._abbreviations[code] = made
        return made

    def _size_of(self, form: Any) -> int:
        structs = self._cu.structs
        name = form.removeprefix("DW_FORM_") if isinstance(form, str) else ""
        if name in _OFFSETS or (name == "ref_addr" and self._cu["version"] > 2):
            return 8 if structs.dwarf_format == 64 else 4
        if name in ("addr", "ref_addr"):
            return int(structs.address_size)
        return _SIZES.get(name, _UNKNOWN)

    def _skip(self, data: bytes, at: int, entry_at: int, steps: tuple[int, ...]) -> int:
        """Where an entry ends whose attributes begin at `at`."""
        for step in steps:
            if step >= 0:
                at += step
            elif step == _ULEB:
                _, at = (0, at + 1) if data[at] < 0x80 else read_uleb(data, at)
            elif step == _STRING:
                at = data.index(0, at) + 1
            elif step == _BLOCK:
                size, at = read_uleb(data, at)
                at += size
            elif step == _UNKNOWN:  # DW_FORM_indirect
                return entry_at + max(1, int(self._read_entry(self._cu.cu_offset + entry_at).size))
            else:
                width = _BLOCK_LENGTH_SIZES[step]
                at += width + int.from_bytes(data[at : at + width], "little")
        return at

    def _read_entry(self, offset: int) -> Any:
        from elftools.dwarf.die import DIE

        self._guard.allow(_ENTRY_READS)
        # Not through the unit, which keeps them all and goes round in circles when DW_AT_sibling points back.
        return DIE(cu=self._cu, stream=self._cu.dwarfinfo.debug_info_sec.stream, offset=offset)

    def _inside(self, addresses: Sequence[int], die: Any) -> dict[int, int]:
        """Bytes of the smallest range of `die` that each address lies in; `addresses` ascend."""
        found: dict[int, int] = {}
        for start, end in sorted(self.ranges_of(die), key=lambda pair: pair[0] - pair[1]):
            self._guard.check_time()
            for index in range(bisect_left(addresses, start), bisect_left(addresses, end)):
                found[addresses[index]] = end - start
        return found

    def ranges_of(self, die: Any) -> Iterator[tuple[int, int]]:
        """Where its code is, from and to; nothing at address 0, where linkers put code that they have left out."""
        attributes = die.attributes
        low = integer(attributes.get("DW_AT_low_pc"))
        high = attributes.get("DW_AT_high_pc")
        if "DW_AT_ranges" in attributes:
            yield from self._range_list(integer(attributes["DW_AT_ranges"]))
        elif low and high is not None:
            # Sections 2.17.2: an address, or a constant that counts from low_pc.
            end = integer(high) if str(high.form).startswith("DW_FORM_addr") else low + integer(high)
            yield low, end

    def _range_list(self, offset: int) -> Iterator[tuple[int, int]]:
        """Section 2.17.3: addresses, or offsets to a base, which is that of the unit at first."""
        base = integer(self.top.attributes.get("DW_AT_low_pc"))
        lists = self._cu.dwarfinfo.range_lists()
        self._guard.allow(_RANGE_READS)
        for entry in lists.get_range_list_at_offset(offset, cu=self._cu) if lists is not None else ():
            if hasattr(entry, "base_address"):
                base = entry.base_address
                continue
            start = 0 if entry.is_absolute else base
            if start + entry.begin_offset:
                yield start + entry.begin_offset, start + entry.end_offset

    def name_of(self, entry: CodeEntry) -> str:
        """The linkage name; without one the name; "" without either or when it lies in another file."""
        if entry.offset not in self._names:
            name = self._find_name(self._read_entry(entry.offset))
            self._names[entry.offset] = name[:_NAME_LIMIT_BYTES].decode("utf-8", "replace")
        return self._names[entry.offset]

    def _find_name(self, die: Any) -> bytes:
        name = b""
        for _ in range(_REFERENCE_LIMIT):
            for key in ("DW_AT_linkage_name", "DW_AT_MIPS_linkage_name"):
                if isinstance(linkage := _value(die.attributes.get(key)), bytes):
                    return linkage
            plain = _value(die.attributes.get("DW_AT_name"))
            name = name or (plain if isinstance(plain, bytes) else b"")
            references = [key for key in ("DW_AT_abstract_origin", "DW_AT_specification") if key in die.attributes]
            if not references:
                break
            if str(die.attributes[references[0]].form) in (
                "DW_FORM_GNU_ref_alt",
                "DW_FORM_ref_sup4",
                "DW_FORM_ref_sup8",
            ):
                self.has_foreign_names = True
                break
            self._guard.allow(_REFERENCE_READS)
            die = die.get_DIE_from_attribute(references[0])
        return name


def _value(attribute: Any) -> Any:
    return None if attribute is None else attribute.value


def integer(attribute: Any) -> int:
    """The value of an attribute; 0 without one or when it is no number of 64 bits."""
    value = _value(attribute)
    return value if isinstance(value, int) and 0 <= value < 1 << 64 else 0
