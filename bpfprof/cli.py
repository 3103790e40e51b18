"""The command line: runs the command, and turns how it ended into an exit code."""

from __future__ import annotations

import contextlib
import sys

from bpfprof.commands.outputs import guard_standard_output
from bpfprof.errors import BpfprofError, shortage
from bpfprof.proc.text import printable_lines

_REPORT_BUG = "this is a bug in bpfprof; please report it with the output of the same command and --debug"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE_BYTES, _KEPT_BYTES = 4 << 20, 32 << 20
_FRAMES, _CYCLE = 3, 8  # functions that an internal error names, and of a cycle
_INTERRUPTED = 130  # by Ctrl-C; what records is not, it ends


def main() -> None:
    """Runs the command and exits with the code of the contract."""
    guard_standard_output()
    arguments = sys.argv[1:]
    own_part = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in own_part
    if debug:
        arguments.remove("--debug")
    sys.exit(_run(arguments, debug))


def _run(arguments: list[str], debug: bool) -> int:
    try:
        return _run_command(arguments)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # Python up to 3.11 has it so where a class was being made
            return _INTERRUPTED
        known = error if isinstance(error, BpfprofError) else shortage(error)
        if known is not None:
            _say(f"{known}" + (f"\n  {known.hint}" if known.hint else ""), debug, known.details)
            return known.exit_code
        _say(f"internal error: {type(error).__name__}: {error}\n  {_where(error)}\n  {_REPORT_BUG}", debug)
        return 1


def _where(error: Exception) -> str:
    """The functions that an error came out of, the innermost first; of an endless recursion those that repeat."""
    from collections import Counter
    from traceback import walk_tb

    frames: list[str] = []
    for frame, line in walk_tb(error.__traceback__):
        file = "/".join(frame.f_code.co_filename.split("/")[-2:])  # of a package, as many are __init__.py
        frames.append(f"{file}:{line} in {frame.f_code.co_name}")
    most, count = Counter(frames).most_common(1)[0]
    if not isinstance(error, RecursionError) or count == 1:
        return "at " + ", ".join(frames[: -_FRAMES - 1 : -1])
    last = len(frames) - 1 - frames[::-1].index(most)
    begin = last - 1 - frames[:last][::-1].index(most)
    return f"at {', '.join(frames[begin + 1 : last + 1][-_CYCLE:][::-1])}, {count} times"


def _run_command(arguments: list[str]) -> int:
    if arguments in (["--version"], ["-V"]):
        from bpfprof.commands.version import version_text

        print(version_text())
        return 0
    _give_back_large_blocks()
    import click

    from bpfprof.commands.group import group

    try:
        status = group.main(arguments, prog_name="bpfprof", standalone_mode=False)
    except click.ClickException as error:
        from bpfprof.commands.usage_errors import as_usage_error

        raise as_usage_error(error) from error
    except click.Abort:
        return _INTERRUPTED
    return status or 0


def _give_back_large_blocks() -> None:
    """Arrays that were freed, of which a report of a long recording has many: 50 of 410 MB.

    glibc keeps those of up to 32 MB once one was freed, unless the limit is set (mallopt(3), M_MMAP_THRESHOLD). Once it
    is, of smaller ones no more than 128 KB are kept: to get the others again costs a tenth of the time of a report.
    Threads that help have no memory of their own: it would be kept beside that of the first.
    """
    import ctypes

    with contextlib.suppress(AttributeError):  # another libc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_ARENA_MAX, 1)


def _say(text: str, with_traceback: bool, details: str = "") -> None:
    if with_traceback:
        import traceback

        text = f"{traceback.format_exc()}{details}\n{text}"
    print(printable_lines(f"bpfprof: {text}"), file=sys.stderr)  # words of a file or of the command line may be in it
