"""Keys as a terminal sends them, and what each of them changes."""

from __future__ import annotations

import pytest

from bpfprof.commands.live_keys import chosen_row, pressed, typed
from bpfprof.commands.screen import keys_in
from bpfprof.render.top import TopLook

ROWS = [("f", "a.py"), ("g", "a.py"), ("h", "b.py")]


@pytest.mark.parametrize(
    ("sent", "keys", "begun"),
    [
        ("sm", ["s", "m"], ""),
        ("\x1b[B\x1b[B\x1bOA", ["down", "down", "up"], ""),  # held down: several come at once
        ("\x1b[5~\x1b[1;5Cq", ["q"], ""),  # those without a meaning are no Esc
        ("\x1bq", ["\x1b", "q"], ""),
        ("\x1b\x1b[A", ["\x1b", "up"], ""),
        ("s\x1b", ["s"], "\x1b"),
        ("\x1b[1;", [], "\x1b[1;"),
        ("計é\x7f", ["計", "é", "\x7f"], ""),
    ],
)
def test_keys_of_what_a_terminal_sends(sent: str, keys: list[str], begun: str) -> None:
    assert keys_in(sent) == (keys, begun)


def test_a_function_stays_chosen_wherever_it_is_in_the_table() -> None:
    look = pressed(pressed(TopLook(), "down", ROWS), "down", ROWS)
    assert look.chosen == ROWS[1]
    assert chosen_row(look, ROWS[::-1]) == 1 and chosen_row(look, ROWS[1:]) == 0
    assert pressed(look, "down", [ROWS[1], ROWS[0]]).chosen == ROWS[0]
    assert pressed(look, "\x1b", ROWS).chosen is None


def test_no_row_is_chosen_beyond_the_table() -> None:
    look = TopLook()
    for _ in range(10):
        look = pressed(look, "down", ROWS)
    assert look.chosen == ROWS[-1] and pressed(look, "up", ROWS).chosen == ROWS[-2]
    assert pressed(TopLook(chosen=ROWS[0]), "up", ROWS).chosen == ROWS[0]
    assert pressed(look, "down", []).chosen is None and chosen_row(look, []) == 0


def test_each_key_turns_once_around() -> None:
    for key, times in (("s", 3), ("m", 4), ("w", 2), ("t", 2), ("\t", 2), ("p", 2)):
        look, seen = TopLook(), []
        for _ in range(times):
            look = pressed(look, key, ROWS)
            seen.append(look)
        assert look == TopLook() and len(set(seen)) == times
    assert pressed(TopLook(), "x", ROWS) == TopLook()


def test_a_word_is_typed() -> None:
    look = TopLook()
    for key in ["a", "計", "up", "\x01", "b", "\x7f", "\b", "d"]:
        look = typed(look, key)
    assert look.only == "ad"
    assert typed(look, "\r").only == "ad" and typed(look, "\x1b").only == ""
    assert typed(TopLook(), "\x7f").only == ""
