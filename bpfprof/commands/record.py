"""`bpfprof record`: watch programs for a while, write a recording or a report, show a summary."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bpfprof.commands.capture_options import Asked, capture_options
from bpfprof.commands.options import RATE, Shown, gil_option, output_options
from bpfprof.commands.outputs import show
from bpfprof.commands.recording import Plan, make_recording
from bpfprof.commands.starting import Started
from bpfprof.errors import UsageError
from bpfprof.kernel.attach import PERF_EVENTS
from bpfprof.profile.options import SpanFilter
from bpfprof.render.formats import TABLE, Format, RenderOptions

if TYPE_CHECKING:
    from bpfprof.model.profile import Profile


@click.command()
@capture_options
@click.option("-r", "--rate", type=RATE, default=99, show_default=True, help="Samples a second.")
@click.option("--mode", type=click.Choice(["both", "cpu", "offcpu"]), default="both", show_default=True)
@click.option("-e", "--event", type=click.Choice(list(PERF_EVENTS)), default="cpu-clock", show_default=True)
@gil_option
@output_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def record(
    started: Started | None,
    asked: Asked,
    shown: Shown,
    rate: int,
    mode: str,
    event: str,
    gil_only: bool,
    command: tuple[str, ...],
) -> None:
    """Record where the wall time of running programs goes (--pid), or of a COMMAND given after --."""
    chosen = shown.format()
    asked.check_targets(command, "bpfprof record --pid 1234 -d 10")
    if chosen is TABLE and shown.output is None:
        chosen = None  # it is shown in any case
    if chosen is not None and shown.output is None:
        raise UsageError(f"the format {chosen.name} needs a file: --output FILE")
    write = functools.partial(chosen.render, options=shown.look()) if chosen else None
    with_spans = chosen is not None and chosen.needs_spans
    options = shown.profile_options(SpanFilter(holds_gil=gil_only), with_spans)
    recorded = make_recording(started, Plan(asked.options(mode, rate, event), command, shown.output, options, write))
    _show_summary(recorded.profile, recorded.path, chosen, shown.look())
    if recorded.failure is not None:
        raise recorded.failure


def _show_summary(profile: Profile, path: Path, chosen: Format | None, look: RenderOptions) -> None:
    content = TABLE.render(profile, look)
    show(content)
    if chosen is None:
        graph = path.with_suffix(".flame.svg" if path.suffix == ".svg" else ".svg")
        click.echo(f"\nrecording: {path}\nnext: bpfprof report {path} -f flamegraph -o {graph}")
    else:
        click.echo(f"\n{chosen.name}: {path}\nnext: {next_step(chosen, path)}")


def next_step(chosen: Format, path: Path) -> str:
    """A command or a place for a file in this format."""
    if chosen.name == "flamegraph":
        return f"open {path} in a browser"
    if chosen.name == "speedscope":
        return f"open {path} at https://www.speedscope.app, or with: npx speedscope {path}"
    return f"less {path}"
