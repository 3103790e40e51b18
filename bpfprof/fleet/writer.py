"""A Profile -> the folder of a recording in a data set, at once: it gets its name when all is in it."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bpfprof.errors import OutputError, UsageError, shortage
from bpfprof.fleet.layout import SPANS, TABLES, folder_of
from bpfprof.fleet.tables import Tables
from bpfprof.model.profile import Profile

# Numbers of which nearly each is another: in a dictionary they would take more.
_EACH_ANOTHER = {"start_ns", "duration_ns", "ns"}


def write_recording(profile: Profile, identity: str, labels: Mapping[str, str], folder: Path) -> Path:
    """The folder that it has there from now on, in the place of one that this recording had there before.

    What was there before goes away in the moment in which the new one comes. Raises UsageError where the data set's
    folder cannot be written, OutputError where this ends too early (disk full); nothing of it is left then.
    """
    tables = Tables(profile, labels)
    wanted = folder / folder_of(profile.info, identity)
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{wanted.name}-", dir=wanted.parent))
    except OSError as error:
        if shortage(error):
            raise
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from error
    try:
        whole = made / "new"
        whole.mkdir()
        for name in TABLES:
            _write(whole / f"{name}.parquet", tables.table(name), is_large=name == SPANS)
        _put(whole, wanted, made / "old")
    except OSError as error:
        if shortage(error):
            raise
        raise OutputError(f"{wanted} could not be written: {error.strerror or error}", "free some space") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return wanted


def _put(whole: Path, wanted: Path, old: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        wanted.rename(old)
    try:
        whole.rename(wanted)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            old.rename(wanted)
        raise


def _write(path: Path, parts: Iterator[Any], is_large: bool) -> None:
    import pyarrow.parquet

    first = next(parts)
    columns = [name for name in first.column_names if name not in _EACH_ANOTHER or not is_large]
    with open(path, "xb") as file:
        with pyarrow.parquet.ParquetWriter(file, first.schema, compression="zstd", use_dictionary=columns) as writer:
            writer.write_table(first)
            for part in parts:
                writer.write_table(part)
        file.flush()
        os.fsync(file.fileno())
