"""What rows of a table are of, and what steps are: the same in every command that shows them."""

from __future__ import annotations

import re
from dataclasses import replace

import click

from bpfprof.commands.filters import parsed
from bpfprof.commands.help import LOOK, under
from bpfprof.commands.options import with_options
from bpfprof.commands.values import Whole
from bpfprof.errors import UsageError
from bpfprof.known.patterns import parse_phase
from bpfprof.query.tables.choices import CALL, ROW_GROUPINGS, STEP
from bpfprof.render.formats import RenderOptions

by_option = click.option(
    "--by",
    type=click.Choice((*ROW_GROUPINGS, STEP, CALL)),
    callback=lambda _ctx, _parameter, by: by or RenderOptions().by,
    help="A table of time by these, of the steps of a training loop, or of calls that --cuda counted; in a report with "
    "-f json or csv such rows.",
)
STEP_OPTIONS = (
    click.option(
        "--step",
        metavar="FUNCTION",
        callback=parsed(re.compile, None),
        help="Steps are the calls of a function with this (a regular expression) in its name.  [default: found]",
    ),
    click.option(
        *("--phase", "phases"),
        multiple=True,
        metavar="NAME=REGEX",
        callback=parsed(lambda texts: tuple(map(parse_phase, texts)), ()),
        help="What has this in `FUNCTION (FILE)` is this phase of a step (data wait, forward ...); may be repeated.",
    ),
    click.option(
        "--batch",
        metavar="N",
        type=Whole(1, 1 << 40),
        callback=lambda _ctx, _parameter, batch: batch or 0,
        help="Samples of a step, to tell those of a second.",
    ),
)


steps_options = with_options([under(LOOK, option) for option in STEP_OPTIONS])


def with_steps(look: RenderOptions) -> RenderOptions:
    """The same by step where an option is of steps. Raises UsageError where it is by something else."""
    if not (look.step or look.phases or look.batch):
        return look
    if look.by not in (STEP, RenderOptions().by):
        raise UsageError(f"--step, --phase and --batch are for steps, not for --by {look.by}", "--by step")
    return replace(look, by=STEP)
