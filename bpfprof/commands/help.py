"""Help of a command: its options under headings, and examples at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

# The headings there are, in the order in which they stand.
TARGET, CAPTURE, COMPARE, PART, LOOK, OUTPUT = (
    "What to record",
    "What is captured",
    "What is compared",
    "Which part is shown",
    "What is shown",
    "Output",
)
_ELSE = "Other"
_HEADINGS = (TARGET, CAPTURE, COMPARE, PART, LOOK, OUTPUT, _ELSE)

Example = tuple[str, str]  # (what it does, the line to type)


def under(heading: str, option: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same decorator of an option, which stands under the heading."""

    def decorate(command: Any) -> Any:
        command = option(command)
        command.__click_params__[-1].heading = heading  # where click keeps them until there is a command
        return command

    return decorate


class Command(click.Command):
    """A command with examples. Options that are under no heading stand under `heading`."""

    def __init__(self, *arguments: Any, heading: str = _ELSE, examples: Sequence[Example] = (), **settings: Any):
        super().__init__(*arguments, **settings)
        self.examples = tuple(examples)
        self._heading = heading

    def sections(self, ctx: click.Context) -> list[tuple[str, list[click.Option]]]:
        """(heading, its options that are not hidden), in order; the last has --help."""
        found: dict[str, list[click.Option]] = {heading: [] for heading in _HEADINGS}
        for option in self.get_params(ctx):
            if isinstance(option, click.Option) and not option.hidden:
                is_help = "--help" in option.opts
                found[_ELSE if is_help else getattr(option, "heading", self._heading)].append(option)
        sections = [(heading, options) for heading, options in found.items() if options]
        return sections if len(sections) > 1 else [("Options", sections[0][1])]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; errors know where they came from, which some of click's do not."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options under their headings."""
        for heading, options in self.sections(ctx):
            records = (option.get_help_record(ctx) for option in options)
            with formatter.section(heading):
                formatter.write_dl([record for record in records if record is not None])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the examples."""
        write_examples(self.examples, formatter)


def write_examples(examples: Sequence[Example], formatter: click.HelpFormatter) -> None:
    """Each as a line that can be copied, under what it does; lines are never broken."""
    if not examples:
        return
    with formatter.section("Examples"):
        indent = " " * formatter.current_indent
        for what, line in examples:
            formatter.write(f"{indent}# {what}\n{indent}{line}\n")
