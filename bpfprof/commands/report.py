"""`bpfprof report`: a recording as text or picture, without root and without the kernel."""

from __future__ import annotations

from pathlib import Path

import click

from bpfprof.capture.caller import caller_ids
from bpfprof.commands.options import choose_format, output_options, render_options
from bpfprof.commands.outputs import write_output
from bpfprof.errors import RecordingError, UsageError
from bpfprof.model.profile import Profile
from bpfprof.profile.build import build_profile
from bpfprof.recording.reader import read_recording
from bpfprof.render.formats import TABLE


@click.command()
@click.argument("recording", type=click.Path(path_type=Path))
@output_options
def report(
    recording: Path,
    output: Path | None,
    format_name: str | None,
    threads: bool,
    function_only: bool,
    full_filenames: bool,
) -> None:
    """Render a RECORDING: to the terminal as a table, or with -o or -f as something else."""
    chosen = choose_format(format_name, output)
    if chosen is None and (format_name or output):
        raise UsageError("a report is not a recording; choose another suffix or format")
    if output is not None and output.resolve() == recording.resolve():
        raise UsageError("a report cannot replace its recording")
    chosen = chosen or TABLE
    profile = load_profile(recording, chosen.needs_timeline)
    content = chosen.render(profile, render_options(function_only, full_filenames))
    if output is None:
        click.echo(content, nl=False)
    else:
        write_output(output, content, caller_ids())
        click.echo(f"wrote {output}", err=True)
    if profile.quality.unfinished:
        raise RecordingError(f"the recording is not whole: {profile.quality.unfinished}", "what could be read is shown")


def load_profile(path: Path, with_timeline: bool) -> Profile:
    """Raises RecordingError when the file cannot be opened or is no recording."""
    try:
        with open(path, "rb") as file:
            return build_profile(read_recording(file), with_timeline)
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}") from error
