"""What a program that a test starts begins with, however the tests were started: it depends on nothing of that."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.recorded import Target, completed, running

TELLS = """import json, os, sys, tempfile
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
told = {"session": os.getsid(0), "pid": os.getpid(), "ignored": status["SigIgn"].strip(), "folder": os.getcwd()}
told.update(temporary=tempfile.gettempdir(), home=os.path.expanduser("~"))
try:
    os.close(os.open("/dev/tty", os.O_RDWR))
    told["has_terminal"] = True
except OSError:
    told["has_terminal"] = False
print(json.dumps(told), flush=True)
if os.fork() == 0:  # it goes on for as long as nobody ends it
    os.read(os.pipe()[0], 1)
sys.stdin.read()
"""
COMMAND = sys.executable, "-S", "-c", TELLS
SIGNALS_OF_A_SHELL = 0b111  # SIGHUP, SIGINT, SIGQUIT: what nohup and `&` leave ignored


def told_by(target: Target) -> dict[str, Any]:
    return dict(json.loads(target.first_line))


def assert_own_session(told: dict[str, Any]) -> None:
    assert told["session"] == told["pid"] and not told["has_terminal"]
    assert not int(told["ignored"], 16) & SIGNALS_OF_A_SHELL


def test_programs_have_sessions_and_folders_of_their_own() -> None:
    with ExitStack() as stack:
        targets = [stack.enter_context(running(*COMMAND)) for _ in range(2)]
        told = [told_by(target) for target in targets]
        groups = [target.pid for target in targets]
    for each in told:
        assert_own_session(each)
        assert each["folder"] == each["temporary"] == each["home"] and not Path(each["folder"]).exists()
    assert told[0]["folder"] != told[1]["folder"]
    for group in groups:  # what it forked ended, too
        with pytest.raises(ProcessLookupError):
            while True:
                os.killpg(group, 0)


def test_a_folder_that_a_test_gave_stays(tmp_path: Path) -> None:
    with running(*COMMAND, folder=tmp_path) as target:
        assert told_by(target)["folder"] == str(tmp_path)
    assert tmp_path.exists()


def test_a_command_has_a_session_and_the_folder_of_this_run() -> None:
    told = json.loads(completed([sys.executable, "-S", "-c", TELLS.partition("if os.fork")[0]], 0).stdout)
    assert_own_session(told)
    assert told["temporary"] == os.environ["TMPDIR"] != "/tmp"
