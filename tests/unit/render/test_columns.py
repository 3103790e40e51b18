"""What stands in columns of a terminal: each text takes as many as are counted, whatever it is written in."""

from __future__ import annotations

import pytest

from bpfprof.render.columns import cut_left, padded, shortened, width

TEXTS = [
    "plain_function",
    "計算する関数名",
    "e\u0301te\u0301_compte\u0301_de_tout",
    "👩\u200d👩\u200d👧 family of three",
    "ㅎㅏ한글이름이다",
]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("abc", 3),
        ("計算", 4),
        ("e\u0301te\u0301", 3),
        ("👩\u200d👩\u200d👧", 2),
        ("\u1112\u1161\u11ab", 2),  # one syllable of Hangul as three letters
        ("\ufeffa\u200bb", 2),
    ],
)
def test_accents_and_joined_pictures_take_no_column(text: str, columns: int) -> None:
    assert width(text) == columns


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("columns", range(1, 30))
def test_what_is_cut_fits(text: str, columns: int) -> None:
    for cut in (shortened(text, columns), cut_left(text, columns)):
        assert width(cut) <= columns and width(padded(cut, columns)) == columns
        assert cut == text or (width(text) > columns and width(cut) >= columns - 1)
    assert text.startswith(shortened(text, columns).removesuffix("…"))
    assert text.endswith(cut_left(text, columns).removeprefix("…"))


def test_an_accent_never_stands_on_the_mark_of_a_cut() -> None:
    assert cut_left("abe\u0301cd", 3) == "…cd"
    assert cut_left("abe\u0301cd", 4) == "…e\u0301cd"


def test_long_names_are_cut_at_once() -> None:
    assert cut_left("計" * 100_000, 20) == "…" + "計" * 9 and shortened("計" * 100_000, 20) == "計" * 9 + "…"
