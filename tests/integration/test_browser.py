"""The speedscope file, opened and used in headless Chromium (tests/browser/check.mjs)."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest

from bpfprof.render.formats import RenderOptions
from bpfprof.render.speedscope import render_speedscope
from tests.unit.render.profiles import deep_profile, hostile_profile, training_profile

BROWSER_TESTS = Path(__file__).parents[1] / "browser"
NODE_MODULES = BROWSER_TESTS / "node_modules"
SCHEMA = NODE_MODULES / "speedscope" / "dist" / "release" / "file-format-schema.json"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium"),
    pytest.mark.skipif(shutil.which("node") is None, reason="no node"),
    pytest.mark.skipif(
        not (NODE_MODULES / "playwright-core").is_dir() or not SCHEMA.is_file(),
        reason="tests/browser/node_modules is absent: npm install --no-audit --no-fund --prefix tests/browser",
    ),
]


def problems(kind: str, file: Path, function: str = "", copy: Path | None = None) -> list[str]:
    """What the checker found; [] if all is well. copy: where speedscope exports to what it read."""
    command = ["node", str(BROWSER_TESTS / "check.mjs"), str(CHROMIUM), kind, str(file), function]
    command += [str(copy)] if copy else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().split("\n")
    assert (done.returncode == 0) == (lines == ["ok"]), f"the checker itself failed: {done.stdout}{done.stderr}"
    return [] if lines == ["ok"] else lines


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_speedscope_lists_a_function(tmp_path: Path) -> None:
    file = written(tmp_path / "profile.speedscope.json", render_speedscope(training_profile(), RenderOptions()))
    assert problems("speedscope", file, "Trainer.step") == []


def test_speedscope_takes_hostile_names(tmp_path: Path) -> None:
    file = written(tmp_path / "profile.speedscope.json", render_speedscope(hostile_profile(), RenderOptions()))
    assert problems("speedscope", file, "ready, no CPU") == []


def test_checker_refuses_a_damaged_speedscope_file(tmp_path: Path) -> None:
    text = render_speedscope(training_profile(), RenderOptions())
    cut = written(tmp_path / "cut.speedscope.json", text[: len(text) // 2])
    assert any("Unrecognized format" in problem for problem in problems("speedscope", cut, "Trainer.step"))
    content = json.loads(text)
    content["profiles"][0]["samples"][0] = [10_000]
    dangling = written(tmp_path / "dangling.speedscope.json", json.dumps(content))
    assert problems("speedscope", dangling, "Trainer.step") != []


@pytest.mark.parametrize("profile", [training_profile, hostile_profile, deep_profile])
def test_speedscope_file_follows_the_published_schema(profile) -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    content = json.loads(render_speedscope(profile(), RenderOptions()))
    jsonschema.validate(content, schema)
    content["profiles"][0]["unit"] = "fortnights"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, schema)
