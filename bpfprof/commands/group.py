"""The command group, before any command is imported."""

from __future__ import annotations

import difflib
import importlib

import click

from bpfprof import __version__

_COMMANDS = ("record", "offcpu", "dump", "report", "diff", "doctor")


class _LazyGroup(click.Group):
    """Imports a command when it is used: recording starts sooner, and a report needs no kernel side."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"bpfprof.commands.{cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; one that there is not is answered with the nearest one."""
        near = difflib.get_close_matches(args[0].lower(), _COMMANDS, 1)
        if near and args[0] not in _COMMANDS:
            ctx.fail(f"there is no command {args[0]!r}. Did you mean {near[0]}?")
        return super().resolve_command(ctx, args)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="bpfprof")
def group() -> None:
    """Where the wall time of every thread of a Python program goes, seen from the kernel.

    Exit codes: 0 done, 1 a bug, 2 wrong use, 3 a privilege, kernel feature or dependency is missing, 4 no such
    process, 5 a recording is unreadable or cut short, or an output cannot be written, 6 what diff --fail-over
    looks for, 130 Ctrl-C before it was done.
    Of a launched command: its own, 128 and the signal's number if one ended it; 125 it could not be launched, 126
    not be run, 127 not be found. --debug anywhere shows tracebacks.
    """
