"""Code without symbols -> where the functions in it begin and end."""

from __future__ import annotations

import numpy as np

from bpfprof.elf.asm.effects import effects
from bpfprof.elf.asm.lengths import PADDING_BYTES, lengths

_ALIGNED = 16  # where functions begin that have padding before them
_PADDING = b"\x90\xcc\x00\x66\x0f\x2e\xf3"  # what it begins with: nop in all its forms, int3, zeros
_EMPTY = tuple(_ALIGNED * fill for fill in (b"\0", b"\x90", b"\xcc"))
_NOWHERE = -1


class _Flow:
    """Of code the instruction at each place: its size (0: none is understood), where it jumps, whether it goes on."""

    def __init__(self, code: bytes) -> None:
        padded = np.frombuffer(code + bytes(PADDING_BYTES), np.uint8)
        decoded = lengths(padded)
        self.size: list[int] = decoded.size[: len(code)].tolist()
        places = np.flatnonzero(decoded.size[: len(code)])
        found = effects(padded, decoded, places)
        targets, goes_on = np.full(len(code), _NOWHERE), np.ones(len(code), np.bool_)
        targets[places], goes_on[places] = found.target, found.falls_through
        self.target: list[int] = targets.tolist()
        self.goes_on: list[bool] = goes_on.tolist()

    def function_at(self, begin: int) -> tuple[int, bool]:
        """(where it ends, whether it jumps elsewhere): at the first instruction behind which nothing goes on, where no
        jump before it leads further. 0: it has no end.
        """
        at, furthest, leaves = begin, 0, False
        while at < len(self.size) and self.size[at]:
            target, end = self.target[at], at + self.size[at]
            if begin <= target < len(self.size):
                furthest = max(furthest, target)
            elif target != _NOWHERE:
                leaves = True
            if not self.goes_on[at] and furthest < end <= len(self.size):
                return end, leaves
            at = end
        return 0, leaves


def functions_in(code: bytes, address: int) -> list[tuple[int, int]]:
    """Begins and ends of functions that follow one another from the first byte of code on, which is at this address.

    Up to the first one that has no end. One that jumps elsewhere is left out: it may be a part of another.
    """
    flow, found, at = _Flow(code), list[tuple[int, int]](), 0
    while at < len(code):
        if code[at : at + _ALIGNED] in _EMPTY or ((address + at) % _ALIGNED and code[at] in _PADDING):
            at += _ALIGNED - (address + at) % _ALIGNED
            continue
        end, leaves = flow.function_at(at)
        if not end:
            break
        if not leaves:
            found.append((address + at, address + end))
        at = end
    return found
