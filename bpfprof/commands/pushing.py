"""`bpfprof record --push URL`: a profile of each minute, sent to a server, until the end."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from bpfprof.capture.options import CaptureOptions
from bpfprof.commands.options import Shown
from bpfprof.commands.outputs import tell
from bpfprof.commands.starting import BEGUN, Started, starting
from bpfprof.errors import UnsupportedError, UsageError
from bpfprof.proc.own_process import all_usual

if TYPE_CHECKING:
    from bpfprof.capture.session import Session
    from bpfprof.capture.watch import Watch
    from bpfprof.push.endpoint import Endpoint
    from bpfprof.push.outbox import Outbox

EVERY_S = 60.0


def check_pushing(asked: CaptureOptions, command: tuple[str, ...], shown: Shown) -> None:
    """Raises UsageError for what means nothing beside it."""
    if command:
        raise UsageError("--push is for what runs already", "start the command, then give its --pid")
    if shown.output is not None or shown.format() is not None:
        raise UsageError("--push leaves no file", "leave out --output and --format")
    if asked.until_eof or asked.events:
        raise UsageError("--push sends CPU time and waits only", "leave out --event")


def push(asked: CaptureOptions, url: str, every_s: float) -> int:
    """Until the duration is over, the targets have ended, or a signal comes; then says what became of all profiles."""
    with starting() as started:
        return _push(started, asked, url, every_s)


def _push(started: Started, asked: CaptureOptions, url: str, every_s: float) -> int:
    # Imported now, which takes a while: the kernel side is on its way up.
    from bpfprof.capture.targets import Targets
    from bpfprof.capture.watch import Watch
    from bpfprof.kernel.checks import check_host
    from bpfprof.proc.confinement import RECORDING
    from bpfprof.push.endpoint import endpoint_of
    from bpfprof.push.outbox import Outbox

    token = os.environ.get("BPFPROF_PUSH_TOKEN", "")
    endpoint = endpoint_of(url, bool(token))
    if endpoint.content[0] == "application/x-protobuf":
        try:
            import bpfprof.push.otlp  # noqa: F401
        except ImportError as error:
            raise UnsupportedError("OTLP needs opentelemetry-proto", "pip install 'bpfprof[push]'") from error
    # The profiles have none of the others.
    asked = replace(asked, async_rate_hz=0, takes_marks=False, looks_at_waits=endpoint.names_locks)
    check_host()
    kernel = started.kernel
    try:
        watch = Watch.of(asked, kernel, Targets.open(asked.pids, asked.cgroups, asked.containers))
        try:
            watch.start(None, lambda _: not started.stop.requested)
            outbox = Outbox(endpoint, token)
            try:
                watch.keep_only([*RECORDING])
                _run(watch, outbox, every_s, started, endpoint)
            finally:
                for line in outbox.finish():
                    tell(f"bpfprof: {line}")
        finally:
            watch.close()
    finally:
        kernel.close()
    return 0


def _run(watch: Watch, outbox: Outbox, every_s: float, started: Started, endpoint: Endpoint) -> None:
    from bpfprof.capture.session import Session
    from bpfprof.commands.pushed_parts import PushedParts
    from bpfprof.profile.options import ProfileOptions
    from bpfprof.recording.part import GrowingRecording

    growing = GrowingRecording()
    session = Session(watch, growing, part_s=every_s, is_quiet=True)
    parts = PushedParts(growing, outbox, every_s, ProfileOptions(with_spans=endpoint.names_locks))
    session.begin(started.stop)
    for note in watch.notes():
        tell(f"bpfprof: {note}")
    left = f"; {outbox.left_before} of an earlier run are sent first" if outbox.left_before else ""
    tell(f"{BEGUN}{watch.describe()}; a profile each {every_s:g} s to {endpoint.text}{left}; Ctrl-C ends it")
    sys.stderr.flush()
    session.run(parts.on_tick, started.stop)
    session.finish(started.stop)
    all_usual()
    parts.send_rest()
    _say_lost(session)


def _say_lost(session: Session) -> None:
    if session.progress.lost_count:
        tell(f"bpfprof: {session.progress.lost_count:,} events were lost in the kernel's buffers")
