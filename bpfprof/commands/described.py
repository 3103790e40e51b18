"""The commands as data, for manual pages and completion scripts: what click knows, and kinds of values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from bpfprof.commands.group import COMMANDS, group
from bpfprof.commands.help import Command, Example
from bpfprof.commands.usage_errors import metavar, usage
from bpfprof.commands.values import PID
from bpfprof.dataclass import dataclass
from bpfprof.kernel.perf_events import EVENTS
from bpfprof.model.states import AWAIT_REASONS, WAIT_REASONS
from bpfprof.render.formats import FORMATS

FILE, PROCESS, WORDS, ANYTHING, LAUNCHED = "file", "process", "words", "anything", "launched"  # kinds of values
# By the name of a parameter: words that its own type does not know.
_WORDS = {
    "format_name": tuple(form.name for form in FORMATS),
    "events": tuple(EVENTS),
    "event": tuple(EVENTS),
    "reasons": tuple(dict.fromkeys((*WAIT_REASONS, *AWAIT_REASONS))),
}


@dataclass(frozen=True)
class DescribedValue:
    """`words` are there only where the kind is WORDS."""

    kind: str
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class DescribedOption:
    """`names` are all of its names; `value` is None of a flag. `shown` and `text` are what --help has."""

    names: tuple[str, ...]
    shown: str
    text: str
    value: DescribedValue | None
    repeats: bool


@dataclass(frozen=True)
class DescribedCommand:
    """`arguments` are the values that stand without an option."""

    name: str
    summary: str
    usage: str
    text: str
    sections: tuple[tuple[str, tuple[DescribedOption, ...]], ...]
    arguments: tuple[DescribedValue, ...]
    examples: tuple[Example, ...]

    def options(self) -> list[DescribedOption]:
        """Those of all sections."""
        return [option for _, options in self.sections for option in options]


def described_commands() -> list[DescribedCommand]:
    """All of them, in the order of help."""
    above = _own_context()
    found = []
    for name, summary in (each for commands in COMMANDS.values() for each in commands.items()):
        command = group.get_command(above, name)
        assert isinstance(command, Command)
        ctx = click.Context(command, info_name=name, parent=above)
        sections = [(heading, _options(ctx, options)) for heading, options in command.sections(ctx)]
        arguments = [parameter for parameter in command.params if isinstance(parameter, click.Argument)]
        values = tuple(value for argument in arguments for value in _of_argument(argument))
        text = command.help or ""
        found.append(DescribedCommand(name, summary, usage(ctx), text, tuple(sections), values, command.examples))
    return found


def described_options() -> tuple[DescribedOption, ...]:
    """Those of bpfprof itself."""
    ctx = _own_context()
    return _options(ctx, [option for option in group.get_params(ctx) if isinstance(option, click.Option)])


def _own_context() -> click.Context:
    return click.Context(group, info_name="bpfprof", **group.context_settings)


def _options(ctx: click.Context, options: Sequence[click.Option]) -> tuple[DescribedOption, ...]:
    found = []
    for option in options:
        shown, text = option.get_help_record(ctx) or ("", "")
        value = None if option.is_flag else _of_option(option, ctx)
        names = (*option.opts, *option.secondary_opts)
        found.append(DescribedOption(names, shown, text, value, option.multiple))
    return tuple(found)


def _of_option(option: click.Option, ctx: click.Context) -> DescribedValue:
    own = _of_type(option)
    if option.name in _WORDS and own.kind == ANYTHING:
        return DescribedValue(WORDS, _WORDS[option.name])
    if metavar(option, ctx) == "PATH":
        return DescribedValue(FILE)
    return own


def _of_argument(argument: click.Argument) -> tuple[DescribedValue, ...]:
    if argument.type is not click.UNPROCESSED:
        return (_of_type(argument),)
    takes_recording = "RECORDING" in (argument.metavar or "")
    return (DescribedValue(LAUNCHED), DescribedValue(FILE if takes_recording else PROCESS))


def _of_type(parameter: click.Parameter) -> DescribedValue:
    if isinstance(parameter.type, click.Choice):
        return DescribedValue(WORDS, tuple(map(str, parameter.type.choices)))
    if parameter.type is PID:
        return DescribedValue(PROCESS)
    return DescribedValue(FILE if getattr(parameter.type, "func", None) is Path else ANYTHING)
