"""`bpfprof report`: a recording as text or picture, without root and without the kernel."""

from __future__ import annotations

import difflib
import sys
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import click

from bpfprof.commands.filters import Wanted, filter_options, parsed
from bpfprof.commands.help import LOOK, Command
from bpfprof.commands.opening import open_picture
from bpfprof.commands.options import Shown, merge_option, output_options
from bpfprof.commands.outputs import check_not_spilled, show, tell, write_output
from bpfprof.commands.recording_file import open_recording, unreadable
from bpfprof.commands.row_options import by_option, steps_options, waiting_option, with_steps
from bpfprof.commands.terminal import for_terminal
from bpfprof.commands.values import MICROSECONDS, ROWS
from bpfprof.errors import RecordingError, UsageError
from bpfprof.kernel.perf_events import parse_events
from bpfprof.known.patterns import parse_group
from bpfprof.model.profile import Profile
from bpfprof.proc.caller import caller_ids
from bpfprof.profile.build import build_profile
from bpfprof.profile.filters import find_nothing, other_functions
from bpfprof.profile.options import ProfileOptions, SpanFilter
from bpfprof.query.code.folded_names import folded_name, role_name
from bpfprof.query.tables.choices import CALL, SORTS, STEP
from bpfprof.recording.contents import Recording
from bpfprof.recording.reader import read_recording
from bpfprof.render.columns import duration_text, shortened
from bpfprof.render.formats import CSV, JSON, SUMMARY, TABLE, WAITS, Format, RenderOptions
from bpfprof.render.header import counted, unread_sentences
from bpfprof.render.labels import printable, process_label, thread_label
from bpfprof.render.quality import loss_text

_TOLERANCE = 0.01
_COMPARED = 5_000  # functions with one that nothing has
_NAMES, _NAMES_COLUMNS = 8, 400  # of what there is, numbered ones as one


_EXAMPLES = (
    ("what bounds the program, and where", "bpfprof report FILE.bpfprof"),
    ("a flame graph of one part", "bpfprof report FILE.bpfprof --time 2s..5s --thread loader -o out.svg"),
    ("time by function, for a script", "bpfprof report FILE.bpfprof --by function -f json"),
    ("steps of a training loop and their phases", "bpfprof report FILE.bpfprof --by step --batch 64"),
)


@click.command(cls=Command, heading=LOOK, examples=_EXAMPLES)
@click.argument("recording", type=Path)
@click.option(
    "--check",
    is_flag=True,
    help="Exit with 5 unless every thread's time adds up to its wall time within 1%, and the kernel told every switch.",
)
@click.option(
    "--min-block",
    metavar="US",
    type=MICROSECONDS,
    default=0,
    help="Only waits of so many microseconds or more.",
)
@click.option(
    *("-e", "--event"),
    metavar="NAME",
    default="",
    callback=parsed(lambda text: "".join(parse_events((text,))[:1])),
    help="Weights in these events, which the recording counted, instead of time; with -f collapsed.",
)
@by_option
@steps_options
@click.option(
    *("--group", "operators"),
    multiple=True,
    metavar="NAME=REGEX",
    callback=parsed(lambda texts: tuple(map(parse_group, texts)), ()),
    help="With --by operator: what has this in `FUNCTION (FILE)` is the operator NAME; may be repeated.",
)
@waiting_option
@click.option("--sort", type=click.Choice(SORTS), default="own", help="Order of such rows.  [default: own]")
@merge_option
@click.option(
    *("-n", "--limit"),
    metavar="N",
    type=ROWS,
    callback=lambda _ctx, _parameter, limit: limit or 0,
    help="Rows of a table, or calls in a tree.  [default: 10, of a tree all of 1% or more]",
)
@filter_options
@output_options
def report(recording: Path, shown: Shown, look: RenderOptions, wanted: Wanted, min_block: int, check: bool) -> None:
    """Render a RECORDING: to the terminal as a table, or with -o or -f as something else."""
    shown = shown.on_terminal()
    chosen = shown.format()
    shown.check_open()
    if chosen is not None:
        check_not_spilled(chosen.name, shown.output)
    if chosen is None and (shown.format_name or shown.output):
        raise UsageError("a report is not a recording; choose another suffix or format")
    check_not_replaced(recording, shown.output)
    look = with_steps(look)
    chosen = chosen or (TABLE if look.details or check or look.by != "stack" else SUMMARY)
    wanted_spans = wanted.filter(min_block, takes=chosen.takes)
    check_look(look, chosen)
    with_spans = chosen.needs_spans or look.by != "stack" or bool(look.merge)
    adds_up = (chosen.adds_up or not chosen.needs_spans) and look.by != STEP
    options = shown.profile_options(wanted_spans, with_spans)
    options = replace(
        options,
        adds_up=adds_up,
        with_concurrency=chosen.with_concurrency and (chosen is not TABLE or look.details or look.by == "stack"),
        with_pieces=chosen.with_pieces,
        piece_parts=chosen.piece_parts,
        has_whole_waits=chosen.has_whole_waits,
        with_samples=look.by == STEP,
    )
    profile = load_profile(recording, options)
    if look.event and look.event not in profile.events:
        counted = ", ".join(map(printable, profile.events)) or "none"
        raise UsageError(f"the recording did not count {look.event}", f"record --event does; here it is {counted}")
    look = replace(look, hide_idle=wanted.idle is False, with_idle=bool(wanted.idle))
    look = for_terminal(look, sys.stdout) if "columns" in chosen.takes and shown.output is None else look
    write_report(chosen.render(profile, look), shown.output, shown.opens)
    tell_unread(profile, chosen)
    complaint = check_accounting(profile) if check else ""
    if complaint and profile.quality.unfinished:
        tell(f"bpfprof: {complaint}")
    check_whole(profile)
    if complaint:
        raise RecordingError(complaint)
    if check:
        click.echo("every thread within 1%", err=True)


