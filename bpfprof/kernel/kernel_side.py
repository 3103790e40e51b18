"""The kernel side on its way up: programs being compiled while other work goes on, maps made, programs loaded."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from threading import Thread

from bpfprof.kernel.compiler import Compilation
from bpfprof.kernel.loader import load_programs
from bpfprof.kernel.tables import Tables


@dataclass(slots=True)
class KernelSide:
    """Maps, and programs once `programs()` was asked for them."""

    tables: Tables
    _compilation: Compilation | None
    _programs: dict[str, int] = field(default_factory=dict)
    _loading: Thread | None = None
    _failure: BaseException | None = None

    @classmethod
    def start(cls, compilation: Compilation | None = None) -> KernelSide:
        """Makes the maps and begins to load programs; compiles, if that is not under way.

        Raises UnsupportedError without the privilege.
        """
        compilation = compilation or Compilation.start()
        try:
            kernel = cls(Tables.create(), compilation)
        except BaseException:
            compilation.interrupt()
            raise
        # The verifier takes as long as everything that is imported meanwhile.
        kernel._loading = Thread(target=kernel._load, args=(compilation,), name="bpfprof-load", daemon=True)
        kernel._loading.start()
        return kernel

    def _load(self, compilation: Compilation) -> None:
        try:
            self._programs = load_programs(compilation.result(), self.tables.fds)
        except BaseException as error:
            self._failure = error

    def programs(self) -> dict[str, int]:
        """Descriptors of the loaded programs by name; waits for them. Raises UnsupportedError."""
        if self._loading is not None:
            self._loading.join()
            self._loading = self._compilation = None
        if self._failure is not None:
            raise self._failure
        return self._programs

    def close(self) -> None:
        """Gives everything back; what is attached must have been detached before. Safe to call again."""
        if self._loading is not None:
            if self._compilation is not None:
                self._compilation.interrupt()
            self._loading.join()
            self._loading = self._compilation = None
        while self._programs:
            os.close(self._programs.popitem()[1])
        self.tables.close()
