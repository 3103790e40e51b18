"""Native and kernel frames as they come from the kernel side, to the recording's table, each address once."""

from __future__ import annotations

import os
import time
from array import array
from dataclasses import field

import numpy as np

from bpfprof import abi
from bpfprof import array_types as npt
from bpfprof.code.budget import Budget
from bpfprof.code.files import KERNEL_FILE
from bpfprof.code.maps import CodeMap, NativeCode
from bpfprof.code.recent import Recent
from bpfprof.dataclass import dataclass
from bpfprof.elf.asm.effects import LONGEST_CALL_BYTES, ends_with_call
from bpfprof.model.ids import Pid
from bpfprof.model.samples import NATIVE_DTYPE, NATIVE_EXACT, NO_FILE

_KERNEL_ADDRESS_BITS = 48  # the upper ones of all kernel addresses are set
# Where the kernel lies is a secret that helps to attack it: what is written is where an address is from here.
_KERNEL_ORIGIN = int.from_bytes(os.urandom(8), "little") % (1 << _KERNEL_ADDRESS_BITS)
_EXACT = 1 << abi.CONSTANTS["BP_EXACT_BIT"]
_NOT_READY = int(abi.Status["BP_NATIVE_NOT_READY"])
_NO_MAPPING = int(abi.Status["BP_NATIVE_NO_MAPPING"])
_NO_RULE = int(abi.Status["BP_NATIVE_NO_RULE"])
_BARE_LEAF = int(abi.ENUMS["bp_native_flags"]["BP_NATIVE_BARE_LEAF"])
_BY_FRAME_POINTER = int(abi.ENUMS["bp_native_flags"]["BP_NATIVE_BY_FRAME_POINTER"])
# How a walk ends that a wrong frame pointer has led astray, and how many of its frames from the leaf may be to blame.
_LOST = {int(abi.Status["BP_NATIVE_" + name]) for name in ("NOT_GROWING", "FAULT", "NO_MAPPING", "NO_RULE")}
_LOOKED_AT = 4
_OVER_BUDGET = int(abi.Status["BP_OVER_BUDGET"])
# Of a process, at once and then a second, and of all: a program may make addresses up. One takes 0.3 KiB here.
_ADDRESSES, _ADDRESSES_PER_S, _ADDRESSES_OF_ALL = 100_000, 2_000, 2_000_000
# Of addresses that are remembered: so many at most that are new, and if they are more than a few those of the last
# minutes. One that was forgotten gets another number.
_NUMBERS_LIMIT, _FEW_NUMBERS, _KEPT_S = 100_000, 20_000, 60.0
_KNOWN_LIMIT = 20_000  # addresses that are found by the code map they are in, which is quicker
_UNKNOWN_FILE = 0xFFFF  # NO_FILE, in an array of short numbers
assert abi.CONSTANTS["BP_MAX_FILES"] <= _UNKNOWN_FILE
Row = tuple[int, int, int]  # address, file, flags


@dataclass
class RawStack:
    """The native part of one stack. `words` are as the kernel side sends them: native_count runtime addresses with
    BP_EXACT_BIT, then kernel addresses."""

    words: list[int]
    native_count: int
    native_status: int
    native_flags: int
    generation: int = 0  # of the mappings it was unwound by
    time_ns: int = 0

    def cut(self, count: int, status: int) -> None:
        """Leaves only so many native frames from the leaf, for this reason."""
        self.words = self.words[:count] + self.words[self.native_count :]
        self.native_count, self.native_status = count, status


