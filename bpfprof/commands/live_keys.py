"""A key and what was chosen before -> what is chosen now. Pure: it knows neither the terminal nor the recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bpfprof.query.answer.moment import Key
from bpfprof.render.top import MODES, SORTS, TopLook

ESCAPE, ENTER, _ERASE = "\x1b", ("\r", "\n"), ("\x7f", "\b")


def pressed(look: TopLook, key: str, rows: Sequence[Key]) -> TopLook:
    """What a key changes of what is shown. rows: the functions of the table, in its order."""
    changed: dict[str, dict[str, Any]] = {
        "s": {"sort": _next(SORTS, look.sort)},
        "m": {"mode": _next(MODES, look.mode)},
        "w": {"since_start": not look.since_start},
        "t": {"threads": not look.threads},
        "\t": {"threads": not look.threads},
        "p": {"is_paused": not look.is_paused},
        ESCAPE: {"only": "", "chosen": None},
    }
    if key in ("up", "down"):
        return replace(look, chosen=_moved(look.chosen, 1 if key == "down" else -1, rows))
    return replace(look, **changed.get(key, {}))


def typed(look: TopLook, key: str) -> TopLook:
    """What a key adds to the word that functions are to have, or takes from it."""
    if key == ESCAPE:
        return replace(look, only="")
    if key in _ERASE:
        return replace(look, only=look.only[:-1])
    return replace(look, only=look.only + key) if len(key) == 1 and key.isprintable() else look


def chosen_row(look: TopLook, rows: Sequence[Key]) -> int:
    """The place of the chosen function, of the first if none of those that are shown is chosen."""
    return rows.index(look.chosen) if look.chosen in rows else 0


def _moved(chosen: Key | None, by: int, rows: Sequence[Key]) -> Key | None:
    if not rows:
        return None
    place = rows.index(chosen) + by if chosen in rows else 0
    return rows[min(max(place, 0), len(rows) - 1)]


def _next(values: tuple[str, ...], value: str) -> str:
    return values[(values.index(value) + 1) % len(values)]
