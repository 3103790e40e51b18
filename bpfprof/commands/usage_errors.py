"""What click says of a wrong use, in the form of all other errors: a sentence, and a line of what helps.

The sentences are made from what an error is about, because click's own differ from version to version.
"""

from __future__ import annotations

import difflib
import re

import click

from bpfprof.commands.values import WrongValue
from bpfprof.errors import UsageError

_TOO_MANY = re.compile(r"unexpected extra arguments? \((.*)\)")


def as_usage_error(error: click.ClickException) -> UsageError:
    """The same error as one of bpfprof's."""
    context = getattr(error, "ctx", None)
    lists = f"{context.command_path if context else 'bpfprof'} --help lists the options"
    if isinstance(error, click.NoSuchOption):
        return UsageError(_no_option(error, context), lists)
    if isinstance(error, click.BadOptionUsage):
        return UsageError(_without_value(error, context), lists)
    if isinstance(error, click.MissingParameter) and context is not None:
        return UsageError(f"{_name(error.param)} is missing", usage(context))
    if isinstance(error, click.BadParameter):
        hint = error.hint if isinstance(error, WrongValue) else ""
        return UsageError(_wrong_value(error), hint or lists)
    too_many = _TOO_MANY.search(error.message)
    if too_many and context is not None:
        return UsageError(f"{context.command_path} does not take {too_many.group(1)}", usage(context))
    return UsageError(_as_sentence(error.format_message()), lists)


def usage(context: click.Context) -> str:
    """How the command is written: `bpfprof report [OPTIONS] RECORDING`."""
    return " ".join([context.command_path, *context.command.collect_usage_pieces(context)])


def _no_option(error: click.NoSuchOption, context: click.Context | None) -> str:
    text = f"there is no option {error.option_name}"
    options = context.command.get_params(context) if context else []
    words = [name[2:] for option in options for name in option.opts if name.startswith("--") and not _is_hidden(option)]
    near = difflib.get_close_matches(error.option_name.lstrip("-"), words, 1)
    return text + (f"; did you mean --{near[0]}?" if near else "")


def _is_hidden(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and parameter.hidden


def _without_value(error: click.BadOptionUsage, context: click.Context | None) -> str:
    for option in context.command.get_params(context) if context else []:
        if isinstance(option, click.Option) and error.option_name in (*option.opts, *option.secondary_opts):
            if option.is_flag:
                return f"{error.option_name} takes no value"
            return f"{_name(option)} wants a value: {error.option_name} {metavar(option, context)}"
    return _as_sentence(error.message)


def _wrong_value(error: click.BadParameter) -> str:
    if error.param is None:
        return f"PID {error.message}" if isinstance(error, WrongValue) else _as_sentence(error.message)
    name = _name(error.param)
    if isinstance(error, WrongValue):
        return f"{name} {error.message}"
    if isinstance(error.param.type, click.Choice):
        return f"{name} wants one of {', '.join(map(str, error.param.type.choices))}"
    return f"{name}: {_as_sentence(error.message)}"


def _name(parameter: click.Parameter | None) -> str:
    """`--pid` of an option, `RECORDING` of an argument."""
    if parameter is None:
        return "a parameter"
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return (parameter.metavar or parameter.human_readable_name).strip("[].")


def metavar(parameter: click.Parameter, context: click.Context | None) -> str:
    """What stands for a value in help; click 8.2 asks for the context, too."""
    try:
        return parameter.make_metavar(context)  # type: ignore[arg-type]
    except TypeError:
        return parameter.make_metavar()  # type: ignore[call-arg]


def _as_sentence(text: str) -> str:
    """Without capital and full stop, as all sentences of errors are."""
    return text[:1].lower() + text[1:].rstrip(".")
