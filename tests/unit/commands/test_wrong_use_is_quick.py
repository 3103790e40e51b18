"""Wrong use of a command that records is said before anything large is imported, and nothing is loaded for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

WRONG = (
    ("record", "--nosuch"),
    ("record", "--pid", "x"),
    ("record", "--pid", "1", "--rate", "many"),
    ("record",),
    ("record", "--pid", "1", "--open"),
    ("record", "--pid", "1", "-f", "nosuch"),
    ("record", "--pid", "1", "-o", "x.png"),
    ("record", "--pid", "1", "--cpu", "--offcpu"),
    ("record", "--pid", "1", "--phase", "nothing"),
    ("record", "--pid", "1", "--cuda", "--no-native"),
    ("record", "--pid", "1", "--push", "http://127.0.0.1", "-o", "x.svg"),
    ("offcpu", "--by", "nosuch"),
    ("offcpu",),
    ("top", "--delay", "never"),
    ("top",),
    ("dump",),
)


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_nothing_large_is_imported(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "bpfprof", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
    assert done.returncode == 2
    lines = [line.split() for line in done.stderr.splitlines() if line.startswith("import time:")]
    imported = {line[-1] for line in lines}
    assert "click" in imported and "bpfprof: " in done.stderr
    assert not imported & {"numpy", "bcc", "bpfprof.capture.watch", "bpfprof.capture.now", "bpfprof.commands.recording"}
