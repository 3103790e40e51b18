"""What a command that records is to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bpfprof.capture.options import CaptureOptions
from bpfprof.commands.options import Shown
from bpfprof.dataclass import dataclass
from bpfprof.profile.options import ProfileOptions
from bpfprof.render.formats import Format

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
