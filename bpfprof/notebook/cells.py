"""Frames of cells, whose files are in no folder -> the same called as a notebook calls them: `In [3]`."""

from __future__ import annotations

import linecache
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bpfprof.commands.sources import read_sources
from bpfprof.model.frames import FrameKind
from bpfprof.model.profile import Profile
from bpfprof.render.formats import ReadSources

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_NUMBERED = re.compile(r"<ipython-input-(\d+)-\w+>")


def cell_names(shell: InteractiveShell) -> dict[str, str]:
    """File that code of a cell says it is from -> `In [3]`, of all cells that ran."""
    return {name: f"In [{number}]" for name, number in cell_numbers(shell).items()}


def cell_numbers(shell: InteractiveShell) -> dict[str, int]:
    """The same as numbers."""
    numbers = dict(getattr(shell.compile, "_filename_map", {}))
    for name in linecache.cache:
        found = _NUMBERED.fullmatch(name)
        if found:
            numbers.setdefault(name, int(found[1]))
    return numbers


def with_cell_names(profile: Profile, names: Mapping[str, str], file: str, function: str) -> Profile:
    """file, function: what runs the cell. The frames above it are the notebook's, not the program's, and left out."""
    frames = tuple(
        replace(frame, file=names[frame.file]) if frame.kind == FrameKind.PYTHON and frame.file in names else frame
        for frame in profile.frames
    )
    runs = {
        place
        for place, frame in enumerate(profile.frames)
        if frame.kind == FrameKind.PYTHON
        and frame.file == file
        and frame.name in (function, function.rpartition(".")[2])
    }
    return replace(profile, frames=frames, stacks=tuple(_below(stack, runs) for stack in profile.stacks))


def _below(stack: tuple[int, ...], runs: set[int]) -> tuple[int, ...]:
    place = next((place for place in range(len(stack) - 1, -1, -1) if stack[place] in runs), -1)
    # What runs the cell is kept where nothing is below it, as a stack has a frame.
    return stack[place + 1 :] or stack[place:]


def sources_of(names: Mapping[str, str]) -> ReadSources:
    """Lines of cells as they ran, and of files."""
    file_of = {label: name for name, label in names.items()}

    def read(paths: Sequence[str], started_unix_ns: int) -> dict[str, tuple[str, str]]:
        found = {path: ("".join(linecache.getlines(file_of[path])), "") for path in paths if path in file_of}
        return {**found, **read_sources([path for path in paths if path not in file_of], started_unix_ns)}

    return read
