"""The records of .eh_frame or .debug_frame: a section in, its functions and the initial rules they share out.

Layouts: LSB 5.0 core specification, sections 10.6 (.eh_frame, .eh_frame_hdr); DWARF 5, section 6.4.1 (.debug_frame).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bpfprof.elf.cfi.rules import RETURN_ADDRESS, Reason
from bpfprof.elf.cfi.sections import RECORD_LIMIT, FrameSection, Header, frame_address, frame_offsets
from bpfprof.elf.leb128 import Bytes, Ints, read_sleb, read_uleb

_CIE_LIMIT = 1024  # a file has one for each language and each way to be compiled, some 30 at most
_CIE_PROGRAM_LIMIT_BYTES = 512
_FACTOR_LIMIT = 1 << 16
_BLOCK_RECORDS = 1 << 16  # read together: some 10 MB of arrays
_SHORTEST_BYTES = 16

# Pointer encodings, LSB 10.5.1: size and sign in the low bits, what it is relative to in the high ones.
_SIZES = {0x00: 8, 0x02: 2, 0x03: 4, 0x04: 8, 0x0A: 2, 0x0B: 4, 0x0C: 8}
_SIGNED, _PC_RELATIVE, _RELATIVE_MASK, _OMIT = 0x08, 0x10, 0xF0, 0xFF

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Cie:
    """What many functions share. With a `failure` they have no rules; the other fields are then zero."""

    begin: int = 0  # of the initial program, in the section
    end: int = 0
    code_factor: int = 0
    data_factor: int = 0
    pointer_encoding: int = 0
    has_augmentation_size: bool = False
    is_signal_frame: bool = False
    failure: Reason = Reason.NONE


Offsets = NDArray[np.int32]
Lost = dict[Reason, int]
# start, end, fields after the CIE pointer, begin, stop and CIE of those with a range; a Reason, or 0, of all
_Block = tuple[NDArray[np.uint64], NDArray[np.uint64], Offsets, Offsets, Offsets, NDArray[np.int16], NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class Functions:
    """One element for each FDE whose range is known, in the order of the section.

    start, end: ELF addresses. begin, stop: its program in the section. failure: a Reason, else 0.
    """

    start: NDArray[np.uint64]
    end: NDArray[np.uint64]
    begin: Offsets
    stop: Offsets
    cie: NDArray[np.int16]
    failure: NDArray[np.uint8]
    lost: Lost  # how many have no known range, and why


def find_records(section: FrameSection, header: Header | None) -> tuple[Ints, Lost]:
    """Where the FDEs are, ascending, and how many are left out, at least, and why.

    `header` is address and content of .eh_frame_hdr; without its table, or with one that is wrong, all records are
    walked.
    """
    if header is not None and not section.is_debug and frame_address(header) == section.address:
        table = frame_offsets(header, section.address)
        if table is not None and table[0][0] >= 0 and table[0][-1] <= len(section.data) - 8:
            return table[0], {Reason.TOO_MANY_FUNCTIONS: table[1]}
    return _walk(section)


def _walk(section: FrameSection) -> tuple[Ints, Lost]:
    data, size = section.data, len(section.data)
    found = array("q")
    position = steps = 0
    lost: Lost = {}
    while position + 4 <= size:
        steps += 1
        (length,) = _U32.unpack_from(data, position)
        head = 4
        if length == 0xFFFFFFFF and position + 12 <= size:
            (length,) = _U64.unpack_from(data, position + 4)
            head = 12
        if position + head + length > size:
            lost = {Reason.TRUNCATED: 1}
            break
        if steps > 2 * RECORD_LIMIT or len(found) >= RECORD_LIMIT:
            lost = {Reason.TOO_MANY_FUNCTIONS: 1}
            break
        if length:
            found.append(position)
        elif section.ends_at_zero:
            break
        position += head + length  # a length of zero ends the part that one object file brought
    return np.array(found, np.int64), lost


class RecordReader:
    """Reads the fields of many records at once."""

    def __init__(self, section: FrameSection) -> None:
        self._section = section
        short = max(0, _SHORTEST_BYTES - len(section.data))
        self._data: Bytes = np.frombuffer(section.data + bytes(short) if short else section.data, np.uint8)
        self._cie_numbers: dict[int, int] = {}
        # The first is for all beyond the limit.
        self.cies: list[Cie] = [Cie(failure=Reason.BAD_CIE)]

    def read(self, records: Ints, code: tuple[int, int]) -> Functions:
        """The functions of these records (CIEs among them are left out); `code` is where functions may be, by address.

        Fills `cies`, which the result refers to.
        """
        starts = range(0, max(1, len(records)), _BLOCK_RECORDS)
        parts = [self._block(records[start : start + _BLOCK_RECORDS], code) for start in starts]
        start, end, fields, begin, stop, cie, losses = (
            np.concatenate([part[index] for part in parts]) for index in range(len(parts[0]))
        )
        overlaps = np.zeros(len(start), np.uint8)
        # A record that reaches into the next one is damaged; without it the programs do not touch one another.
        overlaps[:-1][stop[:-1] + 8 > fields[1:]] = Reason.OVERLAP
        counts = enumerate(np.bincount(losses, minlength=1).tolist())
        lost = {Reason(index): int(count) for index, count in counts if index and count}
        return Functions(start, end, begin, stop, cie, overlaps, lost)

    def _block(self, records: Ints, code: tuple[int, int]) -> _Block:
        length = self._unsigned(records, 4).astype(np.int64)
        is_long = length == 0xFFFFFFFF
        identity = records + np.where(is_long, 12, 4)
        pointer = self._unsigned(identity, 4).astype(np.int64)
        length[is_long] = self._unsigned(records[is_long] + 4, 8).astype(np.int64)
        pointer[is_long] = self._unsigned(identity[is_long], 8).astype(np.int64)
        end = identity + length
        if self._section.is_debug:
            is_fde, owner = pointer != np.where(is_long, -1, 0xFFFFFFFF), pointer
        else:
            is_fde, owner = pointer != 0, identity - pointer
        sound = is_fde & (length > 0) & (end > identity) & (end <= len(self._section.data))
        cut_off = np.full(int((is_fde & ~sound).sum()), Reason.TRUNCATED, np.uint8)
        chosen = np.flatnonzero(sound)
        owner, end, fields = owner[chosen], end[chosen], identity[chosen] + np.where(is_long[chosen], 8, 4)
        heads = np.flatnonzero(np.diff(owner, prepend=-1 << 62))  # neighbours mostly share one
        numbers = np.array([self._cie_number(offset) for offset in owner[heads].tolist()], np.int64)
        cie = np.repeat(numbers, np.diff(heads, append=len(owner)))
        return self._functions(fields, end, cie, code, cut_off)

    def _cie_number(self, offset: int) -> int:
        """Its index in `cies`."""
        number = self._cie_numbers.get(offset)
        if number is None:
            if len(self.cies) > _CIE_LIMIT:
                return 0
            number = self._cie_numbers[offset] = len(self.cies)
            self.cies.append(self._cie(offset))
        return number

    def _functions(
        self, fields: Ints, stop: Ints, cie: Ints, code: tuple[int, int], cut_off: NDArray[np.uint8]
    ) -> _Block:
        """Locations and programs of FDEs whose fields after the CIE pointer are at `fields`."""
        start, size = np.zeros(len(fields), np.uint64), np.zeros(len(fields), np.uint64)
        begin = np.zeros(len(fields), np.int64)
        failure = np.array([item.failure for item in self.cies], np.uint8)[cie]
        encodings = np.array([item.pointer_encoding for item in self.cies], np.int64)[cie]
        for encoding in np.unique(encodings[failure == 0]).tolist():
            at = np.flatnonzero((encodings == encoding) & (failure == 0))
            width = _SIZES.get(encoding & 0x0F, 0)
            if not width or encoding & _RELATIVE_MASK not in (0, _PC_RELATIVE):
                failure[at] = Reason.POINTER_ENCODING
                continue
            start[at] = self._pointers(fields[at], encoding, width)
            size[at] = self._unsigned(fields[at] + width, width)
            begin[at] = fields[at] + 2 * width
        augmented = np.array([item.has_augmentation_size for item in self.cies], np.bool_)[cie] & (failure == 0)
        begin[augmented] = self._after_augmentation(begin[augmented])
        failure[(failure == 0) & (begin > stop)] = Reason.TRUNCATED
        finish = start + size
        low, high = (np.uint64(limit) for limit in code)
        failure[(failure == 0) & ((start < low) | (finish > high) | (finish < start))] = Reason.BAD_RANGE
        kept = np.flatnonzero((failure == 0) & (size > 0))
        fields, begin, stop = fields[kept], begin[kept], stop[kept]
        offsets = (fields.astype(np.int32), begin.astype(np.int32), stop.astype(np.int32))
        return start[kept], finish[kept], *offsets, cie[kept].astype(np.int16), np.concatenate((cut_off, failure))

    def _after_augmentation(self, at: Ints) -> Ints:
        """Where the program begins: a ULEB128 size of up to 3 bytes, then so many bytes. Too far when it is longer."""
        size, length = np.zeros(len(at), np.int64), np.ones(len(at), np.int64)
        more = np.ones(len(at), np.bool_)
        for index in range(3):
            byte = self._data[np.minimum(at + index, len(self._data) - 1)].astype(np.int64)
            size += np.where(more, (byte & 0x7F) << (7 * index), 0)
            more &= byte >= 0x80
            length += more
        return np.where(more, len(self._data), at + length + size)

    def _unsigned(self, at: Ints, width: int) -> NDArray[np.uint64]:
        """Little-endian numbers; what lies behind the section is of no account."""
        at = np.minimum(at, len(self._data) - width)
        values = np.zeros(len(at), np.uint64)
        for index in range(width):
            values |= self._data[at + index].astype(np.uint64) << np.uint64(8 * index)
        return values

    def _pointers(self, at: Ints, encoding: int, width: int) -> NDArray[np.uint64]:
        values = self._unsigned(at, width)
        if encoding & _SIGNED and width < 8:
            sign = np.uint64(1 << (8 * width - 1))
            values = (values ^ sign) - sign
        if encoding & _RELATIVE_MASK == _PC_RELATIVE:
            values = values + at.astype(np.uint64) + np.uint64(self._section.address)
        return values

    def _cie(self, offset: int) -> Cie:
        if offset < 0:
            return Cie(failure=Reason.BAD_CIE)
        try:
            return _parse_cie(self._section.data, offset, self._section.is_debug)
        except (IndexError, ValueError, struct.error):
            return Cie(failure=Reason.BAD_CIE)


def _parse_cie(data: bytes, offset: int, is_debug: bool) -> Cie:
    """Raises IndexError, ValueError or struct.error when it is malformed."""
    (length,) = _U32.unpack_from(data, offset)
    at, width = offset + 4, 4
    if length == 0xFFFFFFFF:
        (length,) = _U64.unpack_from(data, offset + 4)
        at, width = offset + 12, 8
    end = at + length
    identity = int.from_bytes(data[at : at + width], "little")
    if end > len(data) or identity != ((1 << 8 * width) - 1 if is_debug else 0):
        return Cie(failure=Reason.BAD_CIE)
    at += width
    version, at = data[at], at + 1
    if version not in (1, 3, 4):
        return Cie(failure=Reason.BAD_CIE)
    zero = data.index(b"\0", at, min(end, at + 32))
    augmentation, at = data[at:zero], zero + 1
    if augmentation[:2] == b"eh":  # gcc 2: a pointer to exception data follows
        augmentation, at = augmentation[2:], at + 8
    if version == 4:
        if data[at : at + 2] != b"\x08\0":  # address size, segment selector size
            return Cie(failure=Reason.BAD_CIE)
        at += 2
    code_factor, at = read_uleb(data, at)
    data_factor, at = read_sleb(data, at)
    register, at = (data[at], at + 1) if version == 1 else read_uleb(data, at)
    if register != RETURN_ADDRESS or code_factor >= _FACTOR_LIMIT or abs(data_factor) >= _FACTOR_LIMIT:
        return Cie(failure=Reason.BAD_CIE)
    encoding, is_signal = 0, False
    if augmentation[:1] == b"z":
        size, at = read_uleb(data, at)
        if at + size > end:
            return Cie(failure=Reason.BAD_CIE)
        encoding, is_signal = _augmentation(augmentation[1:], data[at : at + size])
        at += size
    elif augmentation:
        return Cie(failure=Reason.AUGMENTATION)
    if not at <= end <= at + _CIE_PROGRAM_LIMIT_BYTES:
        return Cie(failure=Reason.BAD_CIE)
    return Cie(at, end, code_factor, data_factor, encoding, augmentation[:1] == b"z", is_signal)


def _augmentation(letters: Iterable[int], data: bytes) -> tuple[int, bool]:
    """(pointer encoding, signal frame), LSB 10.6.1.1.1. Raises ValueError at a letter that may hide others."""
    encoding, is_signal, at = 0, False, 0
    for letter in letters:
        if letter == ord("R"):
            encoding, at = data[at], at + 1
        elif letter == ord("L"):
            at += 1
        elif letter == ord("P"):
            at = _skip_pointer(data, at)
        elif letter == ord("S"):
            is_signal = True
        else:
            raise ValueError("an unknown letter in an augmentation string")
    return encoding, is_signal


def _skip_pointer(data: bytes, at: int) -> int:
    kind = data[at] & 0x0F
    if data[at] == _OMIT:
        return at + 1
    if kind in (0x01, 0x09):
        return read_uleb(data, at + 1)[1]
    return at + 1 + _SIZES[kind] if kind in _SIZES else len(data)
