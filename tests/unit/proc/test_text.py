"""Text of a target has nothing in it that acts on a terminal or ends a line, whichever character it is."""

from __future__ import annotations

import unicodedata

import pytest

from bpfprof.proc.text import with_controls_replaced, without_controls

# By what Unicode says of them: controls (C0, DEL, C1), separators of lines and paragraphs, and what turns text around.
LOW = [chr(number) for number in range(1 << 16)]
CONTROLS = [char for char in LOW if unicodedata.category(char) in ("Cc", "Zl", "Zp")]
OVERRIDES = ["LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"]
TURNS = [char for char in LOW if unicodedata.bidirectional(char) in OVERRIDES]


def test_there_are_as_many_as_the_standard_has() -> None:
    assert (len(CONTROLS), len(TURNS)) == (32 + 33 + 2, 9)


@pytest.mark.parametrize("char", [*CONTROLS, *TURNS], ids=ascii)
def test_each_is_taken_out(char: str) -> None:
    assert without_controls(f"a{char}ü".encode()) == "aü"
    assert with_controls_replaced(f"a{char}ü") == "a\ufffdü"


@pytest.mark.parametrize("text", ["plain", "Größe", "日本", "\ud7ff", "🐍", "a b"])
def test_all_else_stays(text: str) -> None:
    assert without_controls(text.encode()) == with_controls_replaced(text) == text


def test_what_cannot_be_decoded_or_encoded_is_replaced() -> None:
    assert without_controls(b"a\xff") == with_controls_replaced("a\ud800") == "a\ufffd"
