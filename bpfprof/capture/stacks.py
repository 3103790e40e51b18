"""Stacks and code objects as they come from the kernel side, to the recording's own tables, each thing once.

A code object is read from the target the first time its address is met, and again when the kernel side saw another
identity there. What was read counts only if its identity is the one the kernel side saw with the sample.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bpfprof.abi.dtypes import PYTHON_FRAME_DTYPE as RAW_FRAME_DTYPE
from bpfprof.abi.dtypes import STACK_DTYPE as RAW_STACK_DTYPE
from bpfprof.capture.codes import ProcessCodes, identity_hash
from bpfprof.capture.lookup import look_up
from bpfprof.cpython.code_objects import CodeObject, Unresolved
from bpfprof.model.samples import PYTHON_FRAME_DTYPE, STACK_DTYPE

_ADDRESS_MASK = (1 << 56) - 1
_HEADER_BYTES = RAW_STACK_DTYPE.itemsize
_NO_OFFSET = -2
_CHANGED = Unresolved("code object replaced before it was read")


@dataclass(slots=True)
class StackTable:
    """Numbers stacks and code objects; `take_new()` hands over what the recording does not have yet."""

    _index_of_key: dict[int, int] = field(default_factory=dict)
    _index_of_frames: dict[tuple[int, int, bytes], int] = field(default_factory=dict)
    _code_count: int = 0
    _unnamed_index: dict[tuple[int, str], int] = field(default_factory=dict)
    _new_codes: list[tuple[int, CodeObject | Unresolved]] = field(default_factory=list)
    _new_stacks: list[tuple[int, int, int]] = field(default_factory=list)  # process, python_count, status
    _new_frames: list[npt.NDArray[np.void]] = field(default_factory=list)
    unverified_count: int = 0
    changed_count: int = 0

    def add_records(self, records: Iterable[memoryview], codes_of: dict[int, ProcessCodes]) -> None:
        """Takes stack records of the kernel side; codes_of is by pid."""
        for record in records:
            header = np.frombuffer(record, RAW_STACK_DTYPE, 1)[0]
            codes = codes_of.get(int(header["tgid"]))
            if codes is None:
                continue
            raw = np.frombuffer(record, RAW_FRAME_DTYPE, int(header["python_count"]), _HEADER_BYTES)
            key = int(header["key"])
            if key not in self._index_of_key or not _holds_the_same(codes, raw):
                self._index_of_key[key] = self._intern(codes, raw, int(header["status"]))

    def add_frames(self, codes: ProcessCodes, frames: list[tuple[int, int, int]], status: int) -> int:
        """Index of a stack that was walked from user space: (code address, instruction address, mark), leaf first."""
        raw = np.zeros(len(frames), RAW_FRAME_DTYPE)
        raw["code"] = [code & _ADDRESS_MASK | mark << 56 for code, _, mark in frames]
        raw["instruction"] = [instruction for _, instruction, _ in frames]
        return self._intern(codes, raw, status)

    def indices(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
        """Stack indices of keys; 0 for key 0 and for stacks that never arrived."""
        return look_up(keys, self._index_of_key, 0).astype(np.uint32)

    def _intern(self, codes: ProcessCodes, raw: npt.NDArray[np.void], status: int) -> int:
        frames = np.empty(len(raw), PYTHON_FRAME_DTYPE)
        frames["mark"] = raw["code"] >> 56
        rows = [
            self._code(codes, address, identity)
            for address, identity in zip((raw["code"] & _ADDRESS_MASK).tolist(), raw["identity"].tolist(), strict=True)
        ]
        frames["code"] = [index for index, _ in rows]
        starts = np.array([start for _, start in rows], np.uint64)
        offsets = (raw["instruction"] - starts).astype(np.int64).clip(-(1 << 31), (1 << 31) - 1)
        frames["offset"] = np.where(starts == 0, _NO_OFFSET, offsets)
        content = (codes.process, status, frames.tobytes())
        index = self._index_of_frames.get(content)
        if index is None:
            index = self._index_of_frames[content] = len(self._index_of_frames) + 1
            self._new_stacks.append((codes.process, len(raw), status))
            self._new_frames.append(frames)
        return index

    def _code(self, codes: ProcessCodes, address: int, identity: int) -> tuple[int, int]:
        known = codes.known.get(address)
        if known is not None and identity in (0, known[0]):
            return known[1], known[2]
        code = codes.reader(address) if codes.reader else Unresolved("process gone before its code was read")
        read_identity = identity
        if isinstance(code, CodeObject):
            read_identity = identity_hash(code.identity)
            if not identity:
                self.unverified_count += 1
            elif identity != read_identity:
                code = _CHANGED
                self.changed_count += 1
        if not isinstance(code, CodeObject):
            return self._unnamed(codes, code), 0
        index = self._number(codes, code)
        codes.known[address] = (identity or read_identity, index, code.code_start)
        return index, code.code_start

    def _number(self, codes: ProcessCodes, code: CodeObject | Unresolved) -> int:
        self._code_count += 1
        self._new_codes.append((codes.process, code))
        return self._code_count

    def _unnamed(self, codes: ProcessCodes, reason: Unresolved) -> int:
        """One entry a reason; the next stack tries to read the code object again."""
        key = (codes.process, reason.reason)
        if key not in self._unnamed_index:
            self._unnamed_index[key] = self._number(codes, reason)
        return self._unnamed_index[key]

    def take_new(self) -> tuple[list[tuple[int, CodeObject | Unresolved]], dict[str, npt.NDArray[Any]]]:
        """New code objects (process index, what was read), and arrays of new stacks (empty when there are none)."""
        codes, self._new_codes = self._new_codes, []
        arrays: dict[str, npt.NDArray[Any]] = {}
        if self._new_stacks:
            stacks = np.zeros(len(self._new_stacks), STACK_DTYPE)
            stacks["process"], stacks["python_count"], stacks["status"] = zip(*self._new_stacks, strict=True)
            arrays = {"stacks": stacks, "python": np.concatenate(self._new_frames)}
            self._new_stacks, self._new_frames = [], []
        return codes, arrays


def _holds_the_same(codes: ProcessCodes, raw: npt.NDArray[np.void]) -> bool:
    """Whether a stack that was sent before is sent again with the code objects it had."""
    addresses, identities = (raw["code"] & _ADDRESS_MASK).tolist(), raw["identity"].tolist()
    for address, identity in zip(addresses, identities, strict=True):
        known = codes.known.get(address)
        if known is None or identity not in (0, known[0]):
            return False
    return True
