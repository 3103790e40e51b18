"""The page of `compare`: the same as the table, and that in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from bpfprof.query.steps.rank_differences import Comparison
from bpfprof.render.ranks import compare_sentence
from bpfprof.render.ranks_page import render_ranks_page
from tests.unit.query.steps.test_ranks import Ranks, compared

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
BROWSER_TESTS = Path(__file__).resolve().parents[2] / "browser"


@pytest.fixture(scope="module")
def found() -> Comparison:
    ranks = Ranks(4)
    for _ in range(10):
        ranks.step({1: "sleep"})
    return compared(ranks.made.build())


def test_it_says_what_the_table_says(found: Comparison) -> None:
    page = render_ranks_page(found, ["a note"], ["100% <complete>"])
    text = unescape(re.sub(r"<style.*?</style>|<script.*?</script>|<[^>]*>", " ", page, flags=re.DOTALL))
    assert compare_sentence(found) in text and "a note" in text and "100% <complete>" in text
    assert page.count("<polyline class='own'") == 3 and page.count("<polyline class='slow'") == 1
    (slow,) = re.findall(r"<th scope='row'>rank 1</th>(.*?)</tr>", page)
    assert re.findall(r"<td class='number'>(.*?)</td>", slow) == ["8", "65.00 ms", "60.00 ms", "5.00 ms", "100%"]
    rows = re.findall(r"<tr><th scope='row'>.*?</tr>", page)
    bars = [[float(width) for width in re.findall(r"width='([\d.]+)' height='12'/>", row)] for row in rows]
    # Of 65 ms: 60 own and 5 for the collective, the others 40 and 25; 300 px are the longest.
    assert bars == [[184.6, 115.4], [276.9, 23.1], [184.6, 115.4], [184.6, 115.4]]


def test_names_of_strangers_stay_text(found: Comparison) -> None:
    loops = tuple(
        replace(loop, recording="<img src=x onerror=alert(1)>'\"\x1b[31m", thread=replace(loop.thread, rank=""))
        for loop in found.loops
    )
    page = render_ranks_page(replace(found, loops=loops), [], [])
    assert "<img" not in page and "\x1b" not in page


def test_many_steps_are_drawn_by_the_longest_of_several() -> None:
    ranks = Ranks(2)
    for _ in range(1200):
        ranks.step({})
    page = render_ranks_page(compared(ranks.made.build()), [], [])
    assert "Own time, the longest of each 3 steps" in page
    assert all(len(points.split()) <= 500 for points in re.findall(r"points='([^']*)'", page))


@pytest.mark.second_tier
@pytest.mark.skipif(CHROMIUM is None or shutil.which("node") is None, reason="no chromium, or no node")
def test_in_a_browser(found: Comparison, tmp_path: Path) -> None:
    """Light, dark and 360 px wide; no serious fault for axe-core."""
    file = tmp_path / "ranks.html"
    file.write_text(render_ranks_page(found, ["a note"], ["100% complete"]), encoding="utf-8")
    command = ["node", str(BROWSER_TESTS / "plain.mjs"), str(CHROMIUM), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "ok\n", done.stdout + done.stderr
