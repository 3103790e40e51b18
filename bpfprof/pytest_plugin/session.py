"""One recording of a run of tests: begun before the first, ended after the last, read once.

In: hooks of pytest. Out: a table at the end, files, and the exit status. With pytest-xdist the process that
distributes the tests records, its workers as its children, and workers only note when their tests ran.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bpfprof.commands.recorder import Recorder
from bpfprof.errors import BpfprofError

if TYPE_CHECKING:
    from bpfprof.pytest_plugin.outcome import Outcome

_RATE_HZ = 499  # tests are short
_NOTE = "bpfprof_note"  # of a report, which takes it along from a worker: as Note has it
Note = tuple[int, int, int, int, Sequence[int]]  # begin_ns, end_ns, pid, tid, threads that were there before all tests


def make_plugin(config: pytest.Config) -> Notes:
    """What the process has to do: a worker of pytest-xdist only takes notes."""
    return Notes() if hasattr(config, "workerinput") else Session(config)


class Notes:
    """When each test ran, on the clock that recordings have, in its reports."""

    def __init__(self) -> None:
        self._begin_ns = 0
        self._before = sorted({*map(int, os.listdir("/proc/self/task"))} - {os.getpid()})

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        """With its fixtures."""
        self._begin_ns = time.monotonic_ns()
        yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        """After each of its phases."""
        end_ns = time.monotonic_ns()
        made: Any = yield
        note = self._begin_ns, end_ns, os.getpid(), threading.get_native_id(), self._before
        setattr(made.get_result(), _NOTE, note)


class Session(Notes):
    """`tests`: for each that has ended its name, its note and whether it passed."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__()
        self.tests: list[tuple[str, Note, bool]] = []
        self._failed: set[str] = set()
        self._skipped: set[str] = set()
        self._config = config
        self._recorder: Recorder | None = None
        self._outcome: Outcome | None = None
        self._error: BpfprofError | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="bpfprof-pytest-")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Raises UsageError where nothing can be recorded, or an option is none."""
        from bpfprof.pytest_plugin.asked import Asked

        try:
            self._asked = Asked.of(self._config)
            output = self._asked.recording
            path = output or Path(self._folder.name) / "tests.bpfprof"
            self._recorder = Recorder(path, ["-r", str(_RATE_HZ)])
        except BpfprofError as error:
            raise pytest.UsageError(f"bpfprof: {error}" + (f"\n  {error.hint}" if error.hint else "")) from error

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of tests of this process and of workers."""
        note = getattr(report, _NOTE, None)
        if report.failed:
            self._failed.add(report.nodeid)
        if report.skipped and not hasattr(report, "wasxfail"):
            self._skipped.add(report.nodeid)
        if note is not None and report.when == "teardown" and report.nodeid not in self._skipped:
            self.tests.append((report.nodeid, note, report.nodeid not in self._failed))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Ends the recording and reads it. The exit status is that of tests that failed, if some did."""
        if self._recorder is None:
            return
        from bpfprof.pytest_plugin.outcome import outcome_of

        status = 0
        try:
            try:
                self._recorder.stop()
            finally:  # what could be recorded is shown all the same
                self._outcome = outcome_of(self._recorder.path, self.tests, self._asked, _RATE_HZ)
                status = self._outcome.status
        except BpfprofError as error:
            self._error, status = error, error.exit_code
        finally:
            self._folder.cleanup()
        if status and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = status

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table."""
        if self._outcome is None and self._error is None:
            return
        terminalreporter.section("bpfprof: where the time of the tests went")
        if self._outcome is not None:
            for line in self._outcome.lines(getattr(terminalreporter._tw, "fullwidth", 80)):
                terminalreporter.write_line(line)
        if self._error is not None:
            terminalreporter.write_line(f"bpfprof: {self._error}", red=True)
            if self._error.hint:
                terminalreporter.write_line(f"  {self._error.hint}")
