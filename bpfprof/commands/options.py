"""Options that several commands share, and what is made of them."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from bpfprof.commands.help import LOOK, OUTPUT, under
from bpfprof.commands.outputs import STANDARD_OUTPUT, descriptor
from bpfprof.commands.sources import read_sources
from bpfprof.dataclass import dataclass
from bpfprof.errors import UsageError
from bpfprof.profile.options import ProfileOptions, SpanFilter
from bpfprof.query.tables.choices import MERGES
from bpfprof.render.formats import FLAMEGRAPH, FORMATS, PAGE, Format, RenderOptions, find_format, format_for_suffix

Command = TypeVar("Command", bound=Callable[..., Any])

RECORDING_SUFFIX = ".bpfprof"
_FORMAT_NAMES = ", ".join(format.name for format in FORMATS)

_PICTURE = ".html gives a page and .svg a flame graph, which any browser shows"
# Suffixes that people try -> what there is instead; only asked where no format has the suffix.
_INSTEAD = {suffix: _PICTURE for suffix in (".png", ".jpg", ".pdf")}


def gathered(
    name: str, kind: type[Any], options: Sequence[Callable[[Any], Any]], heading: str = ""
) -> Callable[[Command], Command]:
    """Decorator: adds the options; values of fields of `kind` reach the command as one such, its argument `name`.

    heading: the one they stand under in help; "" leaves it to each option.
    """
    names = [field.name for field in fields(kind)]

    def decorate(command: Any) -> Any:
        @functools.wraps(command)
        def with_one(*arguments: Any, **values: Any) -> Any:
            gathered_values = kind(**{field: values.pop(field) for field in names if field in values})
            return command(*arguments, **{name: gathered_values}, **values)

        for option in reversed(options):
            with_one = (under(heading, option) if heading else option)(with_one)
        return with_one

    return decorate


def with_options(options: Sequence[Callable[[Any], Any]]) -> Callable[[Command], Command]:
    """Decorator: adds the options, in this order."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@dataclass(frozen=True)
class Shown:
    """What a report is to be, and where it goes."""

    output: Path | None
    format_name: str | None
    show_interpreter: bool
    opens: bool = False  # in a browser, when it is written

    def __post_init__(self) -> None:
        """Where the format is a folder the output is the file in it."""
        known = find_format(self.format_name or "")
        if known is None or not known.in_folder or self.output is None or descriptor(self.output) is not None:
            return
        if self.output.suffix not in known.suffixes:
            object.__setattr__(self, "output", self.output / known.in_folder)

    def format(self) -> Format | None:
        """The format asked for; None: none, or a recording. Raises UsageError for an unknown name or suffix."""
        if self.format_name is not None:
            if self.format_name.lower() in ("bpfprof", "recording"):
                return None
            found = find_format(self.format_name)
            if found is None:
                names = [name for known in FORMATS for name in (known.name, *known.synonyms)]
                near = difflib.get_close_matches(self.format_name.lower(), names, 1)
                meant = f"; did you mean {near[0]}?" if near else ""
                raise UsageError(f"there is no format {self.format_name}{meant}", f"the formats are {_FORMAT_NAMES}")
            found.check()
            return found
        if self.output is None or self.output.suffix == RECORDING_SUFFIX or descriptor(self.output) is not None:
            return None
        found = format_for_suffix(self.output)
        if found is None:
            instead = _INSTEAD.get(self.output.suffix.lower())
            if instead:
                raise UsageError(f"{self.output.suffix} is not a format of bpfprof", instead)
            raise UsageError(f"the suffix of {self.output} does not tell the format", f"give --format: {_FORMAT_NAMES}")
        found.check()
        return found

    def check_open(self) -> None:
        """Raises UsageError if there is no picture to open."""
        if self.opens and (self.output in (None, STANDARD_OUTPUT) or self.format() not in (PAGE, FLAMEGRAPH)):
            raise UsageError(
                "--open is for a picture in a file", "-o FILE.html gives a page, -o FILE.svg a flame graph"
            )

    def on_terminal(self) -> Shown:
        """The same where standard output is what there is without a file, so `-o -` says nothing."""
        return replace(self, output=None) if descriptor(self.output) == 1 else self

    def profile_options(self, wanted: SpanFilter, with_spans: bool) -> ProfileOptions:
        """What the profile for a report has to hold."""
        return ProfileOptions(with_spans, self.show_interpreter, wanted)


_OUTPUT = (
    click.option(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="File to write, - for standard output; its suffix gives the format.",
    ),
    click.option("-f", "--format", "format_name", metavar="NAME", help=f"One of {_FORMAT_NAMES}."),
    click.option("--open", "opens", is_flag=True, help="Open the page or flame graph in a browser."),
)
_LOOK = (
    click.option("--details", is_flag=True, help="Long tables for the terminal, with each thread's times."),
    click.option("-F", "--function-names", "function_only", is_flag=True, help="Functions without line numbers."),
    click.option("--full-filenames", is_flag=True, help="Whole paths instead of from where files are imported."),
    click.option(
        *("--no-source", "sources"),
        is_flag=True,
        callback=lambda _ctx, _parameter, left_out: None if left_out else read_sources,
        help="No lines of the program's files in an HTML page and with --by line.",
    ),
    click.option("--show-interpreter", is_flag=True, help="Keep CPython's own C functions in the stacks."),
    # What users of other profilers type: each thread has its frame, and waits are always in.
    click.option("-t", "--threads", is_flag=True, expose_value=False, hidden=True),
)
_with_shown = gathered(
    "shown", Shown, [*(under(LOOK, option) for option in _LOOK), *(under(OUTPUT, option) for option in _OUTPUT)]
)


def output_options(command: Command) -> Command:
    """Decorator: adds the options; they reach the command as `shown` and, with what else decides a look, `look`."""
    return _with_shown(gathered("look", RenderOptions, ())(command))


merge_option = click.option(
    "--merge",
    type=click.Choice(MERGES),
    callback=lambda _ctx, _parameter, merge: merge or RenderOptions().merge,
    help="Threads of a role (name without digits) or of a process, and processes of one command, as one.",
)
gil_option = click.option("-g", "--gil", "holds_gil", is_flag=True, help="Show only what was done holding the GIL.")
