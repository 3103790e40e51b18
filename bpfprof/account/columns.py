"""Rows of a table by their columns: one next to the other is what numpy is fast with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bpfprof import array_types as npt

Column = npt.NDArray[Any]


class Columns:
    """Some rows; each of their columns is taken when it is asked for, once, and nobody changes it."""

    def __init__(self, count: int, take: Callable[[str], Column]) -> None:
        self._count, self._take, self._taken = count, take, dict[str, Column]()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, name: str) -> Column:
        if name not in self._taken:
            self._taken[name] = self._take(name)
        return self._taken[name]

    def picked(self, places: npt.NDArray[Any]) -> Columns:
        """Those at these places."""
        return Columns(len(places), lambda name: self[name][places])

    def replaced(self, columns: Mapping[str, Column]) -> Columns:
        """The same with these columns for theirs."""
        found = Columns(self._count, self.__getitem__)
        found._taken.update(columns)
        return found