@dataclass
class NativeTable:
    """Numbers addresses from 1 on; `take_new()` hands over what the recording does not have yet."""

    code: NativeCode
    _new: list[Row] = field(default_factory=list)
    _file_of: array[int] = field(default_factory=lambda: array("H"))  # by number - 1
    _numbers: Recent[int] = field(default_factory=Recent)  # by _key()
    _turned_s: float = field(default_factory=time.monotonic)
    _budget: Budget = field(default_factory=lambda: Budget(_ADDRESSES, _ADDRESSES_PER_S, _ADDRESSES_OF_ALL))
    _kernel_callers: dict[int, int] = field(default_factory=dict)  # kernel addresses that are returned to -> numbers
    _used: set[int] = field(default_factory=set)  # numbers that were met since take_used_files()

    def numbers(self, pid: int, stack: RawStack) -> list[int]:
        """Of the native frames and then the kernel frames of one stack, leaf first.

        Cuts the stack at its leaf if that was left by a word that is no return address.
        """
        code_map = self.code.at(Pid(pid), stack.time_ns)
        if self.is_late(pid, stack):
            stack.native_status = _NOT_READY
        if stack.native_status == _NOT_READY and stack.native_count:
            self.code.hurry(Pid(pid), _unwound_at(stack.words[stack.native_count - 1]))
        if stack.native_status in _LOST and stack.native_flags & _BY_FRAME_POINTER:
            self.code.want(Pid(pid), map(_unwound_at, stack.words[: min(stack.native_count, _LOOKED_AT)]))
        if stack.native_count > 1 and code_map is not None:
            if stack.native_flags & _BARE_LEAF and not self._follows_call(code_map, stack.words[1]):
                stack.cut(1, _NO_RULE)
                stack.native_flags &= ~_BARE_LEAF
            if stack.generation != code_map.generation:
                self._cut_at_change(stack, code_map, self.code.of_generation(Pid(pid), stack.generation))
        known = code_map.known if code_map is not None else {}
        if self._budget.is_spent(pid):
            words = stack.words
            count = next((at for at in range(stack.native_count) if words[at] not in known), stack.native_count)
            if count < stack.native_count:
                stack.cut(count, _OVER_BUDGET)
        words, native_count = stack.words, stack.native_count
        count_before = len(self._file_of)
        numbers = [known.get(word) or self._native(code_map, known, word) for word in words[:native_count]]
        if len(self._file_of) > count_before:
            self._budget.spend(pid, len(self._file_of) - count_before)
        self._used.update(numbers)
        if len(words) > native_count:
            # A sample's first kernel address is where it was; of a wait it is our own program.
            numbers.append(self._number((_without_origin(words[native_count]), KERNEL_FILE, NATIVE_EXACT)))
            callers = self._kernel_callers
            numbers += [callers.get(word) or self._kernel_caller(word) for word in words[native_count + 1 :]]
        return numbers

    def is_late(self, pid: int, stack: RawStack) -> bool:
        """Whether a stack ended in code that was mapped a moment before, so that a later look can tell more."""
        is_unmapped = stack.native_status == _NO_MAPPING and stack.native_count > 0
        return is_unmapped and self.code.is_late(Pid(pid), _unwound_at(stack.words[stack.native_count - 1]))

    def is_outdated(self, pid: int, stack: RawStack) -> bool:
        """Whether it was unwound by mappings that had been replaced; its events are doubted (NativeCode.replaced)."""
        for (changed, generation), from_ns in self.code.replaced.items():
            if pid == changed and 0 < stack.generation <= generation and stack.time_ns >= from_ns:
                return True
        return False

    def take_new(self) -> npt.NDArray[np.void]:
        """New rows, of NATIVE_DTYPE."""
        new, self._new = self._new, []
        return np.array(new, NATIVE_DTYPE)

    def take_used_files(self) -> set[int]:
        """Files that stacks led through since the last call."""
        used, self._used = self._used, set()
        return {self._file_of[number - 1] for number in used}

    def _cut_at_change(self, stack: RawStack, now: CodeMap, used: CodeMap | None) -> None:
        """Cuts a stack where it was unwound by the rules of what had been at an address before."""
        if used is None:
            stack.cut(1, _NOT_READY)
            return
        for position, word in enumerate(stack.words[: stack.native_count - 1]):
            address = _unwound_at(word)
            before = used.locate(address)
            # What was in no mapping that was known was left by no rules: code of a JIT that was new.
            if before[0] != NO_FILE and now.locate(address) != before:
                stack.cut(position + 1, _NOT_READY)
                return

    def _follows_call(self, code_map: CodeMap, address: int) -> bool:
        """Whether the instruction before an address is a call."""
        file, found = code_map.locate(address - 1)
        image = self.code.files.files[file].image if file != NO_FILE else None
        return image is not None and ends_with_call(
            image.read(found + 1 - LONGEST_CALL_BYTES, LONGEST_CALL_BYTES) or b""
        )

    def _native(self, code_map: CodeMap | None, known: dict[int, int], word: int) -> int:
        number = self._number(_native_row(code_map, word))
        if self._file_of[number - 1] != _UNKNOWN_FILE:  # that may be known later
            if len(known) >= _KNOWN_LIMIT:
                known.clear()
            known[word] = number
        return number

    def _kernel_caller(self, word: int) -> int:
        number = self._kernel_callers[word] = self._number((_without_origin(word), KERNEL_FILE, 0))
        return number

    def _number(self, row: Row) -> int:
        key = _key(row)
        number = self._numbers.renewed(key)
        if not number:
            count = self._numbers.new_count
            if count >= _NUMBERS_LIMIT or (count > _FEW_NUMBERS and time.monotonic() - self._turned_s > _KEPT_S):
                self._numbers.turn()
                self._turned_s = time.monotonic()
            self._new.append(row)
            self._file_of.append(min(row[1], _UNKNOWN_FILE))
            number = self._numbers[key] = len(self._file_of)
        return number


def _key(row: Row) -> int:
    """A number for an address in a file takes half of what the row does."""
    address, file, flags = row
    return (file << 8 | flags) << 64 | address


def kernel_addresses(written: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Those in the kernel, of what this process wrote of them."""
    upper = (1 << 64) - (1 << _KERNEL_ADDRESS_BITS)
    return (written + np.uint64(_KERNEL_ORIGIN)) | np.uint64(upper)


def _without_origin(address: int) -> int:
    return (address - _KERNEL_ORIGIN) % (1 << _KERNEL_ADDRESS_BITS)


def _unwound_at(word: int) -> int:
    """The address whose rule a frame was left by: what is returned to may be the first one behind the mapping."""
    return word & ~_EXACT if word & _EXACT else word - 1


def _native_row(code_map: CodeMap | None, word: int) -> Row:
    address, flags = word & ~_EXACT, NATIVE_EXACT if word & _EXACT else 0
    if code_map is None:
        return address, NO_FILE, flags
    # What is returned to may be the first address behind the mapping.
    file, found = code_map.locate(address - (not flags))
    return (found + (not flags)) & (1 << 64) - 1, file, flags
