"""What `doctor` makes of findings: lines, verdict and exit code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bpfprof.commands import doctor as module
from bpfprof.errors import UnsupportedError
from bpfprof.kernel.checks import Finding
from tests.unit.commands.command import run

FINE = ("BCC", Finding("0.26 with LLVM 14", figures="/usr/lib"))
LESS = ("counters", Finding("", "none here", "buy some"))
LESS_TOO = ("cache", Finding("", "cannot be written", "buy some"))
GONE = ("machine", UnsupportedError("bpfprof does not know vax", "buy another"))
Findings = tuple[tuple[str, object], ...]


@pytest.mark.parametrize(
    ("findings", "code", "lines", "verdict"),
    [
        ((FINE,), 0, ["ok", "BCC", "0.26 with LLVM 14"], "bpfprof can record here"),
        ((FINE, LESS), 0, ["limited", "none here", "fix: buy some"], "with 1 limit "),
        ((LESS, FINE, LESS_TOO), 0, ["cannot be written"], "with 2 limits "),
        ((FINE, LESS, GONE), 3, ["missing", "vax", "fix: buy another"], "recording does not work here"),
    ],
)
def test_verdict(
    findings: Findings,
    code: int,
    lines: list[str],
    verdict: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def found(_tests_itself: bool) -> Iterator[tuple[str, object]]:
        yield from findings

    monkeypatch.setattr(module, "_findings", found)
    assert run("doctor") == code
    told = capsys.readouterr()
    assert verdict in (told.out if code == 0 else told.err)
    for words in lines:
        assert words in told.out
    assert told.out.count("buy some") <= 1 and "/usr/lib" not in told.out
    run("doctor", "-v")
    assert ("/usr/lib" in capsys.readouterr().out) == (FINE in findings)


def test_what_does_not_depend_on_the_kernel_side_is_told_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without privilege everything behind it would fail with the same words."""

    def lacking() -> Finding:
        raise UnsupportedError("CAP_BPF", "sudo")

    monkeypatch.setattr(module, "_HOST", (("machine", lambda: FINE[1]), ("privilege", lacking)))
    assert run("doctor") == 3
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:] if line.strip()] == [
        "ok",
        "missing",
        "fix:",
    ]
