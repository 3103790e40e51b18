"""Which functions of which libraries have their calls counted: calls.txt, and the functions that a file exports."""

from __future__ import annotations

import functools
import re
from fnmatch import fnmatchcase
from importlib import resources

from bpfprof.dataclass import dataclass
from bpfprof.elf.image import ElfImage
from bpfprof.model.ids import FileOffset

_PLACES = 1 << 10  # bits 0 to 9 of a number
_VARIANT = re.compile(r"(?:_v[2-9])?(?:_ptds|_ptsz)?$")
_BYTES = re.compile(r"a(?P<unit>[1-7])(?:\*a(?P<times>[1-7])|\*type\(a(?P<type>[1-7])\)|\*(?P<number>[1-9]))?")


@dataclass(frozen=True)
class CalledFunction:
    """`number`: its place in calls.txt, and in the higher bits where its size is, see ebpf/calls.bpf.c."""

    name: str
    number: int

    @property
    def place(self) -> int:
        """What a program calls it."""
        return self.number % _PLACES


@dataclass(frozen=True)
class CallTable:
    """Patterns of names of files, and functions, both by key; all functions, by their places."""

    files: dict[str, tuple[str, ...]]
    functions: dict[str, tuple[CalledFunction, ...]]
    names: tuple[str, ...]

    def wanted_of(self, file_name: str) -> tuple[CalledFunction, ...]:
        """What is counted of a file of this name; nothing of one that is none of the libraries."""
        found = (key for key, patterns in self.files.items() if any(fnmatchcase(file_name, each) for each in patterns))
        return next((self.functions.get(key, ()) for key in found), ())


@functools.cache
def call_table() -> CallTable:
    """That of calls.txt."""
    return parse_calls(resources.files(__package__).joinpath("calls.txt").read_text(encoding="utf-8"))


def parse_calls(text: str) -> CallTable:
    """Raises ValueError for a line that is none."""
    files: dict[str, tuple[str, ...]] = {}
    functions: dict[str, list[CalledFunction]] = {}
    names: list[str] = []
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        columns = re.split(r" {2,}", line)
        if columns[0] == "library" and len(columns) > 2:
            files[columns[1]] = tuple(columns[2:])
        elif columns[0] == "function" and len(columns) in (4, 5) and columns[1] in files and len(names) < _PLACES:
            function = CalledFunction(columns[2], len(names) | _size(*columns[3:]))
            functions.setdefault(columns[1], []).append(function)
            names.append(function.name)
        else:
            raise ValueError(f"{line!r} is neither a library nor a function")
    return CallTable(files, {key: tuple(found) for key, found in functions.items()}, tuple(names))


def _size(size: str, direction: str = "a0") -> int:
    """The bits of a number that say where they are."""
    match = _BYTES.fullmatch(size) if size != "-" else None
    argument = re.fullmatch(r"a([0-7])", direction)
    if (match is None and size != "-") or argument is None:
        raise ValueError(f"{size!r} is no size of a call, or {direction!r} no argument")
    found = int(argument[1]) << 20
    if match is not None:
        found |= int(match["unit"]) << 10
        for how, name in enumerate(("times", "type", "number"), 1):
            found |= (int(match[name]) << 14 | how << 18) if match[name] else 0
    return found


def exported(image: ElfImage, wanted: tuple[CalledFunction, ...]) -> list[tuple[CalledFunction, FileOffset]]:
    """Where the code of each is in the file, in the order of `wanted`; each place once, whatever it is called."""
    by_name = {each.name: each for each in wanted}
    initials = {each.name[:2].encode() for each in wanted}
    found: dict[FileOffset, CalledFunction] = {}
    for symbol, address in image.dynamic_functions(initials):
        function = by_name.get(_VARIANT.sub("", symbol, count=1))
        offset = image.offset_of(address)
        if function is not None and offset is not None:
            found.setdefault(offset, function)
    ordered = sorted(found.items(), key=lambda item: (item[1].place, item[0]))
    return [(function, offset) for offset, function in ordered]
