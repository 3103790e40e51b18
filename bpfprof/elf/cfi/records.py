"""The records of .eh_frame or .debug_frame: a section in, its functions and the initial rules they share out.

Layouts: LSB 5.0 core specification, sections 10.6 (.eh_frame, .eh_frame_hdr); DWARF 5, section 6.4.1 (.debug_frame).
"""

from __future__ import annotations

import struct
from array import array
from collections import Counter
from collections.abc import Iterable

import numpy as np

from bpfprof.array_types import NDArray
from bpfprof.dataclass import dataclass
from bpfprof.elf.cfi.rules import RETURN_ADDRESS, Reason
from bpfprof.elf.cfi.sections import RECORD_LIMIT, FrameSection, Header, frame_address, frame_offsets
from bpfprof.elf.leb128 import Ints, read_sleb, read_uleb

_CIE_LIMIT = 1024  # a file has one for each language and each way to be compiled, some 30 at most
_CIE_PROGRAM_LIMIT_BYTES = 512
_FACTOR_LIMIT = 1 << 16
_BLOCK_RECORDS = 1 << 16  # read together: some 10 MB of arrays
_SHORTEST_BYTES = 16

# Pointer encodings, LSB 10.5.1: size and sign in the low bits, what it is relative to in the high ones.
_FORMATS = {0x00: "<u8", 0x02: "<u2", 0x03: "<u4", 0x04: "<u8", 0x0A: "<i2", 0x0B: "<i4", 0x0C: "<i8"}
_PC_RELATIVE, _RELATIVE_MASK, _OMIT = 0x10, 0xF0, 0xFF

_U32, _LENGTH_AND_IDENTITY = struct.Struct("<I"), struct.Struct("<II")


@dataclass(frozen=True)
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


Lost = Counter[Reason]
# One for each FDE whose range is known: ELF addresses; its fields after the CIE pointer, and its program, in the
# section; the index of its CIE; a Reason, or 0.
FUNCTION = np.dtype(
    [
        *(("start", "<u8"), ("end", "<u8"), ("fields", "<i4"), ("begin", "<i4"), ("stop", "<i4")),
        *(("cie", "<i2"), ("failure", "u1")),
    ]
)
Functions = NDArray[np.void]


def find_records(section: FrameSection, header: Header | None) -> tuple[Ints, Lost]:
    """Where the FDEs are, ascending, and how many are left out, at least, and why.

    `header` is address and content of .eh_frame_hdr; without its table, or with one that is wrong, all records are
    walked.
    """
    if header is not None and not section.is_debug and frame_address(header) == section.address:
        table = frame_offsets(header, section.address)
        if table is not None and table[0][0] >= 0 and table[0][-1] <= len(section.data) - 8:
            return table[0], Counter({Reason.TOO_MANY_FUNCTIONS: table[1]})
    return _walk(section)


def _walk(section: FrameSection) -> tuple[Ints, Lost]:
    data, size = section.data, len(section.data)
    found = array("q")
    position = steps = 0
    while position + 4 <= size:
        steps += 1
        (length,) = _U32.unpack_from(data, position)
        if position + 4 + length > size:
            return np.array(found, np.int64), Counter({Reason.TRUNCATED: 1})
        if steps > 2 * RECORD_LIMIT or len(found) >= RECORD_LIMIT:
            return np.array(found, np.int64), Counter({Reason.TOO_MANY_FUNCTIONS: 1})
        if length:
            found.append(position)
        elif section.ends_at_zero:
            break
        position += 4 + length  # a length of zero ends the part that one object file brought
    return np.array(found, np.int64), Counter()


