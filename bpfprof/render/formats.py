"""The formats there are: one table that feeds the choices, the help, the guess from a suffix, docs and tests."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from bpfprof.render.options import RenderOptions

if TYPE_CHECKING:
    from bpfprof.model.profile import Profile

__all__ = ["FORMATS", "TABLE", "Format", "RenderOptions", "find_format", "format_for_suffix"]


@dataclass(frozen=True, slots=True)
class Format:
    """One way to write a profile: function render_MODULE of bpfprof.render.MODULE, imported when it is used."""

    name: str
    synonyms: tuple[str, ...]
    suffixes: tuple[str, ...]  # with the dot, lower case; none: never guessed from a file name
    description: str
    module: str
    needs_timeline: bool = False  # the profile must be built with its timeline

    def render(self, profile: Profile, options: RenderOptions) -> str:
        """The profile in this format, to be encoded as UTF-8."""
        module = importlib.import_module(f"bpfprof.render.{self.module}")
        function: Callable[[Profile, RenderOptions], str] = getattr(module, f"render_{self.module}")
        return function(profile, options)


TABLE = Format(
    name="table",
    synonyms=("summary", "text"),
    suffixes=(),
    description="a summary for the terminal: wall time by thread, top functions, top waits",
    module="table",
)
FORMATS = (
    Format(
        name="collapsed",
        synonyms=("folded", "raw"),
        suffixes=(".folded", ".collapsed", ".txt"),
        description="one line a stack, microseconds of wall time; for scripts and other flame graph tools",
        module="collapsed",
    ),
    Format(
        name="flamegraph",
        synonyms=("svg", "flame"),
        suffixes=(".svg",),
        description="one SVG to open in a browser: CPU and waits, search, zoom; needs no network",
        module="flamegraph",
    ),
    Format(
        name="speedscope",
        synonyms=(),
        suffixes=(".speedscope.json", ".json"),
        description="a file for speedscope: every thread's intervals in the order of time",
        module="speedscope",
        needs_timeline=True,
    ),
    TABLE,
)


def find_format(name: str) -> Format | None:
    """The format with this name or synonym, in any case; None if there is none."""
    wanted = name.lower()
    return next((known for known in FORMATS if wanted == known.name or wanted in known.synonyms), None)


def format_for_suffix(path: str | PurePath) -> Format | None:
    """The format whose suffix the path ends in (the longest wins); None if no suffix fits."""
    name = PurePath(path).name.lower()
    fits = [(len(suffix), known) for known in FORMATS for suffix in known.suffixes if name.endswith(suffix)]
    return max(fits, key=lambda fit: fit[0])[1] if fits else None
