"""Which format a command writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfprof.capture.options import CaptureOptions
from bpfprof.commands.capture_options import with_pid
from bpfprof.commands.options import Shown
from bpfprof.errors import UsageError
from bpfprof.model.ids import Pid
from bpfprof.render.formats import FORMATS, Format


def choose_format(name: str | None, output: Path | None) -> Format | None:
    return Shown(output, name, show_interpreter=False).format()


def test_every_name_synonym_and_suffix() -> None:
    for form in FORMATS:
        for name in (form.name, *form.synonyms, form.name.upper()):
            assert choose_format(name, None) is form and choose_format(name, Path("out.bpfprof")) is form
        for suffix in form.suffixes:
            assert choose_format(None, Path(f"a.b{suffix}")) is form


def test_a_recording_when_nothing_else_is_said() -> None:
    assert choose_format(None, None) is None and choose_format(None, Path("out.bpfprof")) is None
    assert choose_format("bpfprof", Path("out.svg")) is None and choose_format("Recording", None) is None


def test_the_name_wins_over_the_suffix() -> None:
    chosen = choose_format("collapsed", Path("out.svg"))
    assert chosen is not None and chosen.name == "collapsed"


@pytest.mark.parametrize(
    ("name", "output"), [("jpeg", None), ("", None), (None, "out.xyz"), (None, "out"), (None, ".svg.")]
)
def test_what_is_not_known_is_refused_with_what_is(name: str | None, output: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        choose_format(name, Path(output) if output is not None else None)
    assert caught.value.exit_code == 2
    assert all(form.name in caught.value.hint for form in FORMATS)


def test_a_number_alone_is_a_process() -> None:
    assert with_pid(CaptureOptions(), ("5220",)) == (CaptureOptions(pids=(Pid(5220),)), ())
    assert with_pid(CaptureOptions(pids=(Pid(7),)), ("5220",))[0].pids == (7, 5220)
    for command in ((), ("5220", "7"), ("python",), ("\u0665",)):
        assert with_pid(CaptureOptions(), command) == (CaptureOptions(), command)
