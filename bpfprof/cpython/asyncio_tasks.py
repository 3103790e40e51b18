"""The asyncio tasks of a running process: where each waits, for what, and who waits for it.

What was read of a task is kept, word by word. When it is looked at again all these words are compared first, at once:
only tasks of which one is another are read anew. Nothing is stopped, so their words are compared once more at the end:
a task that changed meanwhile is read again, and after some rounds left out and counted, not guessed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import field

import numpy as np

from bpfprof import array_types as npt
from bpfprof.cpython.asyncio_layouts import AsyncioLayout
from bpfprof.cpython.asyncio_lists import TaskLists
from bpfprof.cpython.asyncio_reading import TaskView, TaskWords
from bpfprof.cpython.asyncio_types import Kind
from bpfprof.cpython.code_objects import read_text
from bpfprof.cpython.objects import Changed
from bpfprof.dataclass import dataclass
from bpfprof.proc.pages import Pages, UnreadableError

_ROUNDS = 3
_LONGEST_S = 0.1  # then the rest is left for the next look
_SPARE_PAGES = 256
_NAME_LIMIT = 256
_DIGIT_BITS, _DIGITS_AT, _SIZE_SHIFT = 30, 24, 3  # of an int from 3.12 on, Include/cpython/longintrepr.h


@dataclass
class _Facts:
    """Words that tasks were read from: the task, the index in the pages, the value."""

    tasks: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    index: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    values: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))

    def changed(self, pages: Pages) -> set[int]:
        """Tasks of which a word is another now."""
        is_other = pages.at(self.index) != self.values
        return set(self.tasks[is_other].tolist()) if is_other.any() else set()

    def without(self, tasks: Iterable[int]) -> _Facts:
        """Those of other tasks."""
        kept = ~np.isin(self.tasks, np.array(list(tasks), np.uint64))
        return _Facts(self.tasks[kept], self.index[kept], self.values[kept])

    def with_more(self, more: _Facts) -> _Facts:
        """Both."""
        return _Facts(
            np.concatenate([self.tasks, more.tasks]),
            np.concatenate([self.index, more.index]),
            np.concatenate([self.values, more.values]),
        )


@dataclass(frozen=True)
class Look:
    """Tasks at about one moment, by address; awaited_by: one of the tasks that wait for a task, and how many do.

    A task that did not change since the last look has the same view, not only an equal one.
    """

    views: dict[int, TaskView]
    awaited_by: dict[int, tuple[int, int]]


class TaskReader:
    """Of one process. torn_count: how often a task was left out because it changed each time it was read."""

    def __init__(self, lists: TaskLists, layout: AsyncioLayout) -> None:
        self._objects, self._lists = lists.objects, lists
        self.types = lists.types
        self._pages = Pages(lists.pid)
        self._words = TaskWords(self._pages, layout, self.types)
        self._pages_limit = _SPARE_PAGES
        self._facts = _Facts()
        self._last = Look({}, {})
        self.torn_count = 0

    def look(self) -> Look:
        """All tasks that are not done."""
        pages, views = self._pages, dict(self._last.views)
        is_new = pages.count > self._pages_limit
        if is_new:  # too many are of what is long gone
            pages.forget()
            self._facts = _Facts()
            views = {}
        pages.refresh()
        addresses = self._lists.addresses(pages)
        gone = self._facts.changed(pages) | (views.keys() - addresses)
        if gone:
            self._facts = self._facts.without(gone)
            for address in gone:
                views.pop(address, None)
        read = self._read(addresses - views.keys())
        views.update(read)
        if is_new:
            self._pages_limit = 2 * pages.count + _SPARE_PAGES
        if gone or read:
            self._last = Look(views, _awaited_by(views))
        return self._last

    def _read(self, rest: set[int]) -> dict[int, TaskView]:
        """Of these tasks those that can be read, and do not change meanwhile."""
        found: dict[int, TaskView] = {}
        deadline_s = time.monotonic() + _LONGEST_S
        for _ in range(_ROUNDS):
            if not rest:
                break
            views, facts, rest = self._read_once(rest, deadline_s)
            self._pages.refresh()
            changed = facts.changed(self._pages)
            self._facts = self._facts.with_more(facts.without(changed) if changed else facts)
            found.update((address, view) for address, view in views.items() if address not in changed)
            rest |= changed
        self.torn_count += len(rest)
        return found

    def _read_once(self, tasks: set[int], deadline_s: float) -> tuple[dict[int, TaskView], _Facts, set[int]]:
        """What could be read, the facts of it, and the tasks that could not."""
        views: dict[int, TaskView] = {}
        missed: set[int] = set()
        owners: list[int] = []
        trail = self._pages.trail
        trail.clear()
        for number, address in enumerate(sorted(tasks)):
            if not number & 0xFF and time.monotonic() > deadline_s:
                missed.update(sorted(tasks)[number:])
                break
            try:
                view = self._words.view(address)
            except UnreadableError:
                missed.add(address)
                view = None
            if view is not None:
                views[address] = view
            else:
                del trail[len(owners) :]
            owners += [address] * (len(trail) - len(owners))
        index = np.array(trail, np.int64)
        return views, _Facts(np.array(owners, np.uint64), index, self._pages.at(index)), missed

    def name(self, address: int) -> str | None:
        """What a task is called whose name is at this address; None when that cannot be read."""
        objects = self._objects
        try:
            kind = self.types.kind(objects.type_of(address))
            if kind is Kind.TEXT:
                return read_text(objects.memory, objects.layout, address, _NAME_LIMIT)
            count = objects.member(address, 16) >> _SIZE_SHIFT
            if kind is not Kind.NUMBER or not 0 < count <= 3:
                return None
            digits = np.frombuffer(objects.read(address + _DIGITS_AT, 4 * count), np.uint32).tolist()
        except Changed:
            return None
        return f"Task-{sum(digit << _DIGIT_BITS * place for place, digit in enumerate(digits))}"


def _awaited_by(views: dict[int, TaskView]) -> dict[int, tuple[int, int]]:
    waiting: dict[int, list[int]] = {}
    for view in views.values():
        for each in view.waits_for:
            waiting.setdefault(each, []).append(view.address)
    found = {}
    for view in views.values():
        for each in view.awaited_as:
            if each in waiting:
                found[view.address] = waiting[each][0], len(waiting[each])
                break
    return found
