"""Completion scripts: what a shell offers for what has been typed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tiers import first_in_gate
from tests.unit.commands.command import run

ASK_BASH = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _bpfprof; printf "%s\\n" "${COMPREPLY[@]}"'


def script(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The completion script in a file."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    capsys.readouterr()
    assert run("completion", shell) == 0
    path = folder / f"bpfprof.{shell}"
    path.write_text(capsys.readouterr().out)
    subprocess.run([shell, "-n", str(path)], check=True)
    return path


TYPED = [
    ("bpfprof re", {"record", "report"}, {"top", "--help"}),
    ("bpfprof --v", {"--version"}, {"record"}),
    ("bpfprof record --na", {"--native", "--native-lines"}, {"--no-native"}),
    ("bpfprof record --nonb", set(), {"--nonblocking"}),
    ("bpfprof record -f ", {"flamegraph", "collapsed"}, {"--pid"}),
    ("bpfprof record --mode w", {"wall"}, {"cpu"}),
    ("bpfprof report --reason ke", {"kernel-lock"}, {"gil"}),
    ("bpfprof top 1", {"1"}, {"2"}),
    ("bpfprof dump -p 1", {"1"}, {"2"}),
    ("bpfprof report recording", {"recording 1.bpfprof"}, {"record"}),
    ("bpfprof completion ", {"bash", "zsh", "fish"}, {"record"}),
]


def asked(shell: str, path: Path, typed: str, folder: Path) -> set[str]:
    """What the shell offers."""
    if shell == "bash":
        command = ["bash", "--norc", "-c", ASK_BASH, "bash", str(path), *typed.split(" ")]
    else:
        command = ["fish", "--no-config", "-c", f"source {path}; complete -C '{typed}'"]
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return {line.split("\t")[0].replace("\\ ", " ") for line in done.stdout.splitlines()}


@pytest.mark.parametrize("shell", first_in_gate(1, ["bash", "fish"]))
def test_what_is_offered(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script(shell, tmp_path, capsys)
    (tmp_path / "recording 1.bpfprof").touch()
    for typed, there, missing in TYPED:
        offered = asked(shell, path, typed, tmp_path)
        assert there <= offered and not missing & offered, (typed, offered)


@pytest.mark.second_tier
def test_zsh_takes_its_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = script("zsh", tmp_path, capsys).read_text()
    assert text.startswith("#compdef bpfprof\n") and "'record:Record where" in text
    assert not re.search("@[A-Z]+@", text)


def test_bash_without_bash_completion_completes_launched_commands(tmp_path: Path, capsys) -> None:
    path = script("bash", tmp_path, capsys)
    assert "bash" in asked("bash", path, "bpfprof record -- bas", tmp_path)
    assert "wall" in asked("bash", path, "bpfprof record --mode = w", tmp_path), "--mode=w, as bash takes it apart"
