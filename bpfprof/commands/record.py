"""`bpfprof record`: watch programs for a while, write a recording or a report, show a summary."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from bpfprof.capture.caller import caller_ids
from bpfprof.capture.options import CaptureOptions
from bpfprof.capture.stop import StopRequest
from bpfprof.capture.targets import LaunchedCommand, Targets
from bpfprof.capture.watch import Watch
from bpfprof.commands.options import RECORDING_SUFFIX, choose_format, output_options, render_options
from bpfprof.commands.outputs import open_output, open_temporary, write_whole
from bpfprof.errors import OutputError, UsageError
from bpfprof.kernel.attach import PERF_EVENTS
from bpfprof.kernel.checks import check_machine, check_namespace
from bpfprof.kernel.compiler import Compilation
from bpfprof.kernel.kernel_side import KernelSide
from bpfprof.model.ids import Pid
from bpfprof.proc.tasks import process_name
from bpfprof.render.formats import TABLE, Format, RenderOptions

if TYPE_CHECKING:
    from bpfprof.capture.session import Progress
    from bpfprof.model.profile import Profile

_CLEAR_LINE = "\r\x1b[K"


@click.command()
@click.option("-p", "--pid", "pids", type=click.IntRange(1), multiple=True, help="Process to watch; may be repeated.")
@click.option(
    "-d", "--duration", type=click.FloatRange(0, min_open=True), help="Seconds; default: until Ctrl-C or its end."
)
@click.option("-r", "--rate", type=click.IntRange(1, 20000), default=99, show_default=True, help="Samples a second.")
@click.option("--mode", type=click.Choice(["both", "cpu", "offcpu"]), default="both", show_default=True)
@click.option("-e", "--event", type=click.Choice(list(PERF_EVENTS)), default="cpu-clock", show_default=True)
@click.option(
    "-s/-S", "--subprocesses/--no-subprocesses", "follow", default=True, help="Follow children.  [default: on]"
)
@click.option("--native/--no-native", default=True, help="Accepted; native frames are not recorded yet.")
@click.option("--nonblocking", is_flag=True, help="Accepted for habit: nothing is ever stopped.")
@click.option("-i", "--idle", is_flag=True, help="Accepted for habit: waits are always in.")
@output_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def record(
    started: tuple[Compilation, StopRequest],
    pids: tuple[int, ...],
    duration: float | None,
    rate: int,
    mode: str,
    event: str,
    follow: bool,
    native: bool,
    nonblocking: bool,
    idle: bool,
    output: Path | None,
    format_name: str | None,
    threads: bool,
    function_only: bool,
    full_filenames: bool,
    command: tuple[str, ...],
) -> None:
    """Record where the wall time of running programs goes (--pid), or of a COMMAND given after --."""
    chosen = choose_format(format_name, output)
    if bool(pids) == bool(command):
        raise UsageError("say what to record: --pid PID, or -- COMMAND", "bpfprof record --pid 1234 -d 10")
    if chosen is not None and output is None:
        raise UsageError(f"the format {chosen.name} needs a file: --output FILE")
    options = CaptureOptions(tuple(map(Pid, pids)), duration, rate, event, mode, follow)
    compilation, stop = started
    check_machine()
    check_namespace()
    kernel = KernelSide.start(compilation)
    try:
        look = render_options(function_only, full_filenames)
        profile, path = _record(kernel, options, command, output, chosen, look, stop)
    finally:
        kernel.close()
    _show_summary(profile, path, chosen)


def _record(
    kernel: KernelSide,
    options: CaptureOptions,
    command: tuple[str, ...],
    output: Path | None,
    chosen: Format | None,
    look: RenderOptions,
    stop: StopRequest,
) -> tuple[Profile, Path]:
    """Records, and writes the recording or the chosen format; returns the profile and the path of what was written."""
    launched = LaunchedCommand.start(command) if command else None
    targets = Targets.open((launched.pid,) if launched else options.pids)
    path = output or _default_path(targets.pids[0], command)
    is_new = not os.path.lexists(path)
    watch = Watch.of(options, kernel, targets)
    failure: OutputError | None = None
    with os.fdopen(open_output(path, caller_ids(), empty=False), "r+b") as result:
        stream = os.fdopen(open_temporary(), "r+b") if chosen else result
        try:
            watch.start(launched)
            stream.truncate(0)
            _capture(watch, stream.fileno(), stop)
        except OutputError as error:
            failure = error  # what was written before is still shown
        except BaseException:
            if is_new:
                path.unlink()
            raise
        finally:
            watch.close()
        profile = _read_back(stream, chosen)
        if chosen is not None:
            write_whole(result.fileno(), path, chosen.render(profile, look))
            stream.close()
    if failure is not None:
        _show_summary(profile, path, chosen)
        raise failure
    return profile, path


def _capture(watch: Watch, fd: int, stop: StopRequest) -> None:
    # Imported now, which takes a while: the kernel side works already.
    from bpfprof.capture.session import Session
    from bpfprof.recording.writer import RecordingWriter

    live = _LiveLine()
    session = Session(watch, RecordingWriter(fd))
    try:
        session.begin()
        for note in watch.notes():
            click.echo(f"bpfprof: {note}", err=True)
        live.begin(watch.describe())
        session.run(live.update, stop)
        live.end(session.progress)
        session.finish()
    finally:
        live.clear()


def _read_back(stream: BinaryIO, chosen: Format | None) -> Profile:
    from bpfprof.profile.build import build_profile
    from bpfprof.recording.reader import read_recording

    stream.seek(0)
    return build_profile(read_recording(stream), chosen is not None and chosen.needs_timeline)


def _default_path(pid: int, command: tuple[str, ...]) -> Path:
    """bpfprof-COMM-PID-DATE.bpfprof in the current folder."""
    name = os.path.basename(command[0]) if command else process_name(Pid(pid))
    word = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name) or "process"
    return Path(f"bpfprof-{word}-{pid}-{time.strftime('%Y%m%d-%H%M%S')}{RECORDING_SUFFIX}")


def _show_summary(profile: Profile, path: Path, chosen: Format | None) -> None:
    click.echo(TABLE.render(profile, render_options(False, False)), nl=False)
    if chosen is None:
        click.echo(f"\nrecording: {path}\nnext: bpfprof report {path} -f flamegraph -o {path.with_suffix('.svg')}")
    else:
        click.echo(f"\n{chosen.name}: {path}\nnext: {_next_step(chosen, path)}")


def _next_step(chosen: Format, path: Path) -> str:
    if chosen.name == "flamegraph":
        return f"open {path} in a browser"
    if chosen.name == "speedscope":
        return f"open {path} at https://www.speedscope.app, or with: npx speedscope {path}"
    return f"less {path}"


class _LiveLine:
    """One line that is rewritten on a terminal; elsewhere the start and the end only."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._shown = False
        self._next_s = 0.0

    def begin(self, what: str) -> None:
        click.echo(f"recording {what}; Ctrl-C ends it", err=True)

    def update(self, progress: Progress) -> None:
        if self._is_terminal and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + 0.5
            sys.stderr.write(_CLEAR_LINE + _progress_text(progress)[:100])
            sys.stderr.flush()
            self._shown = True

    def end(self, progress: Progress) -> None:
        self.clear()
        click.echo(_progress_text(progress), err=True)

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write(_CLEAR_LINE)
            self._shown = False


def _progress_text(progress: Progress) -> str:
    own = 100 * progress.own_cpu_s / max(progress.elapsed_s, 1e-9)
    return (
        f"{progress.elapsed_s:.1f} s, {progress.sample_count:,} samples, {progress.wait_count:,} off-CPU intervals, "
        f"{progress.thread_count} threads, {progress.lost_count} lost, own CPU {own:.1f}%"
    )
