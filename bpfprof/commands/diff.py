"""`bpfprof diff`: what takes more or less time in one recording than in another, without root."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from bpfprof.commands.filters import Wanted, filter_options
from bpfprof.commands.report import check_not_replaced, check_whole, load_profile, write_report
from bpfprof.errors import RegressionError
from bpfprof.profile.options import ProfileOptions
from bpfprof.query.differences import GROUPINGS, Comparison, compare
from bpfprof.render.difference import render_difference, render_difference_json


@click.command()
@click.argument("before", type=Path)
@click.argument("after", type=Path)
@click.option("--before", "more_before", type=Path, multiple=True, help="Another recording of before; may be repeated.")
@click.option("--after", "more_after", type=Path, multiple=True, help="Another one of after; may be repeated.")
@click.option("--by", type=click.Choice(GROUPINGS), default=GROUPINGS[0], show_default=True, help="Groups of time.")
@click.option("--per-run", is_flag=True, help="Compare whole runs, not the same wall time: of programs that end.")
@click.option(
    "--fail-over",
    metavar="PERCENT",
    type=click.FloatRange(0),
    help="Exit with 6 if a group takes more time by so much, and by more than twice the error.",
)
@click.option("-n", "--limit", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Rows of the table.")
@click.option(
    "-f", "--format", "format_name", type=click.Choice(["table", "json"]), default="table", help="Of the text."
)
@click.option("-o", "--output", type=Path, help="File to write.")
@click.option("--full-filenames", is_flag=True, help="Whole paths instead of the shortest unambiguous tail.")
@filter_options
def diff(
    before: Path,
    after: Path,
    more_before: Sequence[Path],
    more_after: Sequence[Path],
    by: str,
    per_run: bool,
    fail_over: float | None,
    limit: int,
    format_name: str,
    output: Path | None,
    full_filenames: bool,
    wanted: Wanted,
) -> None:
    """What takes more or less time in the recording AFTER than in BEFORE, with standard errors.

    Time is a function's own: on a CPU, ready for one, and in waits of threads that have something to do. It is that of
    the same wall time, or of a whole run (--per-run). With several recordings a side their own differences count, too.
    """
    sides = (before, *more_before), (after, *more_after)
    options = ProfileOptions(with_spans=True, filter=wanted.filter())
    for path in (*sides[0], *sides[1]):
        check_not_replaced(path, output)
    profiles = [[load_profile(path, options) for path in side] for side in sides]
    found = compare(profiles[0], profiles[1], by, per_run)
    names = _names(sides[0]), _names(sides[1])
    if format_name == "json":
        write_report(render_difference_json(found, by, names), output)
    else:
        write_report(render_difference(found, by, limit, names, full_filenames), output)
    for profile in (*profiles[0], *profiles[1]):
        check_whole(profile)
    if fail_over is not None:
        _fail_over(found, fail_over)


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(str(path) for path in paths)


def _fail_over(found: Comparison, percent: float) -> None:
    """Raises RegressionError for what got slower by more, beyond twice its error."""
    slower = [row for row in found.differences if row.difference_s > 2 * row.error_s and row.change * 100 > percent]
    if slower:
        raise RegressionError(f"{len(slower)} of {len(found.differences)} take more than {percent:g}% more time")
