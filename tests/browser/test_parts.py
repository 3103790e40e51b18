"""Modules of the pages that need no browser (parts.mjs)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from bpfprof.render.formats import RenderOptions
from bpfprof.render.page_tables import page_files
from tests.unit.render.profiles import MS, ON_CPU, ProfileBuilder, python

SCRIPT = Path(__file__).parent / "parts.mjs"
PARTS = re.findall(r'^  async "([^"]+)"', SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.skipif(shutil.which("node") is None, reason="no node")
@pytest.mark.parametrize("part", PARTS)
def test_part(part: str) -> None:
    done = subprocess.run(["node", str(SCRIPT), part], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == "ok\n", done.stderr


def test_a_path_that_could_not_be_shown_as_it_was_is_told() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    for path in ("/srv/what?.py", "/srv/a\nb.py"):
        made.spend(thread, ON_CPU, MS, [python("run", path)])
    files = page_files(made.build(), RenderOptions(), np.arange(2))
    assert [(file["path"], file["exact"]) for file in files] == [("/srv/what?.py", True), ("/srv/a?b.py", False)]
