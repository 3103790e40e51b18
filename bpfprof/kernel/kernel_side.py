"""The kernel side on its way up: maps made, programs being compiled while other work goes on."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from bpfprof.kernel.module import Compilation
from bpfprof.kernel.tables import Tables


@dataclass(slots=True)
class KernelSide:
    """Maps, and programs once `programs()` was asked for them."""

    tables: Tables
    _compilation: Compilation | None
    _programs: dict[str, int] = field(default_factory=dict)

    @classmethod
    def start(cls) -> KernelSide:
        """Makes the maps and starts to compile. Raises UnsupportedError without the privilege."""
        tables = Tables.create()
        return cls(tables, Compilation.start(tables.fds))

    def programs(self) -> dict[str, int]:
        """Descriptors of the loaded programs by name; waits for the compiler. Raises UnsupportedError."""
        if self._compilation is not None:
            compilation, self._compilation = self._compilation, None
            self._programs = compilation.programs()
            self.tables.set_tail_programs(self._programs)
        return self._programs

    def close(self) -> None:
        """Gives everything back; what is attached must have been detached before. Safe to call again."""
        if self._compilation is not None:
            self._compilation.cancel()
            self._compilation = None
        while self._programs:
            os.close(self._programs.popitem()[1])
        self.tables.close()
