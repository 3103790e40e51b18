"""Names of threads or tasks that differ by their numbers -> one name."""

from __future__ import annotations

import re
from collections.abc import Sequence

_DIGITS = re.compile(r"\d+")


def role_name(name: str) -> str:
    """What names of threads of one role have in common: `worker_#`."""
    return _DIGITS.sub("#", name)


def folded_name(names: Sequence[str]) -> str:
    """`worker_0..7`: each number from the least to the greatest; names that differ in more one after the other."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(role_name(name), []).append(name)
    if len(kinds) > 1:
        return ", ".join(map(folded_name, kinds.values()))
    numbers = [[int(number[:18]) for number in _DIGITS.findall(name)] for name in names]
    least, greatest = (list(map(best, zip(*numbers))) for best in (min, max))
    spans = iter([f"{low}" if low == high else f"{low}..{high}" for low, high in zip(least, greatest)])
    return names[0] if len(set(names)) == 1 else _DIGITS.sub(lambda _: next(spans), names[0])
