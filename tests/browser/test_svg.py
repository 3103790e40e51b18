"""The flame graph, an SVG, opened and used in headless Chromium (svg.mjs)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bpfprof.model.profile import Profile
from bpfprof.render.flamegraph import render_flamegraph
from bpfprof.render.formats import RenderOptions
from tests.browser.many import deep_service, many_threads
from tests.unit.render.profiles import deep_profile, empty_profile, hostile_profile, training_profile

BROWSER_TESTS = Path(__file__).parent
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None or shutil.which("node") is None, reason="no chromium, or no node"),
    pytest.mark.skipif(
        not (BROWSER_TESTS / "node_modules" / "playwright-core").is_dir(),
        reason="tests/browser/node_modules is absent: npm install --no-audit --no-fund --prefix tests/browser",
    ),
]


def drawn(profile: Profile) -> str:
    return render_flamegraph(profile, RenderOptions(merge="none"))


def problems(folder: Path, *cases: tuple[str, str, str]) -> list[str]:
    """What svg.mjs found; [] if all is well. cases: (kind, SVG, what is wanted). Its figures are printed."""
    command = ["node", str(BROWSER_TESTS / "svg.mjs"), str(CHROMIUM)]
    for number, (kind, svg, wanted) in enumerate(cases):
        file = folder / f"{number}.svg"
        file.write_text(svg, encoding="utf-8")
        command += [kind, str(file), wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout.strip().split("\n")
    print(*[line for line in said if line.startswith("#")], sep="\n")
    lines = [line for line in said if not line.startswith("#")]
    assert (done.returncode == 0) == (lines == ["ok"]), f"the checker itself failed: {done.stdout}{done.stderr}"
    return [] if lines == ["ok"] else lines


def test_svg_is_searched_zoomed_chosen_from_and_copied(tmp_path: Path) -> None:
    assert problems(tmp_path, ("use", drawn(training_profile()), "Trainer.step (model.py:17)")) == []


def test_a_click_on_any_frame_of_a_deep_stack_shows_it_and_its_waits(tmp_path: Path) -> None:
    branching = drawn(deep_service(50, has_branches=True))
    cases = ("deep", drawn(deep_service(50)), ""), ("deep", branching, ""), ("deep-phone", branching, "")
    assert problems(tmp_path, *cases) == []


def test_the_hottest_leaf_of_every_thread_is_drawn(tmp_path: Path) -> None:
    assert problems(tmp_path, ("threads", drawn(many_threads(65)), "65")) == []


def test_svg_is_read_by_everybody_and_everywhere(tmp_path: Path) -> None:
    """Contrast of each text, light and dark; no text over another or cut, also 360 px wide; paper."""
    profiles = (training_profile(), deep_service(50), many_threads(65))
    assert problems(tmp_path, *[("look", drawn(profile), "") for profile in profiles]) == []


def test_odd_svgs_open_without_an_error(tmp_path: Path) -> None:
    odd = (hostile_profile(), deep_profile(), empty_profile())
    assert problems(tmp_path, *[("opens", drawn(profile), "") for profile in odd]) == []


def test_checker_refuses_a_damaged_svg(tmp_path: Path) -> None:
    svg = drawn(training_profile())
    assert "the SVG is not well-formed" in problems(tmp_path, ("opens", svg[: len(svg) // 2], ""))
    thrown = svg.replace("const graph = new Graph();", 'throw new Error("on purpose");')
    loading = svg.replace('<rect id="page"', '<image href="http://127.0.0.1:9/x.png"/><rect id="page"')
    found = problems(tmp_path, ("opens", thrown, ""), ("opens", loading, ""))
    assert any("on purpose" in it for it in found) and any("asked for" in it for it in found)
