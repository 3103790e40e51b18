"""Modules of the pages that need no browser (parts.mjs)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "parts.mjs"
PARTS = re.findall(r'^  async "([^"]+)"', SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="no node")


@pytest.mark.parametrize("part", PARTS)
def test_part(part: str) -> None:
    done = subprocess.run(["node", str(SCRIPT), part], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == "ok\n", done.stderr
