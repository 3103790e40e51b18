"""Where a process keeps its asyncio tasks: an interpreter's lists in, addresses of tasks out.

Until 3.13 `asyncio.tasks` has them in sets: a WeakSet of all (3.11 `_all_tasks`, then `_scheduled_tasks`), and one of
those that were started eagerly. From 3.14 on the sets hold only tasks that are not made in C, which are not read here;
each other is linked to the thread it was made in, and to the interpreter when that thread is gone (asyncio_tasks_head,
Include/internal/pycore_tstate.h and pycore_interp_structs.h, v3.14.0).
"""

from __future__ import annotations

import contextlib
import itertools
import struct
from dataclasses import field

from bpfprof.cpython.asyncio_layouts import AsyncioLayout, find_asyncio_layout
from bpfprof.cpython.asyncio_types import Kind, TypeTable
from bpfprof.cpython.layout import NONE
from bpfprof.cpython.objects import DICT_USED, MODULE_DICT, Changed, Objects
from bpfprof.cpython.thread_state import read_interpreters, read_thread_states
from bpfprof.dataclass import dataclass
from bpfprof.model.ids import Pid, RuntimeAddress
from bpfprof.proc.pages import Pages, UnreadableError

TASK_LIMIT = 100_000  # of a process
_MODULE = "asyncio.tasks"
_WEAK_SETS, _EAGER_SET = ("_all_tasks", "_scheduled_tasks"), "_eager_tasks"
# Offsets in all versions: set_mask and set_table of PySetObject, an entry being a key and its hash; wr_object of
# PyWeakReference; Include/cpython/setobject.h and weakrefobject.h.
_SET_MASK, _SET_TABLE, _ENTRY_BYTES, _REFERENT = 32, 40, 16, 16
_TABLE_LIMIT = 8 * TASK_LIMIT
_DUMMY_HASH = (1 << 64) - 1  # of an entry that was removed, Objects/setobject.c


@dataclass
class TaskLists:
    """Of one process. Asked again and again: what does not change is kept. cut_count: tasks beyond the limit.

    layout: None until asyncio was imported, and where it is not as it is known here: then `is_other`.
    """

    pid: Pid
    objects: Objects
    runtime_address: RuntimeAddress
    layout: AsyncioLayout | None = None
    is_other: bool = False
    cut_count: int = 0
    _sets: dict[int, list[int]] = field(default_factory=dict)  # by interpreter
    _module_counts: dict[int, int] = field(default_factory=dict)
    _tables: dict[int, tuple[bytes, dict[tuple[int, int], int]]] = field(default_factory=dict)  # of sets
    _heads: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.types = TypeTable(self.objects)

    def find(self) -> bool:
        """Whether there are lists to look at, for which asyncio has to be imported."""
        objects = self.objects
        interpreters = read_interpreters(objects.memory, objects.layout, self.runtime_address)
        for each in interpreters:
            with contextlib.suppress(Changed):
                self._find_sets(each)
        if self._sets and self.layout is None and not self.is_other:
            self.layout = find_asyncio_layout(self.pid, objects.layout.version)
            self.is_other = self.layout is None
        if self.layout is None:
            return False
        if self.layout.task_node != NONE:
            threads = read_thread_states(objects.memory, objects.layout, self.runtime_address)
            self._heads = [each.address + self.layout.thread_tasks for each in threads]
            self._heads += [each + self.layout.interpreter_tasks for each in interpreters]
        return True

    def is_imported(self) -> bool:
        """Whether asyncio was; also where that changed while it was read."""
        objects = self.objects
        try:
            interpreters = read_interpreters(objects.memory, objects.layout, self.runtime_address)
            modules = [objects.modules(each) for each in interpreters]
            return any(objects.value(each, _MODULE) for each in modules if each)
        except Changed:
            return True

    def addresses(self, pages: Pages) -> set[int]:
        """What the lists hold now: tasks, unless they were changing."""
        found: set[int] = set()
        for each in itertools.chain(*self._sets.values()):
            with contextlib.suppress(Changed, UnreadableError):
                found |= self._set(each, pages)
        if self.layout is not None and self.layout.task_node != NONE:
            found.update(node - self.layout.task_node for node in self._linked(pages))
        self.cut_count += max(0, len(found) - TASK_LIMIT)
        return found if len(found) <= TASK_LIMIT else set(sorted(found)[:TASK_LIMIT])

    # --- sets

    def _find_sets(self, interpreter: int) -> None:
        objects = self.objects
        modules = objects.modules(interpreter)
        count = objects.member(modules, DICT_USED) if modules else 0
        # Modules are looked through when there are others than before.
        if interpreter in self._sets or self._module_counts.get(interpreter, 0) == count:
            return
        module = objects.value(modules, _MODULE)
        if module:
            variables = objects.member(module, MODULE_DICT)
            weak = [objects.value(variables, name) for name in _WEAK_SETS]
            sets = [*(objects.attribute(each, "data") for each in weak if each), objects.value(variables, _EAGER_SET)]
            if any(sets):  # else it is being imported
                self._sets[interpreter] = [each for each in sets if each]
        self._module_counts[interpreter] = count if interpreter in self._sets or not module else 0

    def _set(self, address: int, pages: Pages) -> set[int]:
        count, table = pages.word(address + _SET_MASK) + 1, pages.word(address + _SET_TABLE)
        if not 0 < count <= _TABLE_LIMIT:
            raise Changed
        table_bytes = pages.read(table, count * _ENTRY_BYTES)
        before, known = self._tables.get(address, (b"", {}))
        if table_bytes == before:
            return set(known.values())
        # A reference has the hash of what it refers to: together they tell it from one before at the same address.
        found = {}
        for entry in struct.iter_unpack("<QQ", table_bytes):
            if entry[0] and entry[1] != _DUMMY_HASH:
                found[entry] = known[entry] if entry in known else self._referent(entry[0])
        self._tables[address] = table_bytes, found
        return set(found.values())

    def _referent(self, key: int) -> int:
        """What a weak reference refers to; any other object stands for itself."""
        is_reference = self.types.kind(self.objects.type_of(key)) is Kind.REFERENCE
        return self.objects.word(key + _REFERENT) if is_reference else key

    # --- linked lists

    def _linked(self, pages: Pages) -> set[int]:
        """Nodes of all lists. `next` of a struct llist_node is its first word."""
        nodes: set[int] = set()
        for head in self._heads:
            with contextlib.suppress(UnreadableError):
                node = pages.word(head)
                while node != head and node not in nodes and len(nodes) <= TASK_LIMIT:
                    nodes.add(node)
                    node = pages.word(node)
        return nodes