class RecordReader:
    """Reads the fields of many records at once. Lengths of 64 bits are for sections larger than any that is read."""

    def __init__(self, section: FrameSection) -> None:
        self._section = section
        self._data = section.data + bytes(max(0, _SHORTEST_BYTES - len(section.data)))
        self._cie_numbers: dict[int, int] = {}
        # The first is for all beyond the limit.
        self.cies: list[Cie] = [Cie(failure=Reason.BAD_CIE)]

    def read(self, records: Ints, code: tuple[int, int]) -> tuple[Functions, Lost]:
        """The functions of these records (CIEs among them are left out), in the order of the section.

        `code` is where functions may be, by address; those without a known range are only counted. Fills `cies`, which
        the result refers to.
        """
        lost: Lost = Counter()
        starts = range(0, max(1, len(records)), _BLOCK_RECORDS)
        functions = np.concatenate([self._block(records[at : at + _BLOCK_RECORDS], code, lost) for at in starts])
        # A record that reaches into the next one is damaged.
        overlaps = functions["stop"][:-1] + 8 > functions["fields"][1:]
        functions["failure"][:-1][overlaps] = Reason.OVERLAP
        return functions, lost

    def _block(self, records: Ints, code: tuple[int, int], lost: Lost) -> Functions:
        pointer = self._numbers(records + 4, "<u4").astype(np.int64)
        end = records + 4 + self._numbers(records, "<u4")
        is_debug, size = self._section.is_debug, len(self._section.data)
        is_fde = pointer != (0xFFFFFFFF if is_debug else 0)
        sound = is_fde & (end > records + 4) & (end <= size)
        lost[Reason.TRUNCATED] += int((is_fde & ~sound).sum())
        records, pointer, end = records[sound], pointer[sound], end[sound]
        owner = pointer if is_debug else records + 4 - pointer
        heads = np.flatnonzero(np.diff(owner, prepend=-1 << 62))  # neighbours mostly share one
        numbers = np.array([self._cie_number(offset) for offset in owner[heads].tolist()], np.int64)
        functions = np.zeros(len(records), FUNCTION)
        functions["fields"], functions["stop"] = records + 8, end
        functions["cie"] = np.repeat(numbers, np.diff(heads, append=len(owner)))
        failure = self._locate(functions, code)
        lost.update({Reason(index): number for index, number in enumerate(np.bincount(failure).tolist()) if index})
        kept: Functions = functions[(failure == 0) & (functions["end"] > functions["start"])]
        return kept

    def _cie_number(self, offset: int) -> int:
        """Its index in `cies`."""
        number = self._cie_numbers.get(offset)
        if number is None:
            if len(self.cies) > _CIE_LIMIT:
                return 0
            number = self._cie_numbers[offset] = len(self.cies)
            self.cies.append(self._cie(offset))
        return number

    def _locate(self, functions: Functions, code: tuple[int, int]) -> NDArray[np.uint8]:
        """Fills in ranges and where programs begin; returns a Reason, or 0, of each."""
        cie, fields, stop = functions["cie"], functions["fields"].astype(np.int64), functions["stop"]
        start, size = np.zeros(len(fields), np.uint64), np.zeros(len(fields), np.uint64)
        begin = fields.copy()
        failure: NDArray[np.uint8] = np.array([item.failure for item in self.cies], np.uint8)[cie]
        encodings = np.array([item.pointer_encoding for item in self.cies], np.int64)[cie]
        for encoding in np.unique(encodings[failure == 0]).tolist():
            at = np.flatnonzero((encodings == encoding) & (failure == 0))
            form = _FORMATS.get(encoding & 0x0F)
            if form is None or encoding & _RELATIVE_MASK not in (0, _PC_RELATIVE):
                failure[at] = Reason.POINTER_ENCODING
                continue
            width = int(form[2])
            start[at] = self._numbers(fields[at], form).astype(np.uint64)
            if encoding & _RELATIVE_MASK == _PC_RELATIVE:
                start[at] += fields[at].astype(np.uint64) + np.uint64(self._section.address)
            size[at] = self._numbers(fields[at] + width, form.replace("i", "u"))
            begin[at] += 2 * width
        augmented = np.array([item.has_augmentation_size for item in self.cies], np.bool_)[cie] & (failure == 0)
        begin[augmented] = self._after_augmentation(begin[augmented])
        failure[(failure == 0) & (begin > stop)] = Reason.TRUNCATED
        end = start + size
        low, high = (np.uint64(limit) for limit in code)
        failure[(failure == 0) & ((start < low) | (end > high) | (end < start))] = Reason.BAD_RANGE
        functions["start"], functions["end"], functions["begin"] = start, end, begin
        return failure

    def _after_augmentation(self, at: Ints) -> Ints:
        """Where the program begins: a ULEB128 size of one byte, then so many bytes. Too far when it is longer."""
        size = self._numbers(at, "u1").astype(np.int64)
        return np.where(size < 0x80, at + 1 + size, len(self._data))

    def _numbers(self, at: Ints, form: str) -> NDArray[np.integer]:
        """Numbers at any places; what lies behind the section is of no account."""
        count = len(self._data) - np.dtype(form).itemsize + 1
        everywhere: NDArray[np.integer] = np.ndarray(count, form, self._data, strides=(1,))
        return everywhere[np.minimum(at, count - 1)]

    def _cie(self, offset: int) -> Cie:
        if offset < 0:
            return Cie(failure=Reason.BAD_CIE)
        try:
            return _parse_cie(self._section.data, offset, self._section.is_debug)
        except (IndexError, ValueError, struct.error):
            return Cie(failure=Reason.BAD_CIE)


def _parse_cie(data: bytes, offset: int, is_debug: bool) -> Cie:
    """Raises IndexError, ValueError or struct.error when it is malformed."""
    length, identity = _LENGTH_AND_IDENTITY.unpack_from(data, offset)
    at, end = offset + 8, offset + 4 + length
    if end > len(data) or identity != (0xFFFFFFFF if is_debug else 0):
        return Cie(failure=Reason.BAD_CIE)
    version, at = data[at], at + 1
    if version not in (1, 3, 4):
        return Cie(failure=Reason.BAD_CIE)
    zero = data.index(b"\0", at, min(end, at + 32))
    augmentation, at = data[at:zero], zero + 1
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
    return at + 1 + int(_FORMATS[kind][2]) if kind in _FORMATS else len(data)
