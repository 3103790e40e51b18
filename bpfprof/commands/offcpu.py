"""`bpfprof offcpu`: where threads wait, how long, and who ends their waits; live, or from a recording."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from bpfprof.commands.capture_options import Asked, capture_options
from bpfprof.commands.options import RATE, Shown, gathered, gil_option, output_options
from bpfprof.commands.outputs import show, shows_utf8
from bpfprof.errors import UsageError
from bpfprof.kernel.attach import PERF_EVENTS
from bpfprof.query.groups import GROUPINGS, group_waits
from bpfprof.query.wait_filter import WaitFilter, task_states
from bpfprof.render.formats import TABLE, Format

if TYPE_CHECKING:
    from bpfprof.model.profile import Profile

_HAS_DASHES = "bpfprof.has_dashes"
_EXAMPLE = "bpfprof offcpu --pid 1234 -d 10\n  bpfprof offcpu RECORDING"


def _states(_ctx: click.Context, _parameter: click.Parameter, text: str) -> int:
    try:
        return task_states(text) if text else 0
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@dataclass(frozen=True, slots=True)
class Waits:
    """Which waits to show and how to group them."""

    by: str
    states: int
    hide_idle: bool
    gil_only: bool
    limit: int
    with_wakers: bool
    waker_depth: int


_wait_options = gathered(
    "waits",
    Waits,
    (
        click.option(
            "--by",
            type=click.Choice(GROUPINGS),
            default="stack",
            help="What waits of one group have in common.  [default: reason and stack]",
        ),
        click.option(
            *("--state", "states"),
            default="",
            callback=_states,
            metavar="S,D,...",
            help="Only waits in these states: letters as in ps, or names (uninterruptible...).  [default: all]",
        ),
        click.option("--hide-idle", is_flag=True, help="Leave out waits of threads that have nothing to do."),
        gil_option,
        click.option(
            "-n", "--limit", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Groups shown."
        ),
        click.option(
            "--waker", "with_wakers", is_flag=True, help="In flame graphs: after each wait the stack of who ended it."
        ),
        click.option(
            "--waker-depth",
            type=click.IntRange(1, 20),
            default=2,
            show_default=True,
            help="How many wakers one after the other: the waker, who had woken it, ...",
        ),
    ),
)


class _RecordingOrCommand(click.Command):
    """Remembers whether there was a `--`, which tells a command from a recording."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_HAS_DASHES] = "--" in args
        return super().parse_args(ctx, args)


@click.command(cls=_RecordingOrCommand)
@capture_options
@_wait_options
@output_options
# Accepted for habit: nothing is sampled.
@click.option("-r", "--rate", type=RATE, hidden=True, expose_value=False)
@click.option("-e", "--event", type=click.Choice(list(PERF_EVENTS)), hidden=True, expose_value=False)
@click.option("--mode", type=click.Choice(["offcpu"]), hidden=True, expose_value=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[RECORDING | -- COMMAND...]")
@click.pass_context
def offcpu(ctx: click.Context, asked: Asked, waits: Waits, shown: Shown, arguments: tuple[str, ...]) -> None:
    """Show where threads wait: of running programs (--pid), of a COMMAND given after --, or in a RECORDING.

    Of a RECORDING --min-block leaves out waits that were shorter; other options of recording do not go with one.
    """
    chosen = shown.format()
    if waits.with_wakers and chosen in (None, TABLE):
        raise UsageError("--waker is for stacks, a table has the wakers", "give a file: -o waits.svg")
    if arguments and not ctx.meta[_HAS_DASHES]:
        _show_recording(ctx, _only_recording(arguments), asked, waits, shown, chosen)
    else:
        _capture(ctx, asked, waits, shown, chosen, arguments)


def _only_recording(arguments: tuple[str, ...]) -> Path:
    if len(arguments) > 1:
        raise UsageError("give one recording, or a command after --", "bpfprof offcpu -- python program.py")
    return Path(arguments[0])


def _show_recording(
    ctx: click.Context, path: Path, asked: Asked, waits: Waits, shown: Shown, chosen: Format | None
) -> None:
    from bpfprof.commands.report import check_not_replaced, check_whole, load_profile, write_report

    for parameter in ctx.command.params:
        is_given = ctx.get_parameter_source(parameter.name or "") == ParameterSource.COMMANDLINE
        if is_given and parameter.name != "min_block" and parameter.name in Asked.__slots__:
            names = parameter.opts if getattr(asked, parameter.name) else parameter.secondary_opts
            raise UsageError(f"{names[-1]} is for recording, and {path} has been recorded", "leave it out")
        if is_given and chosen not in (None, TABLE) and parameter.name in ("by", "limit"):
            raise UsageError(f"{parameter.opts[-1]} is for tables", "leave it out, or choose the format table")
    if chosen is None and (shown.format_name or shown.output):
        raise UsageError("a table is not a recording; choose another suffix or format")
    check_not_replaced(path, shown.output)
    chosen = chosen or TABLE
    profile = load_profile(path, shown.profile_options(chosen, with_waits=True))
    filter_ns = 1000 * (asked.min_block or 0)
    is_ascii = shown.output is None and not shows_utf8()
    write_report(_content(chosen, waits, shown, filter_ns, profile, is_ascii), shown.output)
    check_whole(profile)


def _capture(
    ctx: click.Context, asked: Asked, waits: Waits, shown: Shown, chosen: Format | None, command: tuple[str, ...]
) -> None:
    from bpfprof.commands.record import next_step
    from bpfprof.commands.recording import Plan, make_recording

    asked.check_targets(command, _EXAMPLE)
    if chosen is TABLE and shown.output is None:
        chosen = None
    if chosen is not None and shown.output is None:
        raise UsageError(f"the format {chosen.name} needs a file: --output FILE")
    write = functools.partial(_content, chosen, waits, shown, 0) if chosen else None
    options = shown.profile_options(chosen or TABLE, with_waits=True)
    recorded = make_recording(ctx.obj, Plan(asked.options("offcpu"), command, shown.output, options, write))
    path = recorded.path
    show(str(_content(TABLE, waits, shown, 0, recorded.profile, not shows_utf8())))
    if chosen is None:
        by = next(other for other in ("waker", "thread") if other != waits.by)
        click.echo(f"\nrecording: {path}\nnext: bpfprof offcpu {path} --by {by}")
    else:
        click.echo(f"\n{chosen.name}: {path}\nnext: {next_step(chosen, path)}")
    if recorded.failure is not None:
        raise recorded.failure


def _content(
    chosen: Format, waits: Waits, shown: Shown, min_block_ns: int, profile: Profile, ascii_only: bool = False
) -> str:
    """The waits in this format."""
    # Imported now: while a recording starts there is no time for it.
    from bpfprof.query.off_cpu import off_cpu_profile
    from bpfprof.render.off_cpu import render_off_cpu

    wanted = WaitFilter(min_block_ns, waits.states, waits.hide_idle, waits.gil_only)
    look = shown.look()
    if chosen is TABLE:
        groups = group_waits(profile, waits.by, wanted, waits.limit, waits.waker_depth, shown.function_only)
        return render_off_cpu(profile, groups, look, ascii_only)
    if chosen.name == "flamegraph":
        look = replace(look, title="Flame graph of waits" + " and who ended them" * waits.with_wakers)
    return chosen.render(off_cpu_profile(profile, wanted, waits.waker_depth if waits.with_wakers else 0), look)
