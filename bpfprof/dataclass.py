"""`dataclass` as the standard library's, in a quarter of the time: a start of bpfprof makes more than a hundred.

The standard library compiles up to six functions for each class, which takes 0.7 ms on Python 3.11. Here it compiles
`__init__` alone; objects are compared, hashed and printed by functions that all classes share. That nothing assigns to
a field of a frozen class is what the type checker holds, which sees the standard library's own.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, *, frozen: bool = False) -> Any:
        """Decorator, with and without `frozen`: an object that is frozen can be hashed."""
        if cls is None:
            return lambda decorated: dataclass(decorated, frozen=frozen)
        own = vars(cls)
        given = {name for name in ("__eq__", "__hash__", "__repr__") if own.get(name) is not None}
        made = dataclasses.dataclass(eq=False, repr=False)(cls)
        names = [field.name for field in dataclasses.fields(made) if field.compare]
        values = attrgetter(*names) if names else type

        def is_equal(self: object, other: object) -> bool:
            return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

        def hashed(self: object) -> int:
            return hash(values(self))

        methods = {"__eq__": is_equal, "__hash__": hashed if frozen else None, "__repr__": _text}
        for name in methods.keys() - given:
            setattr(made, name, methods[name])
        return made

    def _text(self: Any) -> str:
        shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"
