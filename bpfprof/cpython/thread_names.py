"""The names that a program gave its threads (`threading.Thread.name`), read from outside: pthread id in, name out.

`threading._active` is a dict of Thread objects by their `ident`, what pthread_self() returns. The way there is
sys.modules, the module's own dict, and then the attribute `_name` of each Thread, which is stored in one of four ways.
The target keeps running, so what is read may be changing: sizes are bounded, a name has to be a `str`, and the worst is
a name that is missing or old.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from bpfprof.cpython.code_objects import read_text
from bpfprof.cpython.layout import Layout
from bpfprof.cpython.objects import MODULE_DICT, Changed, Objects
from bpfprof.proc.memory import ProcessMemory

_NAME_LIMIT = 256
_UNNAMED = re.compile(r"Dummy-\d+")  # threading calls it so when it did not start the thread


class ThreadNames:
    """Of one process. Where `_active` is does not change, and is kept."""

    def __init__(self, memory: ProcessMemory, layout: Layout) -> None:
        self.objects = Objects(memory, layout)
        self._active: dict[int, tuple[int, int]] = {}  # by interpreter: address and type of the dict
        self._keys: dict[int, dict[str, int]] = {}  # by interpreter, which has interned strings of its own

    def forked(self, memory: ProcessMemory) -> ThreadNames:
        """For a child, whose memory is a copy."""
        child = ThreadNames(memory, self.objects.layout)
        child.objects = replace(self.objects, memory=memory)
        child._active, child._keys = dict(self._active), dict(self._keys)
        return child

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
