"""Which of the tests are in the gate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from tests import sid

# All of their tests are, but for what is marked `second_tier`; elsewhere it is what is marked `gate`.
GATE_FOLDERS = ("unit", "ebpf_host", "golden", "oracles", "command")


def first_in_gate(count: int, cases: Sequence[Any]) -> list[Any]:
    """Cases for parametrize(): of several that ask the same the first are in the gate, all in the second tier."""

    def in_second_tier(case: Any) -> Any:
        values = case if isinstance(case, tuple) else (case,)
        return pytest.param(*values, marks=pytest.mark.second_tier)

    return [*cases[:count], *map(in_second_tier, cases[count:])]


def by_version(versions: Iterable[tuple[int, int]]) -> list[Any]:
    """Versions of CPython for a fixture's params; a new machine has none that only Debian sid has."""
    names = {version: ".".join(map(str, version)) for version in versions}
    return [
        pytest.param(version, id=name, marks=[pytest.mark.second_tier] if name in sid.VERSIONS else [])
        for version, name in names.items()
    ]
