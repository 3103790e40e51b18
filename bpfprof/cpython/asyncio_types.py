"""What is to be known of the types of objects around asyncio: addresses of types in, kinds and names out."""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum, auto

from bpfprof.cpython.objects import Changed, Objects
from bpfprof.dataclass import dataclass


class Kind(IntEnum):
    """What is to be known of a type."""

    OTHER = 0
    GENERATOR = auto()  # or a coroutine, or an asynchronous generator
    WRAPPER = auto()
    FUTURE = auto()
    TASK = auto()
    FUNCTION = auto()
    METHOD = auto()
    PARTIAL = auto()
    TASK_GROUP = auto()
    REFERENCE = auto()  # a weak one
    TEXT = auto()
    NUMBER = auto()


_KINDS = {
    **dict.fromkeys(("coroutine", "generator", "async_generator"), Kind.GENERATOR),
    **dict.fromkeys(("coroutine_wrapper", "async_generator_asend", "async_generator_athrow"), Kind.WRAPPER),
    "anext_awaitable": Kind.WRAPPER,
    "_asyncio.Task": Kind.TASK,
    "_asyncio.Future": Kind.FUTURE,
    "function": Kind.FUNCTION,
    "method": Kind.METHOD,
    "functools.partial": Kind.PARTIAL,
    "TaskGroup": Kind.TASK_GROUP,
    "weakref.ReferenceType": Kind.REFERENCE,
    "str": Kind.TEXT,
    "int": Kind.NUMBER,
}


@dataclass
class TypeTable:
    """Kinds and names of types by their addresses."""

    objects: Objects
    _known: dict[int, tuple[Kind, str]] = field(default_factory=lambda: {0: (Kind.OTHER, "")})

    def kind(self, address: int) -> Kind:
        """The kind of a type."""
        return self._of(address)[0]

    def name(self, address: int) -> str:
        """What a type is called; "" when that cannot be read. One made of asyncio's Task is a Task here."""
        kind, name = self._of(address)
        return "Task" if kind is Kind.TASK else name

    def _of(self, address: int) -> tuple[Kind, str]:
        found = self._known.get(address)
        if found is None:
            try:
                names = self.objects.type_names(address)
            except Changed:
                return Kind.OTHER, ""
            kind = next((_KINDS[name] for name in names if name in _KINDS), Kind.OTHER)
            found = self._known[address] = kind, names[0] if names else ""
        return found
