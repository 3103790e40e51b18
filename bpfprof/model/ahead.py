"""Work that is done by two CPUs where numpy does it, which lets other threads run meanwhile."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Generic, TypeVar

import numpy.ma  # noqa: F401  # not by numpy.unique() in two threads: see commands/importing.py

Item = TypeVar("Item")
Made = TypeVar("Made")
_SWITCH_S = 0.0005  # so long one that numpy lets go on may wait for one that runs Python: 5 ms are many calls of numpy
_IN_WORK = 2  # items, and the one that is used


@contextlib.contextmanager
def second_thread() -> Iterator[ThreadPoolExecutor]:
    """One more thread, until its work is done."""
    with _more_threads(1) as other:
        yield other


@contextlib.contextmanager
def _more_threads(count: int) -> Iterator[ThreadPoolExecutor]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        with ThreadPoolExecutor(count) as others:
            yield others
    finally:
        sys.setswitchinterval(before)


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same, of which another thread makes one while the one before it is used."""

    def next_one() -> list[Item]:
        return [*islice(items, 1)]

    with second_thread() as other:
        making = other.submit(next_one)
        while found := making.result():
            making = other.submit(next_one)
            yield found.pop()


def side_by_side(make: Callable[[Item], Made], items: Iterable[Item], are_many: bool = True) -> Iterator[Made]:
    """make(item) of each, in their order; of many two threads make the next ones while one is used."""
    if not are_many:
        yield from map(make, items)
        return
    with _more_threads(2) as others:
        making = deque[Future[Made]]()
        for item in items:
            making.append(others.submit(make, item))
            if len(making) > _IN_WORK:
                yield making.popleft().result()
        while making:
            yield making.popleft().result()


class LastMade(Generic[Item, Made]):
    """What was made last for a thread of this program is not made again for it, nor for others while it has that."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._item_of: dict[int, Item] = {}  # by thread
        self._made: dict[Item, Future[Made]] = {}

    def of(self, item: Item, make: Callable[[Item], Made]) -> Made:
        """make(item), which nobody changes."""
        with self._lock:
            self._item_of[threading.get_ident()] = item
            made = self._made.get(item)
            if is_new := made is None:
                there = {thread.ident for thread in threading.enumerate()}
                self._item_of = {ident: each for ident, each in self._item_of.items() if ident in there}
                wanted = set(self._item_of.values())
                self._made = {each: of_it for each, of_it in self._made.items() if each in wanted}
                made = self._made[item] = Future()
        assert made is not None
        if is_new:
            try:
                made.set_result(make(item))
            except BaseException as error:
                with self._lock:
                    del self._made[item]
                made.set_exception(error)
        return made.result()
