"""Names of addresses by a table of symbols, as a person reads them: those of C++, Rust and Cython are demangled.

C++ by the Itanium ABI, Rust by its v0 scheme and the one before. What Cython writes is in Cython/Compiler/Naming.py and
Symtab.py (3.1.0): `__pyx_pw_3mod_1C_5f` is function f, the 5th, of class C in module mod.
"""

from __future__ import annotations

import re
from dataclasses import field

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.elf.symbols.table import SymbolTable
from bpfprof.names.demangled import Demangled
from bpfprof.proc.text import with_controls_replaced

_MANGLED = re.compile(r"_?_[ZR][A-Z0-9]|_?_Z[a-z_]")
# pw: what Python calls; pf: what that calls, with the arguments parsed; f: a C function; gb: a generator's body.
_CYTHON = re.compile(r"(?:__pyx_fuse_[\d_]+)?__pyx_(pw|pf|f|gb)_(\w+)(\.[\w.]+)?\Z")
_CYTHON_SCOPE = re.compile(r"(\d{1,4})(?=[^\W\d])")
_CYTHON_LIMIT = 16 << 10
demangled = Demangled()


@dataclass
class SymbolNames:
    """The table's names with `suffix`; each is read and demangled when an address in it is first asked for."""

    table: SymbolTable
    suffix: str = ""
    _known: dict[int, str] = field(default_factory=lambda: {-1: ""})

    def resolve(self, addresses: npt.NDArray[np.uint64]) -> list[str]:
        """One name an address, in their order; "" where no symbol covers it or its name cannot be read."""
        distinct, positions = np.unique(self.table.find(addresses), return_inverse=True)
        new = np.array([index for index in distinct.tolist() if index not in self._known], np.int64)
        for index, name in zip(new.tolist(), self.table.names(new)):
            self._known[index] = with_controls_replaced(demangle(name) + self.suffix) if name else ""
        names = [self._known[index] for index in distinct.tolist()]
        return [names[position] for position in positions.tolist()]


def demangle(name: str) -> str:
    """The readable form, spelled as c++filt does; `name` itself when it is not mangled, damaged or beyond the bounds.

    At most 16 KiB of a mangled name become at most 16 KiB; where `can_demangle` is false, all stay. May be called from
    any thread; answers are kept.
    """
    if name.startswith("__pyx_"):
        return _demangle_cython(name)
    return demangled(name) if _MANGLED.match(name) else name


def _demangle_cython(name: str) -> str:
    """`module.Class.function`: the same for what Python calls and what that calls."""
    found = _CYTHON.match(name) if len(name) <= _CYTHON_LIMIT else None
    if found is None:
        return name
    kind, text, clone = found.groups()
    scopes, at = [], 0
    while size := _CYTHON_SCOPE.match(text, at):  # the last may be the number of the function and not a length
        end = size.end() + int(size[1])
        if text[end : end + 1] != "_" or end + 1 == len(text) or (kind != "f" and not text[end + 1].isdigit()):
            break
        scopes.append(text[size.end() : end])
        at = end + 1
    function = text[at:] if kind == "f" else text[at:].lstrip("0123456789")
    if not scopes or not function or (function == text[at:] and kind != "f"):
        return name
    if kind == "gb":
        function = f"<generator {text[at : -len(function)]}>"
    return ".".join((*scopes, function)) + (f" [clone {clone}]" if clone else "")
