"""`bpfprof record`: watch programs for a while, write a recording or a report, show a summary."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bpfprof.capture.options import CaptureOptions
from bpfprof.commands.capture_options import capture_options, check_targets, with_pid
from bpfprof.commands.filters import parsed
from bpfprof.commands.options import RATE, Shown, gil_option, output_options
from bpfprof.commands.recording import Plan, make_recording
from bpfprof.commands.starting import Started
from bpfprof.commands.terminal import for_terminal
from bpfprof.kernel.perf_events import parse_events
from bpfprof.profile.options import SpanFilter
from bpfprof.render.formats import SUMMARY, TABLE, Format, RenderOptions

if TYPE_CHECKING:
    from bpfprof.model.profile import Profile


@click.command()
@capture_options
@click.option("-r", "--rate", "rate_hz", type=RATE, default=99, show_default=True, help="Samples a second.")
@click.option("--mode", type=click.Choice(["both", "cpu", "offcpu"]), default="both", show_default=True)
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
    type=click.IntRange(0, 1 << 40),
    default=0,
    help="A sample each N events of --event; 1: each.  [default: so that there are about 1,000 a second]",
)
@gil_option
@output_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def record(
    started: Started | None,
    asked: CaptureOptions,
    shown: Shown,
    look: RenderOptions,
    holds_gil: bool,
    command: tuple[str, ...],
) -> int:
    """Record where the wall time of running programs goes (--pid or PID), or of a COMMAND given after --."""
    asked, command = with_pid(asked, command)
    check_targets(asked, command, "bpfprof record --pid 1234 -d 10")
    chosen = shown.format()
    is_table = look.details or (chosen is TABLE and shown.output is None)
    options = shown.profile_options(SpanFilter(holds_gil=holds_gil), with_spans=True)

    def render(profile: Profile, chosen: Format | None) -> str | bytes:
        if chosen is None and not is_table:
            # Below it are three more lines.
            return SUMMARY.render(profile, for_terminal(look, sys.stderr if command else sys.stdout, used_rows=3))
        return (chosen or TABLE).render(profile, look)

    def next_command(path: Path) -> str:
        graph = path.with_suffix(".flame.svg" if path.suffix == ".svg" else ".svg")
        return f"bpfprof report {path} -f flamegraph -o {graph}"

    return make_recording(started, Plan(asked, command, shown, options, render, next_command))
