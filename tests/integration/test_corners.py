"""Greenlets, sub-interpreters and generators that know what they do: stacks are whole and true, or marked.

A few of the programs of `python -m tests.oracles corners`, of which each has the functions it may be seen in.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.integration.recorded import ALL_INTERPRETERS, needs_root
from tests.oracles.corners import commands_of, recorded

CHOSEN = [name for name in ("3.13", "sid-3.15") if name in ALL_INTERPRETERS]
KINDS = ("greenlets:in_callbacks", "greenlets:nested", "greenlets:reborn", "interpreters:nested")
KINDS += ("interpreters:from_callback", "interpreters:generators")
pytestmark = needs_root


@pytest.mark.parametrize("version", CHOSEN)
def test_stacks_are_true_or_marked(version: str, tmp_path: Path) -> None:
    """What is marked are moments in which a greenlet is switched, some percent where nothing else is done."""
    scores = recorded(tmp_path / "x.bpfprof", commands_of(version, KINDS), 1).values()
    total = sum(score.cpu_us + score.wait_us for score in scores)
    wrong = Counter({text: us for score in scores for text, us in score.wrong.items()})
    assert total > 300_000  # microseconds; a busy machine leaves the programs on the run queue
    assert sum(wrong.values()) < 0.005 * total, wrong.most_common(3)
    assert sum(score.true_cpu_us + score.true_wait_us for score in scores) > 0.95 * total
