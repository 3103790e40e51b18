"""Which of the tests are in the gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

# All of their tests are, but for what is marked `second_tier`; elsewhere it is what is marked `gate`.
GATE_FOLDERS = ("unit", "ebpf_host", "golden", "oracles", "command")


def first_in_gate(count: int, cases: Sequence[Any]) -> list[Any]:
    """Cases for parametrize(): of several that ask the same the first are in the gate, all in the second tier."""

    def in_second_tier(case: Any) -> Any:
        values = case if isinstance(case, tuple) else (case,)
        return pytest.param(*values, marks=pytest.mark.second_tier)

    return [*cases[:count], *map(in_second_tier, cases[count:])]
