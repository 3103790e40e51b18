"""Frames -> the library and the module of each, by the ways in which Python's files are laid out.

Only the path is looked at. It does not tell from which of its own folders a program imports: of the program's own code
the module is the file's name alone, unless the file is in an archive. A package that is installed as a link to its
source ("editable") is code like the program's own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from functools import lru_cache

from bpfprof.dataclass import dataclass
from bpfprof.model.frames import Frame, FrameKind

_KEPT = 4096  # paths, of which a view of a recording that goes on asks again and again
STDLIB, OWN_CODE, INTERPRETER, KERNEL, GENERATED = "stdlib", "own code", "python", "kernel", "generated"

# Folders and archives that have libraries in them, of which the innermost counts: pip's, Debian's, eggs and wheels.
_LIBRARIES = re.compile(r"(?:.*/)?(?:(?:site|dist)-packages|[^/]+\.(?:egg|whl))/(.+)", re.DOTALL)
# The folder of a version's standard library, or an archive of it (PyInstaller's has a name of its own).
_STDLIB = re.compile(
    r"(?:.*/)?(?:lib(?:32|64)?/python\d[\d.]*[a-z]*(?:\.zip)?|base_library\.zip)/(?:lib-dynload/)?(.+)", re.DOTALL
)
# What PyInstaller unpacks at the start of a one-file program, and puts beside others. Python code in it has the path
# that it had from where it was imported.
_BUNDLE = re.compile(r"(?:.*/)?(?:_MEI\w{6}|_internal)/(.+)", re.DOTALL)
_ARCHIVE = re.compile(r"(?:.*/)?[^/]+\.(?:zip|pyz|pex)/(.+)", re.DOTALL)
_OF_PACKAGES = ("/__init__.py", "/__main__.py")
_FROZEN = re.compile(r"<frozen ([\w.]+)>")
_INTERPRETERS = re.compile(r"(?:.*/)?(?:python\d?(?:\.\d+)?[a-z]*|libpython\d[^/]*)", re.DOTALL)
_EXTENSION = re.compile(r"\.(?:pyc?|(?:cpython-[^./]*\.|abi3\.)?so)$")
# A shared object that is no Python module.
_SHARED_OBJECT = re.compile(r"(?![^/]*\.(?:cpython-[^.]*|abi3)\.so$)(?:lib[^/]*\.so[^/]*|[^/]*\.so\.[^/]*)")
# 3.10 and later have it. Before, the standard library of a bundle is not known from the rest of it.
_STDLIB_NAMES: frozenset[str] = getattr(sys, "stdlib_module_names", frozenset())
# What runs the code of others: the interpreter, the C library and its like.
_RUNTIME = re.compile(rf"{INTERPRETER}|lib(?:c|m|pthread|dl)[.-].*|ld-.*|\[vdso\]", re.DOTALL)


@dataclass(frozen=True)
class Origin:
    """Where a function is from. module: dotted; of native code that is no Python module its object; "" for none."""

    library: str = ""
    module: str = ""


def origins(frames: Iterable[Frame]) -> list[Origin]:
    """One a frame; empty for marks."""
    frames = list(frames)
    is_bundle = any(_BUNDLE.fullmatch(frame.file) for frame in frames if frame.kind == FrameKind.NATIVE)
    return [_origin(frame, is_bundle) for frame in frames]


def _origin(frame: Frame, is_bundle: bool) -> Origin:
    if frame.kind == FrameKind.PYTHON:
        return python_origin(frame.file, is_bundle)
    if frame.kind in (FrameKind.NATIVE, FrameKind.INLINED):
        return native_origin(frame.file)
    return Origin(KERNEL, KERNEL) if frame.kind == FrameKind.KERNEL else Origin()


@lru_cache(_KEPT)
def is_runtime(library: str) -> bool:
    """Whether what it does is done for who calls it: of the interpreter, the C library and its like."""
    return bool(_RUNTIME.fullmatch(library))


@lru_cache(_KEPT)
def import_path(path: str) -> str:
    """Of a `co_filename` the part from where it is imported, by which people know it: `flask/app.py`.

    Where that is not known it is the file's name, with its folder where the name alone says nothing.
    """
    if path.startswith("<"):
        return path
    if found := _LIBRARIES.fullmatch(path) or _STDLIB.fullmatch(path) or _ARCHIVE.fullmatch(path):
        return found[1]
    return "/".join(path.rsplit("/", 2)[-2:]) if path.endswith(_OF_PACKAGES) else path.rsplit("/", 1)[-1]


@lru_cache(_KEPT)
def python_origin(path: str, is_bundle: bool = False) -> Origin:
    """Of a `co_filename`. is_bundle: the program is one that PyInstaller made."""
    if path.startswith("<"):
        frozen = _FROZEN.fullmatch(path)
        return Origin(STDLIB, frozen[1]) if frozen else Origin(GENERATED)
    if found := _LIBRARIES.fullmatch(path):
        return _of_library(found[1])
    if found := _STDLIB.fullmatch(path):
        return Origin(STDLIB, _dotted(found[1]))
    if is_bundle and path and not path.startswith("/"):
        top = _top(path)
        library = STDLIB if top in _STDLIB_NAMES else top if "/" in path else OWN_CODE
        return Origin(library, _dotted(path))
    if found := _ARCHIVE.fullmatch(path):
        return Origin(OWN_CODE, _dotted(found[1]))
    return Origin(OWN_CODE, _dotted("/".join(path.rsplit("/", 2)[-2:] if path.endswith("/__init__.py") else [path])))


@lru_cache(_KEPT)
def native_origin(path: str) -> Origin:
    """Of the file that code is mapped from, or what stands for one in brackets."""
    name = path.rsplit("/", 1)[-1]
    if found := _LIBRARIES.fullmatch(path):
        return _of_library(found[1])
    if found := _STDLIB.fullmatch(path):
        return Origin(STDLIB, _dotted(found[1]))
    if _INTERPRETERS.fullmatch(path):
        return Origin(INTERPRETER, name)
    if found := _BUNDLE.fullmatch(path):
        inside = found[1]
        if inside.startswith(("lib-dynload/", "python3")):
            return Origin(STDLIB, _dotted(inside.partition("/")[2]))
        if not _SHARED_OBJECT.fullmatch(inside):
            return _of_library(inside)
    return Origin(name, name)


def _of_library(path: str) -> Origin:
    """Of a path below a folder of libraries; `numpy.libs` has what numpy's wheel brought along."""
    name = path.rsplit("/", 1)[-1]
    return Origin(_top(path), name if _SHARED_OBJECT.fullmatch(name) else _dotted(path))


def _top(path: str) -> str:
    return path.partition("/")[0].partition(".")[0]


def _dotted(path: str) -> str:
    """`json/decoder.py` -> json.decoder; of a whole path its last part."""
    inside = path.rsplit("/", 1)[-1] if path.startswith("/") else path
    return _EXTENSION.sub("", inside).replace("/", ".").removesuffix(".__init__")
