"""The command line: starts what takes longest, runs the command, and turns how it ended into an exit code."""

from __future__ import annotations

import contextlib
import re
import sys
from typing import TYPE_CHECKING

from bpfprof.capture.stop import StopRequest
from bpfprof.commands.outputs import guard_standard_output
from bpfprof.errors import BpfprofError, UnsupportedError
from bpfprof.kernel.compiler import Compilation
from bpfprof.kernel.kernel_side import KernelSide
from bpfprof.proc.priority import raise_priority

if TYPE_CHECKING:
    from bpfprof.commands.recording import Started

_REPORT_BUG = "this is a bug in bpfprof; please report it with the output of the same command and --debug"

_INTERRUPTED = 130  # by Ctrl-C; what records is not, it ends

_SAYS_WHAT = re.compile(r"--pid|--all|-[a-zA-Z]*[pa]")  # an option that says what to record, maybe among others


def main() -> None:
    """Runs the command and exits with the code of the contract."""
    guard_standard_output()
    arguments = sys.argv[1:]
    own_part = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in own_part
    if debug:
        arguments.remove("--debug")
        own_part = [argument for argument in own_part if argument != "--debug"]
    sys.exit(_run(arguments, debug, _will_record(arguments, own_part)))


def _will_record(arguments: list[str], own_part: list[str]) -> bool:
    """Whether the command records: to know it before click is imported saves a good part of the start."""
    if {"-h", "--help"} & set(own_part):
        return False
    # `offcpu` records, unless it is given a recording, which excludes all of these. A wrong yes costs some CPU time.
    has_target = "--" in arguments or any(_SAYS_WHAT.match(argument) for argument in own_part[1:])
    return own_part[:1] == ["record"] or (own_part[:1] == ["offcpu"] and has_target)


def _run(arguments: list[str], debug: bool, will_record: bool) -> int:
    compilation: Compilation | None = None
    kernel: KernelSide | None = None
    try:
        if not will_record:
            return _run_command(arguments)
        with StopRequest() as stop:  # from here on a signal ends the recording, however short, in good order
            raise_priority()
            # The compiler is the longest part of the start, so it runs while the rest of bpfprof is being imported.
            compilation = Compilation.start()
            with contextlib.suppress(UnsupportedError):  # the command will say it, if nothing is wrong with its options
                kernel = KernelSide.start(compilation)
            return _run_command(arguments, (compilation, kernel, stop))
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BpfprofError as error:
        _show_traceback(debug)
        _say(f"{error}" + (f"\n  {error.hint}" if error.hint else ""))
        return error.exit_code
    except Exception as error:
        _show_traceback(debug)
        _say(f"internal error: {type(error).__name__}: {error}\n  {_REPORT_BUG}")
        return 1
    finally:
        if kernel is not None:
            kernel.close()
        if compilation is not None:
            compilation.cancel()


def _run_command(arguments: list[str], started: Started | None = None) -> int:
    import click

    from bpfprof.commands.group import group

    try:
        group.main(arguments, prog_name="bpfprof", standalone_mode=False, obj=started)
    except click.ClickException as error:
        error.show()
        return 2
    except click.Abort:
        return _INTERRUPTED
    return 0


def _say(text: str) -> None:
    print(f"bpfprof: {text}", file=sys.stderr)


def _show_traceback(debug: bool) -> None:
    if debug:
        import traceback

        traceback.print_exc()
