"""What every source of names answers for one address: a `Symbol`, or `Unresolved` with the reason.

Names are as a person reads them: C++ (Itanium ABI) and Rust (legacy and v0) ones are demangled here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

from bpfprof.cpython.code_objects import Unresolved

__all__ = ["Answer", "Symbol", "Unresolved", "demangle"]

# Only these schemes are tried, and only on names that look like them: C has names of every other form.
_LANGUAGES = ("rust", "itanium")
_MANGLED = re.compile(r"_?_[ZR][A-Z0-9]|_?_Z[a-z_]")
# The longest name in libtorch_cpu 2.13 has 7 KiB. A short one can stand for terabytes: f(A<S, S>, A<S0, S0>, ...).
_INPUT_LIMIT = 16 << 10
_OUTPUT_LIMIT = 16 << 10


@dataclass(frozen=True, slots=True)
class Symbol:
    """A function. `name` is as a person reads it; `start` is in the address space of the question."""

    name: str
    start: int


Answer = Symbol | Unresolved


def demangle(name: str) -> str:
    """The readable form, spelled as c++filt does; `name` itself when it is not mangled, damaged or beyond the bounds.

    At most 16 KiB of a mangled name become at most 16 KiB. May be called from any thread; answers are kept.
    """
    return _demangler()(name) if _MANGLED.match(name) else name


@cache
def _demangler() -> Callable[[str], str]:
    """Loaded when first needed: most reports of Python programs show few C++ functions, and some none."""
    import demangle as library

    limits = library.Limits(max_input=_INPUT_LIMIT, max_output=_OUTPUT_LIMIT)
    return partial(library.demangle, language=_LANGUAGES, style="gnu", limits=limits)
