"""The kernel side on its way up: programs being compiled while other work goes on, maps made, programs loaded."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from bpfprof.kernel.compiler import Compilation
from bpfprof.kernel.loader import load_programs
from bpfprof.kernel.tables import Tables


@dataclass(slots=True)
class KernelSide:
    """Maps, and programs once `programs()` was asked for them."""

    tables: Tables
    _compilation: Compilation | None
    _programs: dict[str, int] = field(default_factory=dict)

    @classmethod
    def start(cls, compilation: Compilation | None = None) -> KernelSide:
        """Makes the maps; compiles, if that is not under way. Raises UnsupportedError without the privilege."""
        compilation = compilation or Compilation.start()
        try:
            return cls(Tables.create(), compilation)
        except BaseException:
            compilation.cancel()
            raise

    def programs(self) -> dict[str, int]:
        """Descriptors of the loaded programs by name; waits for the compiler. Raises UnsupportedError."""
        if self._compilation is not None:
            compilation, self._compilation = self._compilation, None
            self._programs = load_programs(compilation.result(), self.tables.fds)
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
