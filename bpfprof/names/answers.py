"""What every source of names answers for one address: a `Symbol`, or `Unresolved` with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from bpfprof.cpython.code_objects import Unresolved

__all__ = ["Answer", "Symbol", "Unresolved"]


@dataclass(frozen=True, slots=True)
class Symbol:
    """A function. `name` is as a person reads it; `start` is in the address space of the question."""

    name: str
    start: int


Answer = Symbol | Unresolved
