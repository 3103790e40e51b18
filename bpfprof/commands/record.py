"""`bpfprof record`: watch programs for a while, write a recording or a report, show a summary."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bpfprof.capture.options import CaptureOptions
from bpfprof.commands.capture_options import check_targets, rate_option, record_options, with_pid
from bpfprof.commands.carrying_out import carry_out
from bpfprof.commands.filters import Wanted, filter_options, parsed
from bpfprof.commands.help import CAPTURE, LOOK, Command, under
from bpfprof.commands.options import Shown, output_options
from bpfprof.commands.plan import Plan
from bpfprof.commands.pushing import EVERY_S, check_pushing, push
from bpfprof.commands.row_options import by_option, steps_options, waiting_option, with_steps
from bpfprof.commands.terminal import for_terminal
from bpfprof.commands.values import Number, Whole
from bpfprof.errors import UsageError
from bpfprof.kernel.perf_events import parse_events
from bpfprof.query.tables.choices import STEP
from bpfprof.render.formats import SUMMARY, TABLE, Format, RenderOptions

if TYPE_CHECKING:
    from bpfprof.model.profile import Profile


_EXAMPLES = (
    ("a running program for 30 seconds, answer on the terminal", "sudo bpfprof record --pid 1234 -d 30"),
    ("a program from its start to its end, as a flame graph", "sudo bpfprof record -o out.svg -- python app.py"),
    ("the whole machine, containers included", "sudo bpfprof record --all -d 10"),
    ("a training loop: its steps, what they wait for", "sudo bpfprof record --pid 1234 -d 60 --by step"),
)


def _mode(_ctx: click.Context, _parameter: click.Parameter, mode: str) -> str:
    return "both" if mode == "wall" else mode


@click.command(cls=Command, heading=CAPTURE, examples=_EXAMPLES)
@rate_option()
@click.option(
    "--mode",
    metavar="MODE",
    type=click.Choice(["both", "wall", "cpu", "offcpu"]),
    callback=_mode,
    default="both",
    show_default=True,
    help="Time on a CPU (cpu), waits (offcpu), or both; wall is another word for both.",
)
@click.option(
    *("-e", "--event", "events"),
    metavar="NAME[,NAME]",
    multiple=True,
    callback=parsed(parse_events, ()),
    help="Count this too, by function: cycles, instructions, cache-misses, page-faults, context-switches ...",
)
@click.option(
    *("-c", "--count", "event_period"),
    metavar="N",
    type=Whole(0, 1 << 40),
    default=0,
    help="A sample each N events of --event; 1: each.  [default: so that there are about 1,000 a second]",
)
@click.option(
    "--cuda",
    "counts_calls",
    is_flag=True,
    help="Count calls of CUDA, NCCL and HIP: their times and bytes. Each takes about 2 us longer.",
)
@click.option(
    "--push",
    "push_url",
    metavar="URL",
    help="Leave no file, but send a profile each --every seconds until the end: OTLP, or pprof to Pyroscope's /ingest.",
)
@click.option(
    "--every",
    "every_s",
    metavar="SECONDS",
    type=Number("seconds", 1, 3600),
    help="Of --push.  [default: 60]",
)
@record_options
@under(LOOK, by_option)
@steps_options
@waiting_option
@filter_options
@output_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[PID | -- COMMAND...]")
def record(
    asked: CaptureOptions,
    shown: Shown,
    look: RenderOptions,
    wanted: Wanted,
    command: tuple[str, ...],
    push_url: str | None,
    every_s: float | None,
) -> int:
    """Record where the wall time of running programs goes (--pid or PID), or of a COMMAND given after --.

    Without -o it leaves a recording, of which report makes every other format, and says what bounds the program.
    What is chosen under "Which part is shown" is of what is shown or written in another format: a recording has all.
    """
    asked, command = with_pid(asked, command)
    check_targets(asked, command, "bpfprof record --pid 1234 -d 10")
    if asked.counts_calls and (push_url is not None or not (asked.native or asked.native_lines)):
        other = "--no-native" if push_url is None else "--push"
        raise UsageError(f"--cuda is not for {other}", "leave one of them out")
    if push_url is not None:
        check_pushing(asked, command, shown)
        return push(asked, push_url, every_s or EVERY_S)
    if every_s is not None:
        raise UsageError("--every is for --push", "give a --push URL, or leave it out")
    chosen = shown.format()
    look = with_steps(look)
    if chosen is not None and look.by != RenderOptions().by and "by" not in chosen.takes:
        raise UsageError(f"--by is for a table, not for {chosen.name}", "leave out --format, or choose table or json")
    is_table = look.details or look.by != RenderOptions().by or (chosen is TABLE and shown.output is None)
    options = replace(
        shown.profile_options(wanted.filter(), with_spans=True),
        with_samples=look.by == STEP,
        with_concurrency=look.details or (chosen or SUMMARY).with_concurrency,
    )
    look = replace(look, hide_idle=wanted.idle is False, with_idle=bool(wanted.idle))

    def render(profile: Profile, chosen: Format | None) -> str | bytes:
        if chosen is None and not is_table:
            # Below it are three more lines.
            return SUMMARY.render(profile, for_terminal(look, sys.stderr if command else sys.stdout, used_rows=3))
        return (chosen or TABLE).render(profile, look)

    def next_command(path: Path) -> str:
        return f"bpfprof report {path} -o report.html"

    return carry_out(Plan(asked, command, shown, options, render, next_command))
