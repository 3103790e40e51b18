"""What rows of a table are of, what steps are, and what is known to wait: the same in every command that shows them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import click

from bpfprof.commands.filters import parsed
from bpfprof.commands.help import LOOK, under
from bpfprof.commands.options import with_options
from bpfprof.commands.values import Whole
from bpfprof.errors import UsageError
from bpfprof.known.patterns import parse_phase
from bpfprof.known.waiting import add_waiting, parse_waiting
from bpfprof.proc.caller import caller_ids, files_as
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


def _know(_ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    try:
        with files_as(caller_ids()):
            text = path.read_text(encoding="utf-8")
        add_waiting(parse_waiting(text))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path}: {error}", "bpfprof/known/waiting.txt shows how lines are written") from error


waiting_option = under(
    LOOK,
    click.option(
        "--waiting",
        metavar="FILE",
        type=Path,
        expose_value=False,
        callback=_know,
        help="Functions that wait or drive a device, and pools, besides those known: lines as in waiting.txt.",
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
