"""What a command that records is to do. Wrong use is said before anything large is imported or loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bpfprof.capture.options import CaptureOptions
from bpfprof.commands.options import Shown
from bpfprof.commands.outputs import STANDARD_OUTPUT, descriptor, open_stream
from bpfprof.commands.starting import starting
from bpfprof.dataclass import dataclass
from bpfprof.errors import UsageError
from bpfprof.profile.options import ProfileOptions
from bpfprof.render.formats import SUMMARY, TABLE, WAITS, Format

if TYPE_CHECKING:
    from bpfprof.model.profile import Profile

# By the name of a format, with its path; of others it is `less`.
NEXT_STEPS = {
    "flamegraph": "open {0} in a browser",
    "html": "open {0} in a browser",
    "speedscope": "open {0} at https://www.speedscope.app, or with: npx speedscope {0}",
    "chrome": "open {0} at https://ui.perfetto.dev",
    "gecko": "open {0} at https://profiler.firefox.com",
    "parquet": "duckdb -c \"SELECT function, sum(ns) / 1e9 FROM '{0}' GROUP BY 1 ORDER BY 2 DESC\"",
    "pprof": "go tool pprof -http : {0}",
    "pstats": "python3 -m pstats {0}, or with: snakeviz {0}",
}


@dataclass(frozen=True)
class Plan:
    """What to record, and what to make of it.

    render: of a profile what a format is to hold; None: what the terminal shows. next_command: how to go on with a
    recording.
    """

    options: CaptureOptions
    command: tuple[str, ...]
    shown: Shown
    profile_options: ProfileOptions
    render: Callable[[Profile, Format | None], str | bytes]
    next_command: Callable[[Path], str]
    chosen: Format | None = None  # of the output; None: a recording

    def carry_out(self) -> int:
        """Checks the output, then records: see make_recording(). Raises UsageError."""
        chosen, shown = self.shown.format(), self.shown
        shown.check_open()
        if chosen in (SUMMARY, TABLE, WAITS) and shown.output is None:
            chosen = None  # it is shown in any case
        if chosen is not None and shown.output is None:
            shown = replace(shown, output=STANDARD_OUTPUT)
        if descriptor(shown.output) == 1:
            _check_standard_output(bool(self.command), chosen)
        stream = open_stream(shown.output)  # before a command is forked, which is not to have it
        options = replace(self.options, native=self.options.native or self.options.native_lines)
        with starting() as under_way:
            # Imported now, which takes a while: the kernel side is on its way up.
            from bpfprof.commands.recording import make_recording

            return make_recording(replace(self, options=options, shown=shown, chosen=chosen), under_way, stream)


def _check_standard_output(is_launched: bool, chosen: Format | None) -> None:
    if is_launched:
        raise UsageError("standard output belongs to the command that is launched", "give a file: --output FILE")
    if sys.stdout.isatty() and (chosen is None or chosen.name in NEXT_STEPS):
        what = f"the format {chosen.name} is" if chosen else "a recording is"
        raise UsageError(f"{what} not for a terminal", "give a file: --output FILE")
