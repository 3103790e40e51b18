"""`bpfprof compare`: which rank of a training is slowest, why, and how long the others wait for it, without root."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import click

from bpfprof.commands.help import LOOK, OUTPUT, Command, under
from bpfprof.commands.options import with_options
from bpfprof.commands.outputs import check_not_spilled, descriptor
from bpfprof.commands.report import check_not_replaced, load_profile, write_report
from bpfprof.commands.row_options import STEP_OPTIONS, waiting_option
from bpfprof.errors import RecordingError, UsageError
from bpfprof.known.patterns import PhasePattern
from bpfprof.profile.options import ProfileOptions
from bpfprof.query.steps.rank_differences import compare as compared
from bpfprof.query.steps.ranks import RankLoop, rank_loops
from bpfprof.query.steps.steps import StepsWanted
from bpfprof.render.labels import printable
from bpfprof.render.quality import file_quality
from bpfprof.render.ranks import render_compare_json, render_compare_table
from bpfprof.render.ranks_page import render_ranks_page

_MOST_QUALITY_LINES = 4
_FORMATS = {"table": render_compare_table, "html": render_ranks_page, "json": render_compare_json}
_EXAMPLES = (
    ("which rank is slowest, of recordings of each", "bpfprof compare rank0.bpfprof rank1.bpfprof"),
    ("the same of a launcher's processes in one recording", "bpfprof compare torchrun.bpfprof"),
    ("for a script: verdict, ranks with their steps, rows of what differs", "bpfprof compare *.bpfprof -f json"),
)
_OPTIONS = (
    *(under(LOOK, option) for option in STEP_OPTIONS[:2]),
    under(
        OUTPUT,
        click.option(
            *("-f", "--format", "format_name"),
            type=click.Choice(tuple(_FORMATS)),
            help="html: a page; JSON has each step of each rank; times are in seconds.  [default: table]",
        ),
    ),
    under(
        OUTPUT,
        click.option(
            *("-o", "--output"),
            type=Path,
            metavar="FILE",
            callback=lambda _ctx, _parameter, path: None if descriptor(path) == 1 else path,
            help="File to write, - for standard output; the suffix .json or .html gives the format.",
        ),
    ),
)


@click.command(cls=Command, heading=LOOK, examples=_EXAMPLES)
@click.argument("recordings", nargs=-1, type=Path, metavar="RECORDING...")
@with_options(_OPTIONS)
@waiting_option
def compare(
    recordings: tuple[Path, ...],
    step: re.Pattern[str] | None,
    phases: tuple[PhasePattern, ...],
    format_name: str | None,
    output: Path | None,
) -> None:
    """Compare the training loops of ranks: which is slowest, what it does more of, and how long the others wait for it.

    The ranks may be in one RECORDING or in several, which are best made at one time; their steps are numbered together
    by time.
    """
    if not recordings:
        raise UsageError("give recordings of the ranks", "bpfprof compare RANK0.bpfprof RANK1.bpfprof")
    by_suffix = output.suffix[1:] if output is not None else ""
    chosen = format_name or (by_suffix if by_suffix in _FORMATS else "table")
    check_not_spilled(chosen, output)
    for path in recordings:
        check_not_replaced(path, output)
    loops: list[RankLoop] = []
    notes: list[str] = []
    quality: list[str] = []
    complaints: list[str] = []
    for path in recordings:
        try:
            profile = load_profile(path, ProfileOptions(with_spans=True, with_samples=True))
        except RecordingError as error:
            complaints.append(str(error))
            continue
        found, unclear = rank_loops(profile, str(path), StepsWanted(step, phases))
        loops += found
        notes += [f"{path}: steps not counted of {each}" for each in unclear]
        notes += [f"{path} has no steps that could be counted"] * (not found)
        quality.append(file_quality(profile, "", str(path), chosen == "table"))
        if profile.quality.unfinished:
            complaints.append(f"{path} is not whole: {printable(profile.quality.unfinished)}")
    _check(loops, notes, complaints)
    loops.sort(key=lambda each: (each.rank is None, each.rank or 0))
    try:
        result = compared(loops)
    except ValueError as error:
        raise RecordingError(f"{error}: {'; '.join(notes)}", "--step FUNCTION says what a step is") from error
    write_report(_FORMATS[chosen](result, notes, _some(quality) if chosen == "table" else quality), output)
    if complaints:
        raise RecordingError("; ".join(complaints), "what could be read is compared")


def _check(loops: Sequence[RankLoop], notes: Sequence[str], complaints: Sequence[str]) -> None:
    """Raises RecordingError where there are no two loops."""
    if len(loops) < 2:
        why = "; ".join([*complaints, *notes])
        seen = "one training loop" if loops else "no training loop"
        raise RecordingError(
            f"{seen} was seen, and a comparison is of two or more" + (f": {why}" if why else ""),
            "record the launcher, or each rank; --step FUNCTION says what a step is",
        )


def _some(quality: Sequence[str]) -> list[str]:
    left_out = len(quality) - _MOST_QUALITY_LINES
    return [*quality[:_MOST_QUALITY_LINES], *[f"and {left_out:,} more recordings (-f json has all)"] * (left_out > 0)]
