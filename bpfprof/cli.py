"""The command line: starts what takes longest, runs the command, and turns how it ended into an exit code."""

from __future__ import annotations

import sys

from bpfprof.capture.stop import StopRequest
from bpfprof.errors import BpfprofError
from bpfprof.kernel.compiler import Compilation

_REPORT_BUG = "this is a bug in bpfprof; please report it with the output of the same command and --debug"


def main() -> None:
    """Runs the command and exits with the code of the contract."""
    arguments = sys.argv[1:]
    own_part = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in own_part
    if debug:
        arguments.remove("--debug")
    will_record = own_part[:1] == ["record"] and not {"-h", "--help"} & set(own_part)
    sys.exit(_run(arguments, debug, will_record))


def _run(arguments: list[str], debug: bool, will_record: bool) -> int:
    compilation: Compilation | None = None
    try:
        if not will_record:
            return _run_command(arguments)
        with StopRequest() as stop:  # from here on a signal ends the recording, however short, in good order
            # The compiler is the longest part of the start, so it runs while the rest of bpfprof is being imported.
            compilation = Compilation.start()
            return _run_command(arguments, (compilation, stop))
    except KeyboardInterrupt:
        return 0
    except BpfprofError as error:
        _show_traceback(debug)
        _say(f"{error}" + (f"\n  {error.hint}" if error.hint else ""))
        return error.exit_code
    except Exception as error:
        _show_traceback(debug)
        _say(f"internal error: {type(error).__name__}: {error}\n  {_REPORT_BUG}")
        return 1
    finally:
        if compilation is not None:
            compilation.cancel()


def _run_command(arguments: list[str], started: tuple[Compilation, StopRequest] | None = None) -> int:
    import click

    from bpfprof.commands.group import group

    try:
        group.main(arguments, prog_name="bpfprof", standalone_mode=False, obj=started)
    except click.ClickException as error:
        error.show()
        return 2
    except click.Abort:
        return 0
    return 0


def _say(text: str) -> None:
    print(f"bpfprof: {text}", file=sys.stderr)


def _show_traceback(debug: bool) -> None:
    if debug:
        import traceback

        traceback.print_exc()
