"""Second looks, the only retry that tests have: of what may be wrong by chance, once, at three times the data.

Pytest's summary says of which tests; more than MOST_SECOND_LOOKS fail the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

Judge = Callable[[int], None]
Look = Callable[[Judge], None]
SECOND_LOOK = "second look"
MOST_SECOND_LOOKS = 4  # where each is rarer than 1 in 100, more come once in 10,000 runs


@pytest.fixture
def look(request: pytest.FixtureRequest) -> Look:
    """`look(judge)` calls judge(1), and only if that fails judge(3).

    judge(times) takes so many times the data, anew, and raises AssertionError where a figure is beyond its bar.
    """

    def look_twice(judge: Judge) -> None:
        try:
            judge(1)
        except AssertionError as error:
            request.node.user_properties.append((SECOND_LOOK, (str(error).splitlines() or [""])[0]))
            judge(3)

    return look_twice


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    looks = [*_second_looks(terminalreporter)]
    for nodeid, figure in looks:
        terminalreporter.write_line(f"{SECOND_LOOK}: {nodeid}: {figure}")
    if len(looks) > MOST_SECOND_LOOKS:
        terminalreporter.write_line(f"{len(looks)} second looks: more than {MOST_SECOND_LOOKS} are no chance")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")  # xdist's workers have none
    if reporter is not None and len([*_second_looks(reporter)]) > MOST_SECOND_LOOKS and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _second_looks(reporter: Any) -> Iterator[tuple[str, str]]:
    for report in (*reporter.stats.get("passed", ()), *reporter.stats.get("failed", ())):
        if report.when == "call":
            yield from ((report.nodeid, figure) for name, figure in report.user_properties if name == SECOND_LOOK)
