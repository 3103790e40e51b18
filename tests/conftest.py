"""What all tests share: the tier that each is in, and what each program that they start begins with."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import warden
from tests.looks import look, pytest_sessionfinish, pytest_terminal_summary  # noqa: F401 - pytest finds them here
from tests.tiers import GATE_FOLDERS

_HERE = Path(__file__).parent
_LONGEST_FIRST = ("test_oldest_kernel.py", "command", "integration", "kernel", "recordings", "oracles")
# In them no interpreter is started that takes long.
_WITHOUT_INTERPRETERS = ("unit", "ebpf_host", "golden")
# How tests name interpreters: "3.12", "3.13t", "pyenv-3.12.1", "debian-3.11", "sid-3.15".
_INTERPRETER = re.compile(
    r"(?<![\w.])(?:(?P<origin>pyenv|debian|system|sid)-)?3\.(?P<minor>\d+)(?:\.\d+)?(?P<build>t?)(?=[- ]|$)"
)
_ORIGINS = (None, "pyenv", "debian", "system")
# Where a checkout lies is nobody's fault: tests that run as another user say this where they are skipped.
_CLOSED_FOLDER = "closed to other users"
_WRITES_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE" in os.environ
# What `nohup`, a shell's `&` or a build server may have set to be ignored is inherited by each program that is started.
_BY_DEFAULT = (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM)


def pytest_configure(config: pytest.Config) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in _BY_DEFAULT:
        signal.signal(number, signal.SIG_DFL)
    if not hasattr(config, "workerinput"):
        warden.start()
    else:
        os.setsid()  # what comes from a terminal is for xdist's first process, and no program sees that there is one


@pytest.fixture(scope="session", autouse=True)
def own_folder_for_temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of the programs that this run starts; every user's, which pytest's own are not."""
    tmp_path_factory.getbasetemp()  # where it always is
    with tempfile.TemporaryDirectory(prefix="bpfprof-tests-") as name, pytest.MonkeyPatch.context() as patch:
        os.chmod(name, 0o1777)
        patch.setenv("TMPDIR", name)
        yield


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where the gate is asked for, a file without tests of it need not be imported."""
    is_asked = config.getoption("markexpr").lstrip("(").startswith("gate ")
    return True if is_asked and collection_path.suffix == ".py" and not _has_gate(collection_path) else None


@cache
def _has_gate(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    return path.relative_to(_HERE).parts[0] in GATE_FOLDERS or bool(re.search(r"mark\.(gate|oldest_kernel)\b", text))


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Of xdist's workers each imports a share of the files first: for the others its asserts are rewritten then.

    That takes most of a collection. What is kept of it goes at the end of a run that writes no such files otherwise.
    """
    if not hasattr(session.config, "workerinput"):
        return
    worker = session.config.workerinput
    folders = [_HERE.parent / argument for argument in session.config.args]
    paths = sorted(path for folder in folders for path in folder.glob("**/test_*.py"))
    wanted = [path for path in paths if not pytest_ignore_collect(path, session.config)]
    sys.dont_write_bytecode = False
    for path in wanted[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # said when it is its turn
            importlib.import_module(".".join(path.relative_to(_HERE.parent).with_suffix("").parts))


def pytest_collection_finish(session: pytest.Session) -> None:
    sys.dont_write_bytecode = _WRITES_NO_BYTECODE


def pytest_unconfigure(config: pytest.Config) -> None:
    if _WRITES_NO_BYTECODE and getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        for folder in [*_HERE.rglob("__pycache__")]:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what its folder puts into the gate, and what only the second tier asks of an interpreter.

    Files that run beside one another begin with those that take longest.
    """
    for item in items:
        if _folder(item) in GATE_FOLDERS:
            item.add_marker(pytest.mark.gate)
    live = [item for item in items if item.get_closest_marker("gate") and _folder(item) not in _WITHOUT_INTERPRETERS]
    for item in set(live).difference(_of_three_interpreters(live)):
        item.add_marker(pytest.mark.second_tier)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _LONGEST_FIRST.index(_folder(item)) if _folder(item) in _LONGEST_FIRST else 9)


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(_HERE).parts[0] if item.path.is_relative_to(_HERE) else ""


def _of_three_interpreters(items: list[pytest.Item]) -> list[pytest.Item]:
    """Without those that ask another than the oldest that is read, the newest, and the distribution's own.

    A test that asks none of these three is asked as it is.
    """
    found = {item: _INTERPRETER.search(item.callspec.id) for item in items if hasattr(item, "callspec")}
    minors = [int(each["minor"]) for each in found.values() if each and each["origin"] in _ORIGINS[:2]]
    ends = (min(minors), max(minors)) if minors else ()

    def is_chosen(item: pytest.Item) -> bool:
        each = found.get(item)
        if each is None or each["origin"] in _ORIGINS[2:]:
            return True
        return each["origin"] in _ORIGINS[:2] and int(each["minor"]) in ends and not each["build"]

    asked = {item.nodeid.partition("[")[0] for item in items if is_chosen(item)}
    return [item for item in items if is_chosen(item) or item.nodeid.partition("[")[0] not in asked]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where all that the gate needs has to be there, a test that is skipped has failed."""
    report = yield
    is_strict = os.environ.get("BPFPROF_TESTS") == "strict"
    if is_strict and report.skipped and not hasattr(report, "wasxfail") and _CLOSED_FOLDER not in str(report.longrepr):
        report.outcome, report.longrepr = "failed", f"skipped: {report.longrepr}"
    return report
