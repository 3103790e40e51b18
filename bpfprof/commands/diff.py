"""`bpfprof diff`: what takes more or less time in one recording than in another, without root."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import click

from bpfprof.commands.filters import Wanted, filter_options
from bpfprof.commands.help import COMPARE, LOOK, OUTPUT, Command, under
from bpfprof.commands.options import gathered, with_options
from bpfprof.commands.outputs import descriptor, shows_utf8
from bpfprof.commands.report import check_not_replaced, load_profile, write_report
from bpfprof.commands.values import ROWS, Number
from bpfprof.errors import RecordingError, RegressionError, UsageError
from bpfprof.profile.options import ProfileOptions
from bpfprof.query.differences import Differences, differences
from bpfprof.query.merging import MERGES
from bpfprof.query.slices import GROUPINGS, Slices, sliced
from bpfprof.render.diff_table import DiffLook, render_diff_json, render_diff_table
from bpfprof.render.labels import printable
from bpfprof.render.quality import quality_line

_MOST_QUALITY_LINES = 4


@dataclass
class _Side:
    """What the recordings of one side hold, and what is wrong with some."""

    slices: list[Slices] = field(default_factory=list)
    quality: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    modes: set[str] = field(default_factory=set)

    def add(self, name: str, path: Path, options: ProfileOptions, look: DiffLook) -> None:
        """Reads one more; what cannot be read is a complaint."""
        try:
            profile = load_profile(path, options)
        except RecordingError as error:
            self.complaints.append(str(error))
            return
        self.slices.append(sliced(profile, look.by, look.merge))
        self.modes.add(profile.info.mode)
        self.quality.append(f"{name} {path}: {quality_line(profile)}")
        if profile.quality.unfinished:
            self.complaints.append(f"{path} is not whole: {printable(profile.quality.unfinished)}")


def _side(name: str, paths: Sequence[Path], options: ProfileOptions, look: DiffLook) -> _Side:
    """Raises RecordingError if none can be read."""
    side = _Side()
    for path in paths:
        side.add(name, path, options, look)
    if not side.slices:
        raise RecordingError("; ".join(side.complaints))
    return side


_EXAMPLES = (
    ("what got slower or faster", "bpfprof diff a.bpfprof b.bpfprof"),
    (
        "several recordings a side, which tell smaller differences",
        "bpfprof diff --before a1 --before a2 --after b1 --after b2",
    ),
    (
        "for CI: exit code 6 where a function got slower by 10%",
        "bpfprof diff before.bpfprof after.bpfprof --fail-over 10",
    ),
)
_OPTIONS = (
    under(COMPARE, click.option("--before", type=Path, multiple=True, metavar="FILE", help="One more of before.")),
    under(COMPARE, click.option("--after", type=Path, multiple=True, metavar="FILE", help="One more of after.")),
    under(
        COMPARE,
        click.option(
            "--per-run", is_flag=True, help="Time of a run, not for each second: of programs that do the same work."
        ),
    ),
    under(
        OUTPUT,
        click.option("-f", "--format", "format_name", type=click.Choice(["table", "json"]), help="[default: table]"),
    ),
    under(
        OUTPUT,
        click.option(
            *("-o", "--output"),
            type=Path,
            metavar="FILE",
            callback=lambda _ctx, _parameter, path: None if descriptor(path) == 1 else path,
            help="File to write, - for standard output; its suffix .json gives the format.",
        ),
    ),
    under(
        OUTPUT,
        click.option(
            "--fail-over",
            metavar="PERCENT",
            type=Number("percent", 0),
            help="Exit with 6 if one got slower by more, beyond twice its error.",
        ),
    ),
)


@click.command(cls=Command, heading=LOOK, examples=_EXAMPLES)
@click.argument("recordings", nargs=-1, type=Path, metavar="BEFORE AFTER")
@with_options(_OPTIONS)
@click.option("-F", "--function-names", is_flag=True, hidden=True, expose_value=False)  # it has them unless --by line
@gathered(
    "look",
    DiffLook,
    (
        click.option(
            "--by", type=click.Choice(GROUPINGS), default="function", show_default=True, help="What is compared."
        ),
        click.option("-n", "--limit", metavar="N", type=ROWS, default=10, show_default=True, help="Rows shown."),
        click.option(
            "--merge",
            type=click.Choice(MERGES),
            default="none",
            help="With --by thread: those of a role or process as one.",
        ),
        click.option("--full-filenames", is_flag=True, help="Whole paths instead of the shortest unambiguous tail."),
    ),
)
@filter_options
def diff(
    recordings: tuple[Path, ...],
    before: tuple[Path, ...],
    after: tuple[Path, ...],
    per_run: bool,
    fail_over: float | None,
    format_name: str | None,
    output: Path | None,
    look: DiffLook,
    wanted: Wanted,
) -> None:
    """Show what takes more or less time in the recording AFTER than in BEFORE, and what of it is beyond noise.

    Either side may be several recordings of the same thing, which tells differences apart that one cannot.
    """
    if len(recordings) not in (0, 2):
        raise UsageError("give two recordings", "bpfprof diff BEFORE AFTER; more with --before FILE and --after FILE")
    paths = (*recordings[:1], *before), (*recordings[1:], *after)
    if not all(paths):
        raise UsageError("give recordings of both sides", "bpfprof diff BEFORE AFTER")
    for path in (*paths[0], *paths[1]):
        check_not_replaced(path, output)
    options = ProfileOptions(with_spans=True, filter=wanted.filter())
    sides = [_side(name, side, options, look) for name, side in zip(("before", "after"), paths)]
    if len(sides[0].modes | sides[1].modes) > 1:
        raise UsageError("the recordings have different modes", "compare those of the same `record --mode`")
    found = differences(sides[0].slices, sides[1].slices, per_run)
    quality = [*sides[0].quality, *sides[1].quality]
    as_json = format_name == "json" or (format_name is None and output is not None and output.suffix == ".json")
    write_report(_rendered(found, look, quality, as_json, output is None), output)
    complaints = [*sides[0].complaints, *sides[1].complaints]
    if complaints:
        raise RecordingError("; ".join(complaints), "what could be read is compared")
    if fail_over is not None:
        _fail_over(found, fail_over)


def _rendered(found: Differences, look: DiffLook, quality: Sequence[str], as_json: bool, is_shown: bool) -> str:
    if as_json:
        return render_diff_json(found, look, quality)
    is_terminal = is_shown and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    is_coloured = is_terminal and not os.environ.get("NO_COLOR")
    look = replace(look, is_coloured=is_coloured, ascii_only=is_shown and not shows_utf8())
    more = len(quality) - _MOST_QUALITY_LINES
    shown = [*quality[:_MOST_QUALITY_LINES], *[f"and {more:,} more recordings (-f json has all)"] * (more > 0)]
    return render_diff_table(found, look, shown)


def _fail_over(found: Differences, percent: float) -> None:
    """Raises RegressionError for what got slower by more, beyond twice its error."""
    slower = [(row, change) for row, change in found.tested if change.is_slower(percent)]
    if slower:
        row, change = max(slower, key=lambda each: each[1].difference)
        name = printable(row.key[0] or row.key[1])
        by = f"by {change.percent(change.difference):.1f}%" if change.before else "from nothing"
        raise RegressionError(f"{len(slower)} slower by more than {percent:g}%, most of all {name} {by}")
