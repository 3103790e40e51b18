"""What is remembered for a time: numbers by key, of which those that did not come again are forgotten."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from itertools import chain
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Recent(Generic[Key]):
    """Numbers by key, in two halves: `turn()` forgets the older one. No number is 0."""

    def __init__(self) -> None:
        self._new: dict[Key, int] = {}
        self._old: dict[Key, int] = {}

    def __setitem__(self, key: Key, number: int) -> None:
        self._new[key] = number

    def get(self, key: Key, default: int = 0) -> int:
        """The number of a key, `default` when it is not known any more."""
        return self._new.get(key) or self._old.get(key) or default

    def renewed(self, key: Key) -> int:
        """As get(); it counts as one that came since the last turn."""
        number = self._new.get(key, 0)
        if not number and (number := self._old.pop(key, 0)):
            self._new[key] = number
        return number

    @property
    def new_count(self) -> int:
        """How many came since the last turn."""
        return len(self._new)

    def numbers(self) -> Iterator[int]:
        """Those that are not forgotten."""
        return chain(self._new.values(), self._old.values())

    def turn(self, used: Iterable[Key] = ()) -> None:
        """Forgets what did not come since the last turn, but for the keys that are used."""
        kept = {key: number for key in used if (number := self.get(key))}
        self._old, self._new = self._new, kept
