"""The kernel side on its way up: programs being compiled while other work goes on, maps made, programs loaded."""

from __future__ import annotations

import os
from threading import Event, Thread

from bpfprof.kernel.compiler import ON_EVENT, Compilation
from bpfprof.kernel.loader import load_call_programs, load_programs
from bpfprof.kernel.refusals import COUNTS_LOCKED_MEMORY
from bpfprof.kernel.tables import Tables
from bpfprof.proc.own_process import lift_locked_memory_limit


class KernelSide:
    """`tables` and `programs()`, which wait for what is not there yet."""

    def __init__(self, compilation: Compilation) -> None:
        self._compilation = compilation
        self._tables: Tables | None = None
        self._has_tables = Event()  # or has failed
        self._programs: dict[str, int] = {}
        self._failure: BaseException | None = None
        # The kernel takes as long for them as everything that is imported meanwhile.
        self._loading = Thread(target=self._load, name="bpfprof-load", daemon=True)
        self._loading.start()

    @classmethod
    def start(cls, compilation: Compilation | None = None) -> KernelSide:
        """Begins to make the maps and to load programs; compiles, if that is not under way."""
        if COUNTS_LOCKED_MEMORY:
            lift_locked_memory_limit()
        return cls(compilation or Compilation.start())

    def _load(self) -> None:
        try:
            self._tables = Tables.create(self._compilation.with_calls)
            self._has_tables.set()
            self._programs = load_programs(
                self._compilation.result(), self.tables.fds, self._compilation.facts.takes_pointer
            )
        except BaseException as error:
            self._failure = error
        finally:
            self._has_tables.set()

    @property
    def tables(self) -> Tables:
        """The maps. Raises UnsupportedError without the privilege, or when the kernel refuses one."""
        self._has_tables.wait()
        if self._tables is None:
            assert self._failure is not None
            raise self._failure
        return self._tables

    @property
    def is_loading(self) -> bool:
        """Whether `programs()` would wait."""
        return self._loading.is_alive()

    def programs(self) -> dict[str, int]:
        """Descriptors of the loaded programs by name; waits for them. Raises UnsupportedError."""
        self._loading.join()
        if self._failure is not None:
            raise self._failure
        return self._programs

    def event_program(self, number: int) -> int:
        """Descriptor, closed with the others, of a program for the event with this number. Raises UnsupportedError."""
        code, takes_pointer = self._compilation.result(), self._compilation.facts.takes_pointer
        fd = load_programs(code, self.tables.fds, takes_pointer, number)[ON_EVENT]
        self.programs()[f"{ON_EVENT} {number}"] = fd
        return fd

    def call_programs(self, number: int | None) -> tuple[int, int]:
        """The same of those at the begin and the end of calls of a function; None: of all. Raises UnsupportedError.

        number: see ebpf/calls.bpf.c. The compilation was one with calls.
        """
        code, takes_pointer = self._compilation.result(), self._compilation.facts.takes_pointer
        if f"call_begin {number}" not in self.programs():
            loaded = load_call_programs(code, self.tables.fds, takes_pointer, number)
            self.programs().update({f"{name} {number}": fd for name, fd in loaded.items()})
        return self.programs()[f"call_begin {number}"], self.programs()[f"call_end {number}"]

    @property
    def uses_links(self) -> bool:
        """Whether `call_programs()` are those of all functions, and not of one each."""
        return self._compilation.facts.uses_links

    def close(self) -> None:
        """Gives everything back; what is attached must have been detached before. Safe to call again."""
        self._compilation.interrupt()
        self._loading.join()
        while self._programs:
            os.close(self._programs.popitem()[1])
        if self._tables is not None:
            self._tables.close()
