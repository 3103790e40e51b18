"""The command line as a whole."""

from __future__ import annotations

import pytest

from tests.unit.commands.command import run


@pytest.mark.parametrize(("typed", "meant"), [("recrod", "record"), ("Report", "report"), ("dmp", "dump")])
def test_a_misspelt_command_is_answered_with_the_nearest(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(typed, "x") == 2
    assert f"Did you mean {meant}?" in capsys.readouterr().err


def test_one_like_no_other_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("xyz") == 2
    assert "No such command 'xyz'" in capsys.readouterr().err
