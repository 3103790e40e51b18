"""The command group, before any command is imported."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from typing import Any

import click

from bpfprof.commands.help import Example, write_examples
from bpfprof.commands.importing import import_numpy
from bpfprof.errors import UsageError

# heading -> command -> what it does, in a line. The module of a command has its name.
COMMANDS = {
    "To record": {
        "record": "Record where the time of programs goes, running or launched.",
        "offcpu": "Show where threads wait, how long, and who ends their waits.",
    },
    "To look at what runs now": {
        "top": "Show where the time goes, again and again.",
        "dump": "Show what each thread of a process does and waits for.",
    },
    "To look at recordings": {
        "report": "Show a recording as text, or write it in another format.",
        "diff": "Show what got slower or faster from one recording to another.",
        "compare": "Show which rank of a training is slowest, and why.",
    },
    "To look at many recordings": {
        "export": "Write recordings into a data set of many.",
        "fleet": "Show what many recordings have: what is slow, where, since when.",
    },
    "Other": {
        "doctor": "Say what can be recorded here, and how to fix what cannot.",
        "completion": "Print what lets a shell complete commands and options.",
        "manual": "Print manual pages.",
    },
}
_OPTIONS_FIRST = {"record", "offcpu", "top", "dump"}  # commands that import numpy themselves, when it is needed
_NAMES = [name for commands in COMMANDS.values() for name in commands]
EXIT_CODES = (
    ("0", "done"),
    ("1", "a bug in bpfprof"),
    ("2", "wrong use"),
    ("3", "a privilege, kernel feature or dependency is missing, or files or memory run out"),
    ("4", "no such process, or it ended before anything was seen"),
    ("5", "a recording is unreadable or cut short, or an output cannot be written"),
    ("6", "diff --fail-over found what it looks for"),
    ("130", "Ctrl-C before it was done"),
    ("of a command", "its own; 128 and the number of a signal; 125 not launched, 126 not run, 127 not found"),
)
EXAMPLES: Sequence[Example] = (
    ("what bounds a running program, after 30 seconds of it", "sudo bpfprof record --pid 1234 -d 30"),
    ("the same of a program that is launched, as a flame graph", "sudo bpfprof record -o out.svg -- python app.py"),
    ("why a program hangs", "sudo bpfprof dump 1234"),
)


class Group(click.Group):
    """Imports a command when it is used: recording starts sooner, and a report needs no kernel side."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _NAMES:
            return None
        if cmd_name not in _OPTIONS_FIRST:
            import_numpy()
        command: click.Command = getattr(importlib.import_module(f"bpfprof.commands.{cmd_name}"), cmd_name)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does. Without arguments it is a wrong use, answered with the help."""
        if not args:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; one that there is not is answered with the nearest, a process or file with its commands."""
        name = args[0]
        if name not in _NAMES:
            if name.isdecimal():
                choices = f"bpfprof record --pid {name}, bpfprof top {name} or bpfprof dump {name}"
                raise UsageError(f"say what to do with process {name}", choices)
            if name.endswith(".bpfprof"):
                raise UsageError(f"say what to do with {name}", f"bpfprof report {name}")
            near = difflib.get_close_matches(name.lower(), _NAMES, 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"there is no command {name}{meant}", f"the commands are {', '.join(_NAMES)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands under their headings, without importing them."""
        width = max(map(len, _NAMES))
        for heading, commands in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), what) for name, what in commands.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes examples, and what exit codes mean."""
        write_examples(EXAMPLES, formatter)
        with formatter.section("Exit codes"):
            formatter.write_dl(EXIT_CODES)


def _show_version(ctx: click.Context, _parameter: click.Parameter, is_wanted: Any) -> None:
    if is_wanted and not ctx.resilient_parsing:
        from bpfprof.commands.version import version_text

        click.echo(version_text())
        ctx.exit()


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    *("-V", "--version"),
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the versions of bpfprof, its Python, BCC and Linux, and exit.",
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors; it may stand anywhere.")
def group() -> None:
    """Where the wall time of every thread of a Python program goes, seen from the kernel.

    bpfprof COMMAND --help has the options of a command.
    """
