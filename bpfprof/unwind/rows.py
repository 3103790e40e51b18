"""Rows of call frame information as the kernel side searches them: `CallFrames` in, pages, rows and one rule table out.

A row is 32 bits: the low 12 bits of its address, then a rule of 20 bits. So a plain comparison of numbers orders the
rows of a 4 KiB page, and a row costs 4 bytes. A page has at most 4,096 rows, 13 steps of a binary search; the busiest
page of 3,200 files of one machine has 1,364, 11 steps. 16 bits of address and 16 of rule would cost the same and save
most of the page index, which is 3 % of the rows, but take 14 to 17 steps and put an end to the rules after 65,536.
"""

from __future__ import annotations

from dataclasses import field, replace

import numpy as np

from bpfprof import abi
from bpfprof.array_types import NDArray
from bpfprof.dataclass import dataclass
from bpfprof.elf.cfi.rules import (
    NO_RULE_ID,
    RULE,
    UNSUPPORTED_ID,
    Addresses,
    CallFrames,
    CfaKind,
    FramePointerKind,
    RuleFields,
    Rules,
)
from bpfprof.elf.parts import Parts

PAGE_BITS, RULE_BITS = 12, abi.CONSTANTS["BP_ROW_RULE_BITS"]
FRAME_POINTER_ID = abi.CONSTANTS["BP_RULE_FRAME_POINTER"]
BARE_LEAF_ID = abi.CONSTANTS["BP_RULE_BARE_LEAF"]
UNREAD_ID = abi.CONSTANTS["BP_RULE_UNREAD"]
_OWN_MARK = 0x80  # a flag that no file's rule has, so that none is taken for this one
UNREAD_FIELDS: RuleFields = (int(CfaKind.NO_RULE), 0, _OWN_MARK, 0, 0, 0, 0)
RULE_MASK = (1 << RULE_BITS) - 1
_OFFSET_MASK = (1 << PAGE_BITS) - 1
_BLOCK_ROWS = 1 << 15  # as many as stay in the processor's cache


@dataclass(frozen=True)
class FileRows:
    """Rows of one file. They refer to the file's own rules, or, once adopted, to those of a RuleTable.

    The rows of page p (an ELF address >> 12, minus `first_page`) are rows[pages[p]:pages[p + 1]]. Row 0 is of no page
    and has no rule: it is "the row before" for addresses in front of the first one. parts: of the file, which these
    rows were made from; empty where nobody asked.
    """

    first_page: int
    pages: NDArray[np.uint32]
    rows: NDArray[np.uint32]
    parts: Parts = field(default_factory=lambda: np.zeros((0, 2), np.uint64))


def compact(frames: CallFrames) -> FileRows:
    """The rows of a file; its rules keep their ids."""
    if not len(frames.address):
        return FileRows(0, np.ones(1, np.uint32), np.zeros(1, np.uint32))
    first, last = int(frames.address[0]) >> PAGE_BITS, int(frames.address[-1]) >> PAGE_BITS
    rows = np.zeros(len(frames.address) + 1, np.uint32)
    rows[1:] = (frames.address & np.uint64(_OFFSET_MASK)).astype(np.uint32) << np.uint32(RULE_BITS)
    rows[1:] |= frames.rule
    counts = np.bincount((frames.address >> np.uint64(PAGE_BITS)).astype(np.int64) - first, minlength=last + 1 - first)
    pages = np.append(1, 1 + np.cumsum(counts))
    return FileRows(first, pages.astype(np.uint32), rows)


def expanded(table: FileRows) -> tuple[Addresses, NDArray[np.uint32]]:
    """(addresses, rules) of the rows, as compact() was given them."""
    pages = np.arange(table.first_page, table.first_page + len(table.pages) - 1, dtype=np.uint64) << np.uint64(
        PAGE_BITS
    )
    rows = table.rows[1 : int(table.pages[-1])]
    addresses = np.repeat(pages, np.diff(table.pages)) + (rows >> np.uint32(RULE_BITS))
    return addresses, rows & np.uint32(RULE_MASK)


def find(table: FileRows, address: int) -> int:
    """The rule at an ELF address, NO_RULE_ID where there is none: what the kernel side does, said in Python.

    It is the last row at or before the address; that of an earlier page if the page has none so early. Behind the last
    page there is no rule.
    """
    page = (address >> PAGE_BITS) - table.first_page
    if not 0 <= page < len(table.pages) - 1:
        return NO_RULE_ID
    key = (address & _OFFSET_MASK) << RULE_BITS | RULE_MASK  # no row at this address is greater
    low, high = int(table.pages[page]), int(table.pages[page + 1])
    while low < high:
        middle = (low + high) // 2
        if int(table.rows[middle]) <= key:
            low = middle + 1
        else:
            high = middle
    return int(table.rows[low - 1]) & RULE_MASK


class RuleTable:
    """The rules of all files, each once. A rule's id is its index and never changes; the first five are BP_RULE_*."""

    def __init__(self) -> None:
        self._records = bytearray()
        self._ids: dict[bytes, int] = {}
        first = np.zeros(5, RULE)
        first[UNSUPPORTED_ID]["cfa_kind"] = CfaKind.UNSUPPORTED
        # push %rbp; mov %rsp,%rbp: System V ABI, x86-64 supplement 1.0, figure 3.3
        first[FRAME_POINTER_ID] = (CfaKind.RBP, FramePointerKind.AT_CFA, _OWN_MARK, 0, 16, -16, -8)
        first[BARE_LEAF_ID] = (CfaKind.RSP, FramePointerKind.SAME, _OWN_MARK, 0, 8, 0, -8)
        first[UNREAD_ID] = UNREAD_FIELDS
        self.intern(first)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def records(self) -> Rules:
        """Of dtype RULE, by id; only ever grows at its end."""
        return np.frombuffer(bytes(self._records), RULE)

    def intern(self, rules: Rules) -> NDArray[np.uint32]:
        """The ids of these rules; UNSUPPORTED_ID for those that come after the table is full (BP_MAX_RULES)."""
        ids = np.full(len(rules), UNSUPPORTED_ID, np.uint32)
        content = rules.tobytes()
        for index in range(len(rules)):
            record = content[index * RULE.itemsize : (index + 1) * RULE.itemsize]
            known = self._ids.get(record)
            if known is None and len(self._ids) < abi.CONSTANTS["BP_MAX_RULES"]:
                known = self._ids[record] = len(self._ids)
                self._records += record
            if known is not None:
                ids[index] = known
        return ids

    def adopt(self, table: FileRows, rules: Rules) -> FileRows:
        """The same rows with ids of this table. `rules` are those the rows refer to."""
        ids = self.intern(rules)
        rows = np.empty_like(table.rows)
        for start in range(0, len(rows), _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            np.take(ids, table.rows[block] & np.uint32(RULE_MASK), out=rows[block], mode="clip")
            rows[block] |= table.rows[block] & np.uint32(_OFFSET_MASK << RULE_BITS)
        return replace(table, rows=rows)