def check_look(look: RenderOptions, chosen: Format) -> None:
    """Raises UsageError for options that mean nothing to the format."""
    if look.by != "stack" and chosen not in (TABLE, JSON, CSV):
        raise UsageError(f"--by is for a table, not for {chosen.name}", "bpfprof offcpu RECORDING --by groups waits")
    if look.by in (STEP, CALL) and chosen is CSV:
        raise UsageError(f"{look.by}s are no rows of time", f"--by {look.by} -f json has all of them")
    if look.event and "event" not in chosen.takes:
        raise UsageError(f"the format {chosen.name} is of time", "--event goes with -f collapsed")
    if look.operators and look.by != "operator":
        raise UsageError("--group is for operators", "--by operator --group NAME=REGEX")
    if look.merge and "merge" not in chosen.takes:
        raise UsageError(f"--merge means nothing to {chosen.name}", "it goes with -f tree and --by thread")


def load_profile(path: Path, options: ProfileOptions, may_be_empty: bool = False) -> Profile:
    """Raises RecordingError when the file cannot be opened or is no recording.

    Raises UsageError when a process, thread or function is asked for that is not in it, unless it may be in another.
    """
    try:
        with open_recording(path) as file:
            recording = _read(path, file)
            if not may_be_empty:
                _check_is_there(recording, options.filter)
            profile = build_profile(recording, options)
            if not (may_be_empty or len(profile.weights)):
                _check_has_function(recording, options.filter)
            return profile
    except OSError as error:
        raise unreadable(path, error) from error


def _check_is_there(recording: Recording, wanted: SpanFilter) -> None:
    nothing = find_nothing(wanted, recording)
    if nothing is not None:
        what, pattern, names = nothing
        names = list(dict.fromkeys(names))
        kinds = list(dict.fromkeys(map(role_name, names)))
        first = set(kinds[:_NAMES])
        named = printable(folded_name([name for name in names if role_name(name) in first]))
        more = f", and {len(kinds) - _NAMES:,} more" if len(kinds) > _NAMES else ""
        raise UsageError(
            f"no {what} has {pattern.pattern} in `NAME ({what[0].upper()}ID)`",
            f"there {'are' if len(names) > 1 else 'is'} {shortened(named, _NAMES_COLUMNS)}{more}",
        )


def _check_has_function(recording: Recording, wanted: SpanFilter) -> None:
    if wanted.function is not None and (names := other_functions(wanted.function, recording)):
        short = [name for name in names[:_COMPARED] if len(name) <= _NAMES_COLUMNS]
        near = difflib.get_close_matches(wanted.function.pattern[:_NAMES_COLUMNS], short, 3)
        raise UsageError(
            f"no function has {wanted.function.pattern} in its name",
            f"did you mean {printable(' or '.join(near))}?" if near else "--by function has those that there are",
        )


def _read(path: Path, file: BinaryIO) -> Recording:
    try:
        return read_recording(file)
    except RecordingError as error:
        raise RecordingError(f"{path}: {error}") from error


def write_report(content: str | bytes, output: Path | None, opens: bool = False) -> None:
    """To the file, or to the terminal when there is none. opens: in a browser, too."""
    if output is not None:
        write_output(output, content, caller_ids())
        tell(f"wrote {output}")
        if opens:
            open_picture(output)
    else:
        show(content)


def tell_unread(profile: Profile, chosen: Format) -> None:
    """Beside what has no words of its own: which processes run Python that is not read."""
    for sentence in unread_sentences(profile) if chosen not in (SUMMARY, TABLE, WAITS) else ():
        tell(f"bpfprof: {sentence}")


def check_not_replaced(recording: Path, output: Path | None) -> None:
    """Raises UsageError if the report would be written over what it is made from."""
    if output is not None and output.resolve() == recording.resolve():
        raise UsageError("a report cannot replace its recording")


def check_whole(profile: Profile) -> None:
    """Raises RecordingError, after all was shown, if the recording is not whole."""
    if profile.quality.unfinished:
        why = printable(profile.quality.unfinished)
        raise RecordingError(f"the recording is not whole: {why}", "what could be read is shown")
    if text := loss_text(profile):
        raise RecordingError(f"the recording is incomplete: {text}", "what was recorded is shown")


def check_accounting(profile: Profile) -> str:
    """What is wrong with the times: threads that are off by more than 1% of their wall time, switches that are missing.

    "" if nothing is.
    """
    wrong = [
        thread
        for thread in profile.threads
        if thread.wall_ns > 0 and abs(thread.accounted_ns - thread.wall_ns) > _TOLERANCE * thread.wall_ns
    ]
    untold = profile.quality.untold_count
    missing = f"{counted(untold, 'switch', 'switches')} not told by the kernel: times around them are worked out"
    if not wrong:
        return missing if untold else ""
    named = [
        f"{thread_label(thread)} of {process_label(thread)}: {duration_text(thread.accounted_ns)} accounted, "
        f"{duration_text(thread.wall_ns)} wall"
        for thread in wrong
    ]
    count = f"{len(wrong)} of {len(profile.threads)} threads"
    return "\n  ".join([f"not within 1% of their wall time: {count}", *named, *([missing] if untold else [])])
