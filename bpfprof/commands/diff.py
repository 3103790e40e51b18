"""`bpfprof diff`: what takes more or less time in one recording than in another, without root."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import field, replace
from pathlib import Path

import click

from bpfprof.commands.filters import Wanted, filter_options
from bpfprof.commands.help import COMPARE, LOOK, OUTPUT, Command, under
from bpfprof.commands.options import gathered, with_options
from bpfprof.commands.outputs import check_not_spilled, descriptor, shows_utf8
from bpfprof.commands.report import check_not_replaced, load_profile, write_report
from bpfprof.commands.row_options import STEP_OPTIONS, waiting_option
from bpfprof.commands.values import ROWS, Number
from bpfprof.dataclass import dataclass
from bpfprof.errors import RecordingError, RegressionError, UsageError
from bpfprof.model.profile import Profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.query.compare.diff_tree import SideTree, both_sides
from bpfprof.query.compare.differences import Differences, differences
from bpfprof.query.compare.slices import GROUPINGS, Slices, sliced
from bpfprof.query.steps.differences import STEP_ROW, step_changes
from bpfprof.query.steps.steps import Steps, StepsWanted, find_steps
from bpfprof.query.tables.choices import MERGES, STEP
from bpfprof.render.diff_steps import render_step_json, render_step_table
from bpfprof.render.diff_table import DiffLook, render_diff_json, render_diff_table
from bpfprof.render.formats import find_format, format_for_suffix
from bpfprof.render.labels import printable
from bpfprof.render.quality import file_quality

_MOST_QUALITY_LINES = 4


_PICTURES = ("flamegraph", "html")


@dataclass
class _Side:
    """What the recordings of one side hold, and what is wrong with some. tree: for a picture."""

    tree: SideTree | None = None
    slices: list[Slices] = field(default_factory=list)
    steps: list[Steps] = field(default_factory=list)
    quality: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    modes: set[str] = field(default_factory=set)

    def add(self, name: str, path: Path, options: ProfileOptions, look: DiffLook, as_table: bool) -> None:
        """Reads one more; what cannot be read is a complaint. as_table: its quality is in short."""
        try:
            profile = load_profile(path, options, may_be_empty=True)
        except RecordingError as error:
            self.complaints.append(str(error))
            return
        if look.by == STEP:
            self._add_steps(path, profile, look)
        else:
            self.slices.append(sliced(profile, look.by, look.merge))
        if self.tree is not None:
            self.tree.add(profile, look.by)
        self.modes.add(profile.info.mode)
        self.quality.append(file_quality(profile, f"{name} ", str(path), as_table))
        if profile.quality.unfinished:
            self.complaints.append(f"{path} is not whole: {printable(profile.quality.unfinished)}")

    def _add_steps(self, path: Path, profile: Profile, look: DiffLook) -> None:
        """Those of the process that has most time in them."""
        found = [each for each in find_steps(profile, StepsWanted(look.step, look.phases)) if len(each)]
        self.steps += found[:1]
        if not found:
            self.complaints.append(f"{path} has no steps that could be counted")


def _side(name: str, paths: Sequence[Path], options: ProfileOptions, look: DiffLook, chosen: str) -> _Side:
    """chosen: the format. Raises RecordingError if none can be read."""
    side = _Side(SideTree() if chosen in _PICTURES else None)
    for path in paths:
        side.add(name, path, options, look, chosen == "table")
    if not side.slices and not side.steps:
        raise RecordingError("; ".join(side.complaints))
    return side


_EXAMPLES = (
    ("what got slower or faster", "bpfprof diff a.bpfprof b.bpfprof"),
    (
        "several recordings a side, which tell smaller differences",
        "bpfprof diff --before a1 --before a2 --after b1 --after b2",
    ),
    ("a flame graph, red for more and blue for less", "bpfprof diff a.bpfprof b.bpfprof -o diff.svg"),
    (
        "for CI: exit code 6 where a function got slower by 10%",
        "bpfprof diff before.bpfprof after.bpfprof --fail-over 10",
    ),
)
_FORMATS = ("table", "json", "flamegraph", "svg", "html")
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
        click.option(
            *("-f", "--format", "format_name"),
            type=click.Choice(_FORMATS),
            help="A picture is of functions or lines.  [default: table]",
        ),
    ),
    under(
        OUTPUT,
        click.option(
            *("-o", "--output"),
            type=Path,
            metavar="FILE",
            callback=lambda _ctx, _parameter, path: None if descriptor(path) == 1 else path,
            help="File to write, - for standard output; its suffix .json, .svg or .html gives the format.",
        ),
    ),
    under(OUTPUT, click.option("--open", "opens", is_flag=True, help="Open the picture in a browser.")),
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
            "--by",
            type=click.Choice((*GROUPINGS, STEP)),
            default="function",
            show_default=True,
            help="What is compared; step: mean times of the steps of a training loop.",
        ),
        *STEP_OPTIONS[:2],
        click.option("-n", "--limit", metavar="N", type=ROWS, default=10, show_default=True, help="Rows shown."),
        click.option(
            "--merge",
            type=click.Choice(MERGES),
            default="none",
            help="With --by thread: those of a role or process as one.",
        ),
        click.option("--full-filenames", is_flag=True, help="Whole paths instead of from where files are imported."),
    ),
)
@waiting_option
@filter_options
def diff(
    recordings: tuple[Path, ...],
    before: tuple[Path, ...],
    after: tuple[Path, ...],
    per_run: bool,
    fail_over: float | None,
    format_name: str | None,
    output: Path | None,
    opens: bool,
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
    look = _with_steps(look)
    chosen = _format(format_name, output, opens, look)
    check_not_spilled(chosen, output)
    by_step = look.by == STEP
    options = ProfileOptions(
        with_spans=True, with_samples=by_step, adds_up=not by_step, with_pieces=not by_step, filter=wanted.filter()
    )
    sides = [_side(name, side, options, look, chosen) for name, side in zip(("before", "after"), paths)]
    if len(sides[0].modes | sides[1].modes) > 1:
        raise UsageError("the recordings have different modes", "compare those of the same `record --mode`")
    quality = [*sides[0].quality, *sides[1].quality]
    complaints = [*sides[0].complaints, *sides[1].complaints]
    if look.by == STEP:
        _diff_steps((sides[0].steps, sides[1].steps), quality, chosen == "json", output, fail_over)
        _complain(complaints)
        return
    found = differences(sides[0].slices, sides[1].slices, per_run)
    if chosen in _PICTURES:
        content = _picture(chosen, found, sides, look, _title(paths, wanted), quality)
    else:
        content = _rendered(found, look, quality, chosen == "json", output is None)
    write_report(content, output, opens)
    _complain(complaints)
    if fail_over is not None:
        _fail_over(found, fail_over)


def _complain(complaints: Sequence[str]) -> None:
    """Raises RecordingError if there are any."""
    if complaints:
        raise RecordingError("; ".join(complaints), "what could be read is compared")


def _diff_steps(
    sides: tuple[list[Steps], list[Steps]],
    quality: Sequence[str],
    as_json: bool,
    output: Path | None,
    fail_over: float | None,
) -> None:
    """Raises RegressionError if a step takes longer by more than `fail_over` percent, beyond twice its error."""
    changes = step_changes(*sides)
    write_report((render_step_json if as_json else render_step_table)(changes, sides, quality), output)
    step = changes[STEP_ROW]
    percent = step.percent(step.difference)
    if fail_over is not None and step.difference > 2 * step.error and percent > fail_over:
        raise RegressionError(f"a step takes longer by {percent:.1f}%, more than {fail_over:g}%")


def _with_steps(look: DiffLook) -> DiffLook:
    """Raises UsageError where options of steps are given for something else."""
    if not (look.step or look.phases) or look.by == STEP:
        return look
    if look.by != DiffLook().by:
        raise UsageError(f"--step and --phase are for steps, not for --by {look.by}", "--by step")
    return replace(look, by=STEP)


def _format(name: str | None, output: Path | None, opens: bool, look: DiffLook) -> str:
    """Raises UsageError for a picture of what has none, and where there is none to open."""
    of_suffix = format_for_suffix(output) if output is not None and name is None else None
    asked = find_format(name) if name else of_suffix
    chosen = asked.name if asked and asked.name in _FORMATS else "table"
    if chosen in _PICTURES and look.by not in ("function", "line"):
        raise UsageError(f"a flame graph is of functions, not by {look.by}", "leave out --by, or choose --by line")
    if opens and (chosen not in _PICTURES or output is None):
        raise UsageError("--open is for a picture in a file", "-o FILE.html gives a page, -o FILE.svg a flame graph")
    return chosen


def _title(paths: Sequence[Sequence[Path]], wanted: Wanted) -> str:
    sides = [f"{side[0].name}{f' and {len(side) - 1} more' * (len(side) > 1)}" for side in paths]
    return printable(" → ".join(sides))


def _picture(
    chosen: str, found: Differences, sides: Sequence[_Side], look: DiffLook, title: str, quality: Sequence[str]
) -> str:
    trees = [side.tree for side in sides]
    assert trees[0] is not None and trees[1] is not None
    both = both_sides(trees[0], trees[1], found.is_per_run)
    if chosen == "html":
        from bpfprof.render.diff_page import render_diff_page

        return render_diff_page(both, found, look, title, quality)
    from bpfprof.render.diff_picture import render_signed_graph

    return render_signed_graph(both, found, look, title, [printable(line) for line in quality])


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
    """Raises RegressionError for what got slower by more, beyond twice its error: rows marked * or +."""
    slower = [(row, change) for row, change in found.tested if change.is_slower(percent)]
    if slower:
        row, change = max(slower, key=lambda each: each[1].difference)
        name = printable(row.key[0] or row.key[1])
        by = f"by {change.percent(change.difference):.1f}%" if change.before else "from nothing"
        raise RegressionError(f"{len(slower)} slower by more than {percent:g}%, most of all {name} {by}")
