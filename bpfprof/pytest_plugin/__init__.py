"""`pytest --bpfprof`: its options. Without one of them nothing of it is imported but this. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import pytest

_OPTIONS = {
    "--bpfprof-output": (
        "FILE",
        "file to write: what each test took (.json), the recording (.bpfprof), a page (.html) ...",
    ),
    "--bpfprof-base": ("FILE", "compare with the .json of an earlier run; may be repeated, for several runs"),
    "--bpfprof-fail-over": ("PERCENT", "exit with 6 where a test got slower than in the base by more"),
    "--bpfprof-top": ("N", "tests that are shown, those that took longest (default: 10)"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Each of them asks for a recording."""
    group = parser.getgroup("bpfprof", "where the time of tests goes (bpfprof)")
    group.addoption("--bpfprof", action="store_true", help="record the tests, and say of each what bounds it")
    kinds = {"--bpfprof-fail-over": float, "--bpfprof-top": int}
    for name, (metavar, text) in _OPTIONS.items():
        action = "append" if name == "--bpfprof-base" else "store"
        more = {"type": kinds[name]} if name in kinds else {}
        group.addoption(name, action=action, metavar=metavar, help=text, **more)


def pytest_configure(config: pytest.Config) -> None:
    """Registers what records and reports, if it was asked for."""
    asked = [config.getoption(name.lstrip("-").replace("-", "_")) is not None for name in _OPTIONS]
    if (config.getoption("bpfprof") or any(asked)) and not config.getoption("collectonly", False):
        from bpfprof.pytest_plugin.session import make_plugin

        config.pluginmanager.register(make_plugin(config), "bpfprof-session")
