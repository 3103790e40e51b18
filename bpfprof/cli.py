"""The command line: finds the command, and turns how it ended into an exit code."""

from __future__ import annotations

import importlib
import sys
import traceback

import click

from bpfprof import __version__
from bpfprof.errors import BpfprofError

_COMMANDS = ("record", "report", "doctor")
_REPORT_BUG = "this is a bug in bpfprof; please report it with the output of the same command and --debug"


class _LazyGroup(click.Group):
    """Imports a command when it is used: recording starts sooner, and a report needs no kernel side."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"bpfprof.commands.{cmd_name}"), cmd_name)
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="bpfprof")
def cli() -> None:
    """Where the wall time of every thread of a Python program goes, seen from the kernel.

    Exit codes: 0 done, 1 a bug, 2 wrong use, 3 a privilege, kernel feature or dependency is missing, 4 no such
    process, 5 a recording is unreadable or cut short. --debug anywhere shows tracebacks.
    """


def main() -> None:
    """Runs the command and exits with the code of the contract."""
    arguments = sys.argv[1:]
    own_part = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in own_part
    if debug:
        arguments.remove("--debug")
    sys.exit(_run(arguments, debug))


def _run(arguments: list[str], debug: bool) -> int:
    try:
        cli.main(arguments, prog_name="bpfprof", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return 2
    except click.Abort:
        return 0
    except BpfprofError as error:
        if debug:
            traceback.print_exc()
        click.echo(f"bpfprof: {error}" + (f"\n  {error.hint}" if error.hint else ""), err=True)
        return error.exit_code
    except Exception as error:
        if debug:
            traceback.print_exc()
        click.echo(f"bpfprof: internal error: {type(error).__name__}: {error}\n  {_REPORT_BUG}", err=True)
        return 1
    return 0
