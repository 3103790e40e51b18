"""`bpfprof offcpu`: where threads wait, how long, and who ends their waits; live, or from a recording."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bpfprof.capture.options import CaptureOptions
from bpfprof.commands.capture_options import capture_options, check_targets, with_pid
from bpfprof.commands.carrying_out import carry_out
from bpfprof.commands.filters import Wanted, filter_options
from bpfprof.commands.help import LOOK, Command
from bpfprof.commands.options import Shown, merge_option, output_options
from bpfprof.commands.outputs import check_not_spilled, shows_utf8
from bpfprof.commands.plan import Plan
from bpfprof.commands.row_options import waiting_option
from bpfprof.commands.values import RATE, ROWS, Whole
from bpfprof.errors import UsageError
from bpfprof.model.states import ThreadState
from bpfprof.render.formats import GROUPINGS, SUMMARY, TABLE, WAITS, Format, RenderOptions

if TYPE_CHECKING:
    from bpfprof.model.profile import Profile
    from bpfprof.profile.options import ProfileOptions

    Render = Callable[[Profile, Format | None], str | bytes]

_HAS_DASHES, _GIVEN = "bpfprof.has_dashes", "bpfprof.given"
_EXAMPLES = (
    ("who waits for what, for 10 seconds", "sudo bpfprof offcpu --pid 1234 -d 10"),
    ("locks, and who holds them, of a recording", "bpfprof offcpu FILE.bpfprof --by lock"),
    ("waits as a flame graph, with the stacks of who ended them", "bpfprof offcpu FILE.bpfprof --waker -o waits.svg"),
    ("asyncio tasks, and what they wait for", "sudo bpfprof offcpu --pid 1234 -d 10 --by task"),
)
_EXAMPLE = "bpfprof offcpu --pid 1234 -d 10\n  bpfprof offcpu RECORDING"


class _RecordingOrCommand(Command):
    """Remembers whether there was a `--`, which tells a command from a recording, and which options were given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_HAS_DASHES] = "--" in args
        rest = super().parse_args(ctx, list(args))
        ctx.meta[_GIVEN] = self.make_parser(ctx).parse_args(list(args))[2]  # click 7 has no get_parameter_source
        return rest


