"""`bpfprof export`: recordings into a data set of many, without root and without the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from bpfprof.commands.help import OUTPUT, Command
from bpfprof.commands.outputs import tell
from bpfprof.commands.recording_file import open_recording, unreadable
from bpfprof.commands.row_options import waiting_option
from bpfprof.commands.values import PAIR
from bpfprof.errors import RecordingError, UsageError
from bpfprof.fleet.layout import recording_id
from bpfprof.fleet.writer import write_recording
from bpfprof.proc.caller import caller_ids, files_as
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.recording.reader import read_recording
from bpfprof.render.labels import printable
from bpfprof.render.parquet import check_pyarrow

_EXAMPLES = (
    ("a recording into a data set of many", "bpfprof export FILE.bpfprof --to fleet/ --label version=1.4"),
    ("what takes the time in all of them", "bpfprof fleet top fleet/"),
)


@click.command(cls=Command, heading=OUTPUT, examples=_EXAMPLES)
@click.argument("recordings", nargs=-1, type=Path, metavar="RECORDING...")
@click.option("--to", "folder", type=Path, metavar="DIR", help="Folder of the data set; it is made if it is missing.")
@click.option(
    *("--label", "given"),
    multiple=True,
    metavar="NAME=VALUE",
    type=PAIR,
    callback=lambda _ctx, _parameter, pairs: dict(pairs),
    help="What queries can tell recordings apart by, like version=1.4 or rank=0; may be repeated.",
)
@click.option(
    *("-f", "--format"),
    type=click.Choice(["parquet"]),
    default="parquet",
    expose_value=False,
    help="What the data set is made of.  [default: parquet]",
)
@waiting_option
def export(recordings: tuple[Path, ...], folder: Path | None, given: dict[str, str]) -> None:
    """Write RECORDINGs into a data set, which `bpfprof fleet` and other readers of Parquet files ask.

    A recording that is exported again takes the place of what it was there. docs/fleet.md has tables and columns.
    """
    if not recordings:
        raise UsageError("say which recordings", "bpfprof export RECORDING... --to DIR")
    if folder is None:
        raise UsageError("say where to", "bpfprof export RECORDING... --to DIR")
    for name in {"date", "host"} & set(given):
        raise UsageError(f"a label cannot be called {name}", "queries know date and host of each recording")
    check_pyarrow()
    complaints = _export(recordings, folder, given)
    if complaints:
        raise RecordingError("; ".join(complaints), "what could be read is in the data set")


def _export(recordings: Sequence[Path], folder: Path, given: dict[str, str]) -> list[str]:
    """One after the other. What is wrong with some."""
    complaints = []
    for path in recordings:
        try:
            with open_recording(path) as file:
                recording = read_recording(file)
                profile = build_profile(recording, ProfileOptions(with_spans=True, with_samples=True))
        except RecordingError as error:
            complaints.append(str(error) if str(path) in str(error) else f"{path}: {error}")
            continue
        except OSError as error:
            complaints.append(str(unreadable(path, error)))
            continue
        with files_as(caller_ids()):
            written = write_recording(profile, recording_id(recording.start), given, folder)
        tell(f"wrote {written}")
        if profile.quality.unfinished:
            complaints.append(f"{path} is not whole: {printable(profile.quality.unfinished)}")
    return complaints
