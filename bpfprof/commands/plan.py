"""What a command that records is to do. Wrong use is said before anything large is imported or loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bpfprof.capture.options import CaptureOptions
from bpfprof.commands.options import Shown
from bpfprof.commands.outputs import STANDARD_OUTPUT, check_no_terminal, check_not_spilled, descriptor, open_stream
from bpfprof.commands.starting import starting
from bpfprof.dataclass import dataclass
from bpfprof.errors import UsageError
from bpfprof.profile.options import ProfileOptions
from bpfprof.render.formats import SUMMARY, TABLE, WAITS, Format

if TYPE_CHECKING:
    from bpfprof.model.profile import Profile


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
        with starting(options.counts_calls) as under_way:
            # Imported now, which takes a while: the kernel side is on its way up.
            from bpfprof.commands.recording import make_recording

            return make_recording(replace(self, options=options, shown=shown, chosen=chosen), under_way, stream)


def _check_standard_output(is_launched: bool, chosen: Format | None) -> None:
    if is_launched:
        raise UsageError("standard output belongs to the command that is launched", "give a file: --output FILE")
    if chosen is None:
        check_no_terminal("a recording is", STANDARD_OUTPUT)
    else:
        check_not_spilled(chosen.name, STANDARD_OUTPUT)