@click.command(cls=_RecordingOrCommand, heading=LOOK, examples=_EXAMPLES)
@capture_options
@filter_options
@click.option(
    "--by",
    metavar="WHAT",
    type=click.Choice((*GROUPINGS, "task")),
    default="stack",
    help=f"What waits of one group have in common: {', '.join(GROUPINGS[1:])}, or task: asyncio tasks."
    "  [default: reason and stack]",
)
@click.option("-n", "--limit", metavar="N", type=ROWS, default=10, show_default=True, help="Groups shown.")
@click.option(
    "--waker", "with_wakers", is_flag=True, help="In flame graphs: after each wait the stack of who ended it."
)
@click.option(
    "--waker-depth",
    metavar="N",
    type=Whole(1, 20),
    default=2,
    show_default=True,
    help="How many wakers one after the other: the waker, who had woken it, ...",
)
@waiting_option
@merge_option
@output_options
# Accepted for habit: nothing is sampled.
@click.option("-r", "--rate", type=RATE, hidden=True, expose_value=False)
@click.option("-e", "--event", hidden=True, expose_value=False)
@click.option("--mode", type=click.Choice(["offcpu"]), hidden=True, expose_value=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[RECORDING | -- COMMAND...]")
@click.pass_context
def offcpu(
    ctx: click.Context,
    asked: CaptureOptions,
    wanted: Wanted,
    with_wakers: bool,
    shown: Shown,
    look: RenderOptions,
    arguments: tuple[str, ...],
) -> int:
    """Show where threads wait: of running programs (--pid or PID), of a COMMAND given after --, or in a RECORDING.

    Of a RECORDING --min-block leaves out waits that were shorter; other options of recording do not go with one.
    """
    asked, arguments = with_pid(asked, arguments)
    chosen = shown.format()
    if with_wakers and chosen in (None, SUMMARY, TABLE, WAITS):
        raise UsageError("--waker is for stacks, a table has the wakers", "give a file: -o waits.svg")
    is_recorded = bool(arguments) and not ctx.meta[_HAS_DASHES]
    shown = shown.on_terminal() if is_recorded else shown
    takes = (WAITS if chosen is None or chosen is TABLE else chosen).takes
    is_asked = "min_block_us" in {parameter.name for parameter in ctx.meta[_GIVEN]}
    min_block_us = asked.min_block_us if is_recorded and is_asked else 0
    wanted_spans = wanted.filter(min_block_us, ThreadState.OFF_CPU, takes)
    options = shown.profile_options(wanted_spans, True)
    if chosen in (None, TABLE, WAITS):
        options = replace(options, adds_up=WAITS.adds_up, has_whole_waits=WAITS.has_whole_waits)

    def render(profile: Profile, chosen: Format | None) -> str | bytes:
        is_shown = chosen is None or (is_recorded and shown.output is None)
        shown_look = replace(
            look, hide_idle=wanted.idle is False, with_idle=bool(wanted.idle), ascii_only=is_shown and not shows_utf8()
        )
        return _rendered(profile, chosen or WAITS, shown_look, with_wakers)

    def next_command(path: Path) -> str:
        return f"bpfprof offcpu {path} --by {'thread' if look.by == 'waker' else 'waker'}"

    if is_recorded:
        _show_recording(_checked_path(ctx, arguments, asked, shown), options, render, shown)
        return 0
    check_targets(asked, arguments, _EXAMPLE)
    return carry_out(Plan(replace(asked, mode="offcpu"), arguments, shown, options, render, next_command))


def _checked_path(ctx: click.Context, arguments: tuple[str, ...], asked: CaptureOptions, shown: Shown) -> Path:
    """The recording. Raises UsageError for options that do not go with one."""
    if len(arguments) > 1:
        raise UsageError("give one recording, or a command after --", "bpfprof offcpu -- python program.py")
    path, chosen = Path(arguments[0]), shown.format()
    for parameter in ctx.meta[_GIVEN]:
        name = parameter.name
        if getattr(parameter, "hidden", False):
            continue
        if name != "min_block_us" and name in CaptureOptions.__dataclass_fields__:
            names = parameter.opts if getattr(asked, name) else parameter.secondary_opts
            raise UsageError(f"{names[-1]} is for recording, and {path} has been recorded", "leave it out")
        if chosen not in (None, TABLE) and name in WAITS.takes & {"by", "limit"} - chosen.takes:
            raise UsageError(f"{parameter.opts[-1]} is for tables", "leave it out, or choose the format table")
    if chosen is None and (shown.format_name or shown.output):
        raise UsageError("a table is not a recording; choose another suffix or format")
    return path


def _show_recording(path: Path, options: ProfileOptions, render: Render, shown: Shown) -> None:
    from bpfprof.commands.report import check_not_replaced, check_whole, load_profile, tell_unread, write_report

    shown.check_open()
    chosen = shown.format() or WAITS
    check_not_spilled(chosen.name, shown.output)
    check_not_replaced(path, shown.output)
    profile = load_profile(path, options)
    write_report(render(profile, chosen), shown.output, shown.opens)
    tell_unread(profile, chosen)
    check_whole(profile)


def _rendered(profile: Profile, chosen: Format, look: RenderOptions, with_wakers: bool) -> str | bytes:
    chosen = WAITS if chosen is TABLE else chosen
    if chosen.name == "flamegraph":
        look = replace(look, title="Flame graph of waits" + " and who ended them" * with_wakers)
    if with_wakers and chosen is not WAITS:
        from bpfprof.query.waits.off_cpu import with_wakers as continued

        profile = continued(profile, look.waker_depth)
    return chosen.render(profile, look)
