"""Stacks of greenlets: each is whole, ends where its greenlet begins, and has no frame of another one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import packages
from tests.integration.recorded import ALL_INTERPRETERS, Folded, bpfprof, collapsed, needs_root, program, running

# One version of each kind of frames; there are no wheels for 3.6 and 3.7.
KINDS = [("3.8", ""), ("3.11", ""), ("3.13", ""), ("sid-3.15", "")]
KINDS += [("3.10", "--gevent"), ("3.12", "--gevent"), ("3.13", "--eventlet")]
KINDS = [(name, option) for name, option in KINDS if name in ALL_INTERPRETERS]
PACKAGE = {"": "greenlet", "--gevent": "gevent", "--eventlet": "eventlet"}
pytestmark = [
    needs_root,
    pytest.mark.skipif(not KINDS, reason="no CPython 3.8 to 3.15 under ~/.pyenv/versions or /usr/bin"),
]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: "".join(kind))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    name, option = request.param
    environment = {"PYTHONPATH": packages.folder(name.rpartition("-")[2], PACKAGE[option])}
    path = tmp_path_factory.mktemp("greenlets") / "greenlets.bpfprof"
    with running(ALL_INTERPRETERS[name], program("greenlets.py"), *filter(None, [option]), env=environment) as target:
        bpfprof("record", "-p", target.pid, "-d", 1, "-r", 999, "-o", path)
    yield path


def bodies(folded: Folded) -> Iterator[tuple[str, ...]]:
    """Stacks in which some greenlet's own function is."""
    for _, _, frames, _ in folded.lines:
        if any(re.match(r"(?:body|burn|pause)_\d", frame) for frame in frames):
            yield frames


def test_they_are_whole(path: Path) -> None:
    quality = bpfprof("report", path, "--details").stdout
    complete = re.search(r"stacks ([\d.]+)% complete", " ".join(quality.split()))
    assert complete and float(complete[1]) >= 98, quality


def test_none_has_frames_of_two(path: Path) -> None:
    numbers = [
        {found[1] for frame in frames if (found := re.match(r"(?:body|burn|pause)_(\d)", frame))}
        for frames in bodies(collapsed(path))
    ]
    assert numbers and all(len(each) == 1 for each in numbers)
    assert len(set.union(*numbers)) == 6


def test_each_begins_where_its_greenlet_does(path: Path) -> None:
    """And Python's order is true: the body calls, what it calls burns or waits."""
    for frames in bodies(collapsed(path)):
        if frames[0].startswith("[truncated"):
            continue
        assert "inner_bootstrap" in frames[0] and sum("bootstrap" in frame for frame in frames) == 1, frames
        own = [frame.split("_")[0] for frame in frames if re.match(r"(?:body|burn|pause)_\d", frame)]
        assert own in (["body"], ["body", "burn"]) or (own[0] == "body" and set(own[1:]) == {"pause"}), frames
