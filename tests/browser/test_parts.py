"""Modules of the pages that need no browser (parts.mjs)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from bpfprof.render.columns import shortened, width
from bpfprof.render.flamegraph import render_flamegraph
from bpfprof.render.formats import RenderOptions
from bpfprof.render.page_tables import page_files
from tests.unit.render.profiles import MS, OFF_CPU, ON_CPU, ProfileBuilder, python, wait

SCRIPT = Path(__file__).parent / "parts.mjs"
PARTS = re.findall(r'^  async "([^"]+)"', SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)
LABELS = [
    "",
    "parse",
    "parser",
    "parse_all",
    "▲ parse",
    "lock …",
    "▼ 解析",
    "解析解析",
    "\uff46\uff55\uff4c\uff4c",
    "한글한",
    "µs und ß",
    "🐍🐍🐍🐍",
]


@pytest.mark.skipif(shutil.which("node") is None, reason="no node")
@pytest.mark.parametrize("part", PARTS)
def test_part(part: str) -> None:
    cases = json.dumps([(text, width(text), shortened(text, 6)) for text in LABELS])
    done = subprocess.run(["node", str(SCRIPT), part, cases], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == "ok\n", done.stderr


def test_a_path_that_could_not_be_shown_as_it_was_is_told() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    for path in ("/srv/what?.py", "/srv/a\nb.py"):
        made.spend(thread, ON_CPU, MS, [python("run", path)])
    files = page_files(made.build(), RenderOptions(), np.arange(2))
    assert [(file["path"], file["exact"]) for file in files] == [("/srv/what?.py", True), ("/srv/a?b.py", False)]


def test_what_stands_behind_a_label_is_as_wide_as_it_is() -> None:
    made = ProfileBuilder()
    made.spend(made.thread(1), OFF_CPU, MS, [python("run"), wait("解析")])
    ground = re.search(
        r'<rect class="ground [^>]* width="([\d.]+)"[^>]*/><text[^>]*>(解析 [^<]+)</text>',
        render_flamegraph(made.build(), RenderOptions()),
    )
    assert ground and float(ground[1]) == round((2 + len(ground[2])) * 6.65 + 2, 1)
