"""The rows of docs/interpreters.md: what each interpreter is called, how it is had, and why one is not here.

To add an interpreter is to add a row. `make interpreters` records each and writes the document.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.oracles.interpreters import ways

_VERSIONS = ("3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13")


@dataclass(frozen=True)
class Row:
    """`way` has what runs it, None: there is none, and `how` says why. `programs`: of measure.COMMANDS."""

    name: str
    how: str
    way: ways.Maker | None
    programs: tuple[str, ...] = ("deep", "deep --burn", "call_order", "call_chain", "gil_fight")


ROWS = (
    *(Row(f"CPython {it}", "pyenv, shared library", ways.pyenv(it)) for it in _VERSIONS),
    Row("CPython 3.11, static", "Debian 12's package", ways.path("/usr/bin/python3.11")),
    Row("CPython 3.13, static", "Debian sid's package", ways.sid("3.13")),
    Row("CPython 3.14, static", "Debian sid's package", ways.sid("3.14")),
    Row("CPython 3.15, static", "Debian sid's package", ways.sid("3.15")),
    *(
        Row(f"CPython {it}, stripped library", "`strip` of pyenv's library", ways.stripped(it))
        for it in ("3.6", "3.8", "3.10", "3.11", "3.12", "3.13")
    ),
    *(
        Row(f"CPython {it}, static in a PIE", "pyenv's archive in a program of C", ways.embedded(it, "static-pie"))
        for it in ("3.8", "3.10", "3.12", "3.13")
    ),
    Row("CPython 3.12, static, not PIE", "pyenv's archive in a program of C", ways.embedded("3.12", "static")),
    Row("CPython 3.11, debug build", "Debian 12's package", ways.path("/usr/bin/python3.11-dbg")),
    Row("CPython 3.14, debug build", "Debian sid's package", ways.sid("3.14-dbg")),
    Row("CPython 3.15, debug build", "Debian sid's package", ways.sid("3.15-dbg")),
    Row("CPython 3.13t", "built from Debian trixie's source", ways.free_threaded()),
    Row("CPython 3.13t with its GIL", "the same with `PYTHON_GIL=1`", ways.free_threaded(PYTHON_GIL="1")),
    Row("CPython 3.14t", "Debian has no build of it and no longer the source (2026-11-23)", None),
    Row("CPython 3.15t", "Debian has no build of it and no longer the source (2026-11-23)", None),
    Row(
        "CPython 3.14, tail-call interpreter",
        "Debian's is not built with it, and it no longer has the source (2026-11-23)",
        None,
    ),
    Row("CPython 3.14, JIT on", "Debian sid's with `PYTHON_JIT=1`", ways.sid("3.14", PYTHON_JIT="1")),
    Row("CPython 3.15, JIT on", "Debian sid's with `PYTHON_JIT=1`", ways.sid("3.15", PYTHON_JIT="1")),
    Row("CPython 3.11 in one file", "PyInstaller, Debian 12's library", ways.one_file()),
    *(
        Row(f"CPython {it}, embedded", "pyenv's library, linked to a program of C", ways.embedded(it, "linked"))
        for it in ("3.9", "3.13")
    ),
    *(
        Row(f"CPython {it}, embedded", "Debian sid's library, linked to a program of C", ways.embedded(it, "linked"))
        for it in ("3.14", "3.15")
    ),
    *(
        Row(f"CPython {it}, loaded late", "pyenv's library, by `dlopen` in a program of C", ways.embedded(it, "late"))
        for it in ("3.8", "3.11", "3.12", "3.13")
    ),
    *(
        Row(f"CPython {it}, loaded late", "Debian sid's library, by `dlopen`", ways.embedded(it, "late"))
        for it in ("3.14", "3.15")
    ),
    *(Row(f"CPython {it}, started by its `ld.so`", "pyenv", ways.by_loader(it)) for it in ("3.10", "3.12")),
    *(
        Row(f"CPython {it}, sub-interpreter", "pyenv, beside the main one", ways.sub_interpreter(it, "shared"))
        for it in ("3.9", "3.11", "3.12")
    ),
    Row("CPython 3.13, sub-interpreter, GIL of its own", "pyenv", ways.sub_interpreter("3.13", "own")),
    Row("CPython 3.15, sub-interpreter, GIL of its own", "Debian sid's package", ways.sub_interpreter("3.15", "own")),
    Row("CPython on musl", "Debian has none built with musl, and no libffi to build one with (2026-11-23)", None),
    Row("PyPy 3.9", "Debian 12's package", ways.path("/usr/bin/pypy3"), ("deep", "deep --burn", "call_order")),
)
