"""`bpfprof doctor`: what can be recorded on this machine by this user, what is missing, and a recording to prove it."""

from __future__ import annotations

import platform
import sys
import textwrap
from collections.abc import Callable, Iterator

import click

from bpfprof import __version__
from bpfprof.commands.help import Command
from bpfprof.cpython.layouts_dynamic import SUPPORTED_VERSIONS
from bpfprof.errors import UnsupportedError
from bpfprof.kernel import checks
from bpfprof.kernel.checks import Finding
from bpfprof.kernel.compiler import Compilation
from bpfprof.kernel.kernel_side import KernelSide
from bpfprof.names.demangled import can_demangle
from bpfprof.private_cache import PrivateCache, cache_directory

_Check = Callable[[], Finding]
_COLUMN, _WIDTH = 29, 120


def _python() -> Finding:
    versions = ", ".join(f"{major}.{minor}" for major, minor in SUPPORTED_VERSIONS)
    return Finding(f"CPython {versions}; others have native frames only")


def _cplusplus() -> Finding:
    if can_demangle():
        return Finding("C++ and Rust functions have readable names")
    fix = "pip install demangle" if sys.version_info >= (3, 11) else "run bpfprof with Python 3.11 or newer"
    return Finding("", "C++ and Rust functions keep their mangled names", fix)


def _cache() -> Finding:
    folder = cache_directory()
    if PrivateCache("", 0).is_usable():
        return Finding(str(folder))
    return Finding(
        "", f"{folder} cannot be written: what recordings have in common is made at each start, which takes longer"
    )


# Everything below them is tried only when none of these is missing.
_HOST: tuple[tuple[str, _Check], ...] = (
    ("machine", checks.check_machine),
    ("namespace", checks.check_namespace),
    ("privilege", checks.check_privilege),
    ("kernel lockdown", checks.check_kernel_lockdown),
    ("seccomp", checks.check_seccomp),
    ("kernel settings", checks.check_settings),
    ("locked memory", checks.check_locked_memory),
    ("type information", checks.check_types),
    ("BCC", checks.check_compiler),
)
_DETAILS: tuple[tuple[str, _Check], ...] = (
    ("run queue", checks.check_run_queue),
    ("who ends waits", checks.check_wakers),
    ("other users", checks.check_other_users),
    ("mapped files", checks.check_replaced_files),
    ("kernel functions", checks.check_kernel_names),
    ("C++ functions", _cplusplus),
    ("Python programs", _python),
    ("cache", _cache),
)


_EXAMPLES = (
    ("whether bpfprof works here; recording needs root, so ask as root", "sudo bpfprof doctor"),
    ("what to send with a report of a bug", "sudo bpfprof doctor -v"),
)


@click.command(cls=Command, examples=_EXAMPLES)
@click.option("-v", "--verbose", is_flag=True, help="With figures: offsets, numbers of programs, folders.")
@click.option("--self-test/--no-self-test", "tests_itself", default=True, help="Record a known program.  [default: on]")
def doctor(verbose: bool, tests_itself: bool) -> None:
    """Say what can be recorded on this machine, and how to put right what is missing.

    Each line is ok, limited (it works with less) or missing. It ends with a recording of a known program, which takes
    two seconds, and a verdict. The exit code is 3 when nothing can be recorded.
    """
    click.echo(f"bpfprof {__version__} on Python {platform.python_version()}\n")
    fixes: set[str] = set()
    states = [_show(name, finding, verbose, fixes) for name, finding in _findings(tests_itself)]
    click.echo()
    if "missing" in states:
        raise UnsupportedError("recording does not work here (see above)", "bpfprof report, of a recording, works")
    limits = states.count("limited")
    with_limits = f", with {limits} limit{'s' * (limits > 1)} (see above)" * bool(limits)
    proof = "" if tests_itself else "; not proven by a self-test"
    click.echo(f"bpfprof can record here{with_limits}{proof}")


def _findings(tests_itself: bool) -> Iterator[tuple[str, Finding | UnsupportedError]]:
    is_possible = True
    for name, check in _HOST:
        found = _tried(check)
        is_possible = is_possible and isinstance(found, Finding)
        yield name, found
    if is_possible:
        yield from _kernel_side(tests_itself)


def _kernel_side(tests_itself: bool) -> Iterator[tuple[str, Finding | UnsupportedError]]:
    compilation = Compilation.start()
    try:
        kernel = KernelSide.start(compilation)
        try:
            yield from checks.kernel_side_findings(kernel)
            for name, check in _DETAILS:
                yield name, _tried(check)
            if tests_itself:
                from bpfprof.commands.self_test import self_test

                yield "self-test", self_test(kernel)
        finally:
            kernel.close()
    except UnsupportedError as error:
        yield "recording", error
    finally:
        compilation.cancel()


def _tried(check: _Check) -> Finding | UnsupportedError:
    try:
        return check()
    except UnsupportedError as error:
        return error


def _show(name: str, found: Finding | UnsupportedError, verbose: bool, fixes: set[str]) -> str:
    """Prints one finding, and how to fix it unless that is in `fixes`; returns ok, limited or missing."""
    if isinstance(found, UnsupportedError):
        state, text, fix = "missing", str(found), found.hint
    else:
        state, text, fix = ("limited", found.limit, found.fix) if found.limit else ("ok", found.text, found.fix)
        text += f" [{found.figures}]" * bool(verbose and found.figures)
    indent = " " * _COLUMN
    lines = textwrap.wrap(text, _WIDTH - _COLUMN, break_long_words=False, break_on_hyphens=False)
    lines += [f"fix: {fix}"] * bool(fix and fix not in fixes)
    fixes.add(fix)
    click.echo(f"{state:<8} {name:<19} " + f"\n{indent}".join(lines))
    return state
