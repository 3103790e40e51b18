"""What holds for every format, and the goldens: files in tests/golden/ that a person has read.

To write them again after a wanted change: BPFPROF_UPDATE_GOLDEN=1 pytest tests/unit/render; then read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bpfprof.render.formats import FORMATS, Format, RenderOptions, find_format, format_for_suffix
from tests.unit.render.profiles import deep_profile, empty_profile, hostile_profile, training_profile, waiting_profile

GOLDEN = Path(__file__).parents[2] / "golden"
GOLDEN_NAMES = {
    "collapsed": "training.collapsed",
    "speedscope": "training.speedscope.json",
    "table": "training.table.txt",
    "tree": "training.tree.txt",
}
ALL_OPTIONS = [
    RenderOptions(),
    RenderOptions(function_only=True, full_filenames=True, title="A title"),
]


@pytest.mark.parametrize("known", FORMATS, ids=lambda known: known.name)
@pytest.mark.parametrize("profile", [training_profile, empty_profile, hostile_profile, deep_profile, waiting_profile])
@pytest.mark.parametrize("options", ALL_OPTIONS)
def test_every_format_writes_every_profile(known: Format, profile, options: RenderOptions) -> None:
    given = profile()
    content = known.render(given, options)
    assert known.render(given, options) == content
    if isinstance(content, bytes):
        return
    content.encode("utf-8")
    assert all(char.isprintable() for char in content if char != "\n")


def test_names_synonyms_and_suffixes_are_told_apart() -> None:
    names = [name for known in FORMATS for name in (known.name, *known.synonyms)]
    suffixes = [suffix for known in FORMATS for suffix in known.suffixes]
    for words in (names, suffixes):
        assert all(one != other for one, other in zip(sorted(words), sorted(words)[1:]))
        assert words == [word.lower() for word in words]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("folded", "collapsed"),
        ("raw", "collapsed"),
        ("SVG", "flamegraph"),
        ("Summary", "summary"),
        ("text", "table"),
        ("pdf", None),
    ],
)
def test_find_format(name: str, found: str | None) -> None:
    known = find_format(name)
    assert (known.name if known else None) == found


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/tmp/a.svg", "flamegraph"),
        ("a.SVG", "flamegraph"),
        ("a.html", "html"),
        ("a.txt", "collapsed"),
        ("a.folded", "collapsed"),
        ("a.speedscope.json", "speedscope"),
        ("a.json", "json"),
        ("a.pb.gz", "pprof"),
        ("a.callgrind", "callgrind"),
        ("a.pstats", "pstats"),
        ("a.csv", "csv"),
        ("a.trace.json", "chrome"),
        ("a.gecko.json", "gecko"),
        ("a.parquet", "parquet"),
        ("a.md", "markdown"),
        ("a.svg/b", None),
        ("svg", None),
    ],
)
def test_format_for_suffix(path: str, found: str | None) -> None:
    known = format_for_suffix(path)
    assert (known.name if known else None) == found


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden(name: str) -> None:
    known = find_format(name)
    assert known is not None
    content = known.render(training_profile(), RenderOptions())
    content = content if isinstance(content, str) else content.decode()
    golden = GOLDEN / GOLDEN_NAMES[name]
    if os.environ.get("BPFPROF_UPDATE_GOLDEN") == "1":
        golden.write_text(content, encoding="utf-8")
    assert golden.read_text(encoding="utf-8") == content
