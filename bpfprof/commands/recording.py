"""A recording made for a command: from what was asked for to a file that is whole, and the profile of it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from bpfprof.capture.stop import StopRequest
from bpfprof.capture.targets import Targets
from bpfprof.capture.watch import TablesWait, Watch
from bpfprof.commands.launching import Launch
from bpfprof.commands.opening import open_picture
from bpfprof.commands.options import RECORDING_SUFFIX
from bpfprof.commands.outputs import NEXT_STEPS, descriptor, show, tell
from bpfprof.commands.plan import Plan
from bpfprof.commands.result import Result
from bpfprof.commands.starting import BEGUN, Started
from bpfprof.commands.tables_line import TablesLine
from bpfprof.commands.terminal import CLEAR_LINE, acts_on_codes
from bpfprof.commands.time_limit import OutOfTimeError, TimeLimit
from bpfprof.dataclass import dataclass
from bpfprof.errors import BpfprofError, OutputError, RecordingError
from bpfprof.kernel.checks import check_events, check_host
from bpfprof.kernel.kernel_side import KernelSide
from bpfprof.kernel.probes import check_probes
from bpfprof.proc.caller import caller_ids
from bpfprof.proc.confinement import OTHER_IDS, PERF_PROBES, PROBES, RECORDING, SIGNALS
from bpfprof.proc.own_process import go_first_for
from bpfprof.proc.privilege import Capability
from bpfprof.proc.reader import reader
from bpfprof.proc.tasks import process_name
from bpfprof.proc.text import with_controls_replaced
from bpfprof.profile.options import ProfileOptions
from bpfprof.render.header import counted
from bpfprof.render.quality import loss_text

if TYPE_CHECKING:
    from bpfprof.capture.session import Progress
    from bpfprof.model.profile import Profile

# The end of a recording has so long with its summary, less where a signal has ended it, and a part of what was recorded
# where that is longer; on a terminal its user decides. Meanwhile it goes before other programs, which may flood the
# machine.
_END_S, _SIGNAL_END_S, _LEAST_SUMMARY_S, _SUMMARY_PART, _FIRST_S = 10.0, 2.5, 1.0, 0.05, 3.5

_LIVE_S, _LATELY = 0.5, 4  # from one live line to the next; so many are lately


def make_recording(plan: Plan, under_way: Started, stream: BinaryIO | None) -> int:
    """Records until the end, writes the recording or a report, shows a summary and what was written.

    Returns the exit status: a launched command's own, whose end is waited for, and whose standard output has nothing of
    bpfprof in it. stream: of the output, if that is one. Raises UnsupportedError, TargetError, LaunchError, UsageError,
    OutputError: when it could not be written to its end, which a command's failure hides; what was written before is
    shown all the same.
    """
    if plan.options.native_lines:
        from bpfprof.elf.lines import check_pyelftools

        check_pyelftools()
    check_host()
    check_events(plan.options.events)
    if plan.options.counts_calls:
        check_probes()
    kernel, launch = under_way.kernel, None
    try:
        if plan.command:
            launch = Launch.start(plan.command, under_way.stop, plan.options.kills)
        text, path, failure = _record(kernel, plan, under_way.stop, launch, stream)
    finally:
        kernel.close()
    if text is not None:
        _show_result(plan, text, path)
    status = launch.wait() if launch else 0
    if failure is not None and status == 0:
        raise failure
    if failure is not None:
        tell(f"bpfprof: {failure}")
    return status


def _show_result(plan: Plan, text: str | bytes, path: Path) -> None:
    has_output = plan.command or descriptor(path) == 1  # of its own on standard output
    named = Path(with_controls_replaced(str(path)))
    if descriptor(path) is not None:
        last = ""
    elif plan.chosen is None:
        last = f"recording: {named}\nnext: {plan.next_command(named)}"
    else:
        name = plan.chosen.name
        last = f"{name}: {named}\nnext: {NEXT_STEPS.get(name, 'less {0}').format(named)}"
    if not has_output:
        show(text)
    else:
        click.echo(text, nl=False, err=True)
    if last:
        click.echo(last, err=bool(has_output))
    if plan.shown.opens:
        open_picture(path)


def _record(
    kernel: KernelSide,
    plan: Plan,
    stop: StopRequest,
    launch: Launch | None,
    stream: BinaryIO | None,
) -> tuple[str | bytes | None, Path, BpfprofError | None]:
    """(the summary, where the recording or the report is, why it is not whole); None: it is read elsewhere"""
    pids = (launch.command.pid,) if launch else plan.options.pids
    targets = Targets.open(pids, plan.options.cgroups, plan.options.containers)
    if plan.options.until_eof:
        targets.end_with(sys.stdin.fileno())
    spare = _default_path(targets, plan.command)
    path = plan.shown.output or spare
    watch = Watch.of(plan.options, kernel, targets)
    failure: BpfprofError | None = None
    captured, profile = _Captured(), None
    limit = _limit(plan, path)
    with contextlib.closing(Result.open(path, stream, plan.chosen, spare)) as result, result.watched_over():
        try:
            if plan.options.native or plan.options.watches_all:
                # It needs much of the same, and what is met first has to be looked at soon.
                import bpfprof.capture.session  # noqa: F401
            waiting = TablesLine()

            def on_wait(wait: TablesWait) -> bool:
                waiting.update(wait)
                return not stop.requested

            watch.start(launch.command if launch else None, on_wait)
            watch.keep_only(_kept(plan, launch is not None, kernel.uses_links))
            result.recording.truncate(0)
            captured = _capture(watch, result.recording.fileno(), stop, launch)
        except OutputError as error:
            failure = error  # what was written before is still shown
        except Exception:
            if launch:
                launch.left_alone()
            raise
        finally:
            watch.close()
        if launch:
            launch.recorded(watch.processes)
        if launch is None or launch.command.has_ended():
            stop.end()
        if plan.options.until_eof and failure is None:
            return None, path, None
        text: str | bytes = ""
        report = None
        most_s = _SIGNAL_END_S if stop.count else _END_S
        if stop.count or plan.chosen is None:  # else who asked for the report waits for it, or sends a signal
            limit.begin(max(most_s - captured.end_s, _LEAST_SUMMARY_S), captured.recorded_s)
        with contextlib.suppress(OutOfTimeError), limit:
            profile = _read_back(result.recording, plan.profile_options)
            report = plan.render(profile, plan.chosen) if plan.chosen else None
            text = plan.render(profile, None)
        if plan.chosen is not None and report is None:
            return None, path, failure or result.out_of_time()
        result.write(report)
    return text, path, failure or _shortcoming(profile, bool(text), captured.lost_count)


def _limit(plan: Plan, path: Path) -> TimeLimit:
    """Of a report or a summary; on a terminal it only says that it takes a while."""
    said = f"the recording is in {path}; its summary takes a while, and a signal leaves it out"
    if plan.chosen is not None:
        said = f"{path} takes a while; a signal leaves it out, and the recording is kept"
    return TimeLimit(float("inf") if sys.stderr.isatty() else _SUMMARY_PART, with_controls_replaced(f"bpfprof: {said}"))


def _shortcoming(profile: Profile | None, has_summary: bool, lost_count: int) -> BpfprofError | None:
    """Why a recording does not hold what was asked for, if it does not or if that is not known."""
    if profile is not None and profile.quality.unfinished:
        return RecordingError(f"the recording is not whole: {profile.quality.unfinished}")
    if profile is not None and (text := loss_text(profile)):
        return RecordingError(f"the recording is incomplete: {text}", "what was recorded is shown")
    if has_summary:
        return None
    if profile is None and lost_count:
        lost = f"{lost_count:,} events were lost, and there was no time to see what they leave out"
        return RecordingError(f"the recording may be incomplete: {lost}", "bpfprof report says it")
    tell("bpfprof: there was no time for a summary, which `bpfprof report` makes of a recording")
    return None


def _kept(plan: Plan, is_launched: bool, uses_links: bool) -> list[Capability]:
    """What is still needed for the rest of it. uses_links: probes are BPF links."""
    takes_ids = plan.options.native_lines or caller_ids() is not None
    probes = (PROBES if uses_links else PERF_PROBES) if plan.options.counts_calls else ()
    return [*RECORDING, *probes, *(OTHER_IDS if takes_ids else ()), *(SIGNALS if is_launched else ())]


@dataclass(frozen=True)
class _Captured:
    """How many events were lost; how many seconds were recorded, and what the end of it took."""

    lost_count: int = 0
    recorded_s: float = 0.0
    end_s: float = 0.0


def _capture(watch: Watch, fd: int, stop: StopRequest, launch: Launch | None) -> _Captured:
    # Imported now, which takes a while: the kernel side works already.
    from bpfprof.capture.session import Session
    from bpfprof.recording.writer import RecordingWriter

    live = LiveLine(launch is None, watch.options.rate_hz if watch.options.mode != "offcpu" else 0)

    def on_tick(progress: Progress) -> None:
        live.update(progress)
        if launch:
            launch.follow(watch.processes)

    session = Session(watch, RecordingWriter(fd))
    try:
        session.begin(stop)
        for note in watch.notes():
            tell(f"bpfprof: {note}")
        live.begin(watch.describe(), "it ends when the command does" if launch else "Ctrl-C ends it")
        session.run(on_tick, stop)
        begin_s = time.monotonic()
        go_first_for(_FIRST_S, reader().child_pid)
        session.finish(stop)
        live.end(session.progress)
    finally:
        live.clear()
    return _Captured(session.progress.lost_count, session.progress.elapsed_s, time.monotonic() - begin_s)


def _read_back(stream: BinaryIO, options: ProfileOptions) -> Profile:
    from bpfprof.profile.build import build_profile
    from bpfprof.recording.reader import read_recording

    stream.seek(0)
    return build_profile(read_recording(stream), options)


def _default_path(targets: Targets, command: tuple[str, ...]) -> Path:
    """bpfprof-COMM-PID-DATE.bpfprof in the current folder; without a pid the name of the cgroup, or `all`."""
    pid = targets.pids[0] if targets.pids else None
    name = os.path.basename(targets.members.names[0]) if targets.members.names else "all"
    if pid is not None:
        name = os.path.basename(command[0]) if command else process_name(pid)
    word = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name) or "process"
    numbers = f"-{pid}" if pid is not None else ""
    return Path(f"bpfprof-{word[:100]}{numbers}-{time.strftime('%Y%m%d-%H%M%S')}{RECORDING_SUFFIX}")


class LiveLine:
    """One line that is rewritten on a terminal of bpfprof's own; elsewhere the start and the end only.

    It has the CPUs that the program used lately, and at the end on average, by samples; rate_hz 0: there are none.
    """

    def __init__(self, has_terminal: bool, rate_hz: int) -> None:
        self._is_terminal = has_terminal and sys.stderr.isatty() and acts_on_codes()
        self._rate_hz = rate_hz
        self._before = deque([(0.0, 0)], _LATELY)  # seconds and samples
        self._shown = False
        self._next_s = 0.0

    def begin(self, what: str, end: str) -> None:
        tell(f"{BEGUN}{what}; {end}")

    def update(self, progress: Progress) -> None:
        if self._is_terminal and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _LIVE_S
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 100  # 0: it does not say
            sys.stderr.write(CLEAR_LINE + self._text(progress, *self._before[0])[: columns - 1])
            sys.stderr.flush()
            self._before.append((progress.elapsed_s, progress.sample_count))
            self._shown = True

    def end(self, progress: Progress) -> None:
        self.clear()
        click.echo(self._text(progress), err=True)

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write(CLEAR_LINE)
            self._shown = False

    def _text(self, progress: Progress, before_s: float = 0.0, samples_before: int = 0) -> str:
        parts = [f"{progress.elapsed_s:.1f} s", counted(progress.thread_count, "thread")]
        samples, clocked = progress.sample_count - samples_before, self._rate_hz * (progress.elapsed_s - before_s)
        parts += [f"{samples / clocked:.2f} of {counted(os.cpu_count() or 1, 'CPU')}"] if clocked else []
        own = 100 * progress.own_cpu_s / max(progress.elapsed_s, 1e-9)
        return ", ".join([*parts, f"{progress.lost_count:,} lost", f"own CPU {own:.1f}%"])
