"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from bpfprof.errors import UsageError
from bpfprof.render.formats import FORMATS, Format, RenderOptions, find_format, format_for_suffix

Command = TypeVar("Command", bound=Callable[..., Any])

RECORDING_SUFFIX = ".bpfprof"
_FORMAT_NAMES = ", ".join(format.name for format in FORMATS)


def output_options(command: Command) -> Command:
    """-o, -f and what changes the look of a report."""
    for option in (
        click.option("--full-filenames", is_flag=True, help="Whole paths instead of the shortest unambiguous tail."),
        click.option("-F", "--function", "function_only", is_flag=True, help="Functions without line numbers."),
        click.option(
            "-t", "--threads", is_flag=True, help="A frame for each thread (the default; accepted for habit)."
        ),
        click.option("-f", "--format", "format_name", metavar="NAME", help=f"One of {_FORMAT_NAMES}."),
        click.option(
            "-o", "--output", type=click.Path(path_type=Path), help="File to write; its suffix gives the format."
        ),
    ):
        command = option(command)
    return command


def choose_format(name: str | None, output: Path | None) -> Format | None:
    """The format asked for; None: none, or a recording. Raises UsageError for an unknown name or suffix."""
    if name is not None:
        if name.lower() in ("bpfprof", "recording"):
            return None
        found = find_format(name)
        if found is None:
            raise UsageError(f"there is no format {name}", f"the formats are {_FORMAT_NAMES}")
        return found
    if output is None or output.suffix == RECORDING_SUFFIX:
        return None
    found = format_for_suffix(output)
    if found is None:
        raise UsageError(f"the suffix of {output} does not tell the format", f"give --format: {_FORMAT_NAMES}")
    return found


def render_options(function_only: bool, full_filenames: bool) -> RenderOptions:
    """What the renderers need to know."""
    return RenderOptions(function_only=function_only, full_filenames=full_filenames)
