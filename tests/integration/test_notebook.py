"""`%%bpfprof` in a kernel of Jupyter: what a notebook shows of a cell whose answer is known."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.recorded import NOBODY, ROOT, needs_root
from tests.unit.render.unpacked import unpacked

pytestmark = needs_root

BURN = """\
import time
def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(100))
"""
AS_NOBODY = f"import os\nos.setgroups([]); os.setresgid(*3 * [{NOBODY}]); os.setresuid(*3 * [{NOBODY}])"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NODE_MODULES = ROOT / "tests" / "browser" / "node_modules" / "playwright-core"


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Any]]:
    """The outputs of the cell with this text; all ran one after the other in one kernel."""
    svg = tmp_path_factory.mktemp("notebook") / "a cell.svg"
    texts = {
        "load": "%load_ext bpfprof",
        "defined": BURN,
        "recorded": "%%bpfprof -r 400\ntime.sleep(0.4)\nburn(0.1)\nprint('said')\n6 * 7",
        "failed": "%%bpfprof\ntime.sleep(0.3)\n1 / 0",
        "statement": f'done = 1\n%bpfprof -o "{svg}" -f flamegraph time.sleep(0.3)',
        "text": "%bpfprof -f tree time.sleep(0.3)",
        "wrong": "%%bpfprof --pid 1\nprint('ran')",
        "awaits": "%%bpfprof\nawait nothing()",
        "unprivileged": f"{AS_NOBODY}",
        "refused": "%%bpfprof\nprint('ran')",
    }
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in texts.values()])
    NotebookClient(book, timeout=500, startup_timeout=300, allow_errors=True, kernel_name="python3").execute()
    assert "<svg" in svg.read_text()[:500]
    outputs = dict(zip(texts, (cell.outputs for cell in book.cells)))
    return lambda name: list(outputs[name])


def shown(outputs: list[Any]) -> dict[str, str]:
    """What the magic has displayed."""
    (found,) = [output.data for output in outputs if output.output_type == "display_data"]
    return dict(found)


def said(outputs: list[Any]) -> str:
    return "".join(output.text for output in outputs if output.output_type == "stream")


def test_a_cell_is_recorded_and_its_lines_are_named(cells: Callable[[str], list[Any]], tmp_path: Path) -> None:
    outputs = cells("recorded")
    assert said(outputs) == "said\n"
    assert [output.data["text/plain"] for output in outputs if output.output_type == "execute_result"] == ["42"]
    text, page = shown(outputs)["text/plain"], shown(outputs)["text/html"]
    assert "In [3]:2" in text and "In [2]:" in text  # time.sleep(), and burn() of another cell
    assert "/ipykernel_" not in text and "1 thread\n" in text
    assert re.search(r"quality: (100\.00|99\.\d\d)%", text)  # the kernel leaves out a switch at times
    assert "In [3]: " in page and 'sandbox="allow-scripts"' in page
    if CHROMIUM is None or not NODE_MODULES.is_dir():
        pytest.skip("no chromium, or tests/browser/node_modules is absent")
    file = tmp_path / "output.html"
    file.write_text(page)
    command = ["node", str(ROOT / "tests" / "browser" / "cell.mjs"), CHROMIUM, str(file)]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stdout == "ok\n"


def test_the_page_has_the_source_of_cells(cells: Callable[[str], list[Any]]) -> None:
    found = re.search(r'srcdoc="([^"]*)"', shown(cells("recorded"))["text/html"])
    assert found is not None
    head = json.dumps(unpacked(html.unescape(found[1]))[0])
    assert "burn(0.1)" in head and "sum(range(100))" in head


def test_a_cell_that_fails_shows_its_error_and_where_its_time_went(cells: Callable[[str], list[Any]]) -> None:
    outputs = cells("failed")
    (error,) = [output for output in outputs if output.output_type == "error"]
    trace = "\n".join(error.traceback)
    assert error.ename == "ZeroDivisionError" and "magic.py" not in trace and "line 3" in trace
    text = shown(outputs)["text/plain"]
    row = re.search(r"<module> +In \[4\]:2 .*", text)  # with a column of what it was ready, if it was for long
    assert row and any(float(seconds) >= 0.3 for seconds in re.findall(r" (\d+\.\d+)", row[0])), text


def test_a_statement_has_the_line_that_it_stands_in(cells: Callable[[str], list[Any]]) -> None:
    text = shown(cells("statement"))["text/plain"]
    assert "In [5]:2" in text and "a cell.svg" in text
    tree = shown(cells("text"))
    assert "In [6]:1" in tree["text/plain"] and "waiting: sleep" in tree["text/plain"] and "text/html" not in tree


@pytest.mark.parametrize(
    ("name", "words"),
    [("wrong", "--pid means nothing here"), ("awaits", "cells with await"), ("refused", "recording needs root")],
)
def test_what_cannot_be_recorded_is_said_and_does_not_run(
    cells: Callable[[str], list[Any]], name: str, words: str
) -> None:
    outputs = cells(name)
    assert words in said(outputs) and "ran" not in said(outputs).split()
    assert not [output for output in outputs if output.output_type == "error"]
