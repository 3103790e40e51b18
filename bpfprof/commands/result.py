"""Where a recording, or a report of it, goes: a file with a name or a stream; and what is kept when something fails."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from bpfprof.commands.options import RECORDING_SUFFIX
from bpfprof.commands.outputs import encoded, has_name, open_output, open_temporary, remove_output, tell, write_whole
from bpfprof.dataclass import dataclass
from bpfprof.errors import LaunchError, OutputError, TargetError, UnsupportedError, UsageError
from bpfprof.proc.caller import caller_ids
from bpfprof.render.formats import Format

_NOTHING_RECORDED = (LaunchError, TargetError, UnsupportedError, UsageError)


@dataclass(frozen=True)
class Result:
    """`recording` is what is recorded to: the file itself, or one without a name if that is to have something else.

    file: None where it all goes to `stream`. spare: a name for a recording that was to have none; convert: what makes
    of it what it was to be, "" where nothing does.
    """

    path: Path
    recording: BinaryIO
    file: BinaryIO | None
    stream: BinaryIO | None
    is_new: bool
    caller: tuple[int, int] | None
    spare: Path
    convert: str

    @classmethod
    def open(cls, path: Path, stream: BinaryIO | None, chosen: Format | None, spare: Path) -> Result:
        """stream: what `path` stands for, if not for a file. Raises UsageError when a file cannot be written."""
        caller, is_new, file, is_recording, convert = caller_ids(), not os.path.lexists(path), None, chosen is None, ""
        if chosen is not None and stream is None:
            spare = spare if os.path.lexists(beside := path.with_suffix(RECORDING_SUFFIX)) else beside
            convert = f"bpfprof report {spare} -f {chosen.name} -o {path}"
        if stream is None:
            file = os.fdopen(open_output(path, caller, empty=False, mode=0o600 if is_recording else 0o644), "r+b")
        recording = file if file and is_recording else os.fdopen(open_temporary(), "r+b")
        return cls(path, recording, file, stream, is_new, caller, spare, convert)

    def write(self, report: str | bytes | None) -> None:
        """The report, or None where the recording itself is the result. Raises OutputError."""
        if self.file is not None:
            if report is not None:
                write_whole(self.file.fileno(), self.path, report, self.caller)
            if not has_name(self.path, self.file.fileno(), self.caller):
                tell(f"bpfprof: {self.path} was renamed or removed meanwhile; what was written is in that file")
            return
        assert self.stream is not None
        with self.stream:
            if report is not None:
                self.stream.write(encoded(report))
            else:
                self.recording.seek(0)
                _copy(self.recording, self.stream)

    @contextlib.contextmanager
    def watched_over(self) -> Iterator[None]:
        """When something fails in the block, what was recorded is kept and said: it may be all there is."""
        try:
            yield
        except BaseException as error:
            has_some = os.fstat(self.recording.fileno()).st_size and not isinstance(error, _NOTHING_RECORDED)
            is_kept = has_some and self.file is self.recording
            if is_kept:
                tell(f"bpfprof: the recording so far is in {self.path}")
            else:
                self._give_up(bool(has_some))
            raise

    def out_of_time(self) -> OutputError:
        """There was no time for the report: the recording is kept in its place; why, for the user."""
        what = self.path if self.file is not None else "the report"
        self._give_up(True)
        return OutputError(f"there was no time for {what}", self.convert)

    def close(self) -> None:
        """Gives back what is open."""
        self.recording.close()
        if self.file is not None:
            self.file.close()

    def _give_up(self, has_some: bool) -> None:
        if has_some:
            self._keep()
        if self.file is not None and self.is_new:
            remove_output(self.path, self.file.fileno(), self.caller)

    def _keep(self) -> None:
        try:
            self.recording.seek(0)
            with os.fdopen(open_output(self.spare, self.caller, mode=0o600), "r+b") as file:
                _copy(self.recording, file)
        except (OSError, UsageError) as error:
            tell(f"bpfprof: the recording so far could not be kept: {error}")
        else:
            tell(f"bpfprof: the recording so far is in {self.spare}")


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    while block := source.read(1 << 20):
        target.write(block)
