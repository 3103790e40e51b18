"""The names that a program gave its threads (`threading.Thread.name`), read from outside: pthread id in, name out.

And what it calls itself, if `multiprocessing` or `billiard` (of Celery) has made it: `current_process().name`.

`threading._active` is a dict of Thread objects by their `ident`, what pthread_self() returns. The way there is
sys.modules, the module's own dict, and then the attribute `_name` of each Thread, which is stored in one of four ways.
The target keeps running, so what is read may be changing: sizes are bounded, a name has to be a `str`, and the worst is
a name that is missing or old.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import field, replace

from bpfprof.cpython.code_objects import TEXT_GUESS_BYTES, read_text
from bpfprof.cpython.layout import Layout
from bpfprof.cpython.objects import DICT_USED, MODULE_DICT, Changed, Objects
from bpfprof.dataclass import dataclass
from bpfprof.proc.memory import CopiedMemory, Memory

_NAME_LIMIT = 256
_MODULES = ("multiprocessing.process", "billiard.process")
MODULES_AT_A_TIME = 1000  # whose names are read together
_FIRST_PROCESS = "MainProcess"  # what both call one that they did not make
_UNNAMED = re.compile(r"Dummy-\d+")  # threading calls it so when it did not start the thread


@dataclass
class _Modules:
    """Of an interpreter: how many modules it had, addresses of their names, and the dicts of those of _MODULES."""

    count: int = 0
    seen: set[int] = field(default_factory=set)
    found: list[int] = field(default_factory=list)


class ThreadNames:
    """Of one process. Where `_active` is does not change, and is kept."""

    def __init__(self, memory: Memory, layout: Layout) -> None:
        self.objects = Objects(memory, layout)
        self._active: dict[int, tuple[int, int]] = {}  # by interpreter: address and type of the dict
        self._keys: dict[int, dict[str, int]] = {}  # by interpreter, which has interned strings of its own
        self._modules: dict[int, _Modules] = {}  # by interpreter

    def forked(self, memory: Memory) -> ThreadNames:
        """For a child, whose memory is a copy."""
        child = ThreadNames(memory, self.objects.layout)
        child.objects = replace(self.objects, memory=memory)
        child._active, child._keys = dict(self._active), dict(self._keys)
        child._modules = {
            interpreter: _Modules(known.count, set(known.seen), list(known.found))
            for interpreter, known in self._modules.items()
        }
        return child

    @property
    def is_found(self) -> bool:
        """Whether it is known where names are, which is most of what the first read takes."""
        return bool(self._active)

    def read(self, interpreters: Iterable[int]) -> dict[int, str]:
        """pthread id -> name, of all interpreters; without those that were given none."""
        names: dict[int, str] = {}
        for interpreter in interpreters:
            self.objects.keys = self._keys.setdefault(interpreter, {})
            try:
                active = self._find_active(interpreter)
                threads = self.objects.entries(active) if active else []
            except Changed:
                continue
            # An `int` of this size is its own hash (long_hash, Objects/longobject.c).
            for ident, _, thread in threads:
                name = self._name_of(thread)
                if name and not _UNNAMED.fullmatch(name):
                    names[ident] = name
        return names

    def process_name(self, interpreters: Iterable[int], most: int) -> str:
        """What the process is called by what made it; "" where nothing did, or it is among modules that were not seen
        yet: the names of so many are read at most."""
        objects = self.objects
        for interpreter in interpreters:
            objects.keys = self._keys.setdefault(interpreter, {})
            try:
                for module in self._find_modules(interpreter, most):
                    process = objects.value(module, "_current_process")
                    name = self._name_of(process) if process else None
                    if name and name != _FIRST_PROCESS:
                        return name
            except Changed:
                continue
        return ""

    def _find_modules(self, interpreter: int, most: int) -> list[int]:
        """The dicts of those of _MODULES that were imported. Names of modules that were seen are not read again."""
        objects, known = self.objects, self._modules.setdefault(interpreter, _Modules())
        modules = objects.modules(interpreter)
        count = objects.member(modules, DICT_USED) if modules else 0
        if count != known.count:
            entries = objects.entries(modules) if count else []
            unseen = [(key, module) for _, key, module in entries if key and key not in known.seen]
            texts = objects.memory.read_each([key for key, _ in unseen[:most]], TEXT_GUESS_BYTES)
            for (key, module), text in zip(unseen, texts):
                known.seen.add(key)
                memory = CopiedMemory([(key, text)]) if text else objects.memory
                if read_text(memory, objects.layout, key, _NAME_LIMIT) in _MODULES:
                    known.found.append(objects.member(module, MODULE_DICT))
            known.count = count if len(unseen) <= most else -1
        return known.found

    def _name_of(self, thread: int) -> str | None:
        objects = self.objects
        try:
            value = objects.attribute(thread, "_name")
            is_text = objects.type_of(value) == objects.type_of(objects.keys["_name"])
        except (Changed, KeyError):
            return None
        return read_text(objects.memory, objects.layout, value, _NAME_LIMIT) if is_text else None

    def _find_active(self, interpreter: int) -> int:
        """0 when `threading` has not been imported."""
        objects = self.objects
        address, kind = self._active.get(interpreter, (0, 0))
        if address and objects.type_of(address) == kind:
            return address
        modules = objects.modules(interpreter)
        module = objects.value(modules, "threading") if modules else 0
        address = objects.value(objects.member(module, MODULE_DICT), "_active") if module else 0
        if address:
            self._active[interpreter] = address, objects.type_of(address)
        return address
