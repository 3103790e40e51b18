"""A terminal that a program draws on again and again, and the keys that are pressed meanwhile."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable
from types import TracebackType
from typing import Any

from bpfprof.errors import OutputError

_ALTERNATE, _NORMAL = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # xterm's private modes 1049 and 25
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_VSUSP, _CC = termios.VSUSP, 6  # place of the control characters in what tcgetattr() returns
_ESCAPE, _CTRL_Z = "\x1b", "\x1a"
_ARROWS = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down"}  # of xterm, in both of its modes
# A control sequence (ECMA-48, 5.4), or what xterm sends for function keys; and the beginning of one.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.)")
_BEGUN = re.compile(r"\x1b(?:O|\[[0-?]*[ -/]*)?\Z")
_REST_S = 0.03  # for the rest of a sequence
_STOP_S = 0.1  # until a process that has sent itself a stop is stopped


def keys_in(text: str) -> tuple[list[str], str]:
    """(the keys, what may be the beginning of another): characters, `up` and `down`; those without a name are left out.

    Esc is one of the keys where something else than a sequence follows.
    """
    keys, at = [], 0
    while at < len(text) and not _BEGUN.match(text, at):
        found = _SEQUENCE.match(text, at)
        keys += [_ARROWS[found[0]]] if found and found[0] in _ARROWS else [] if found else [text[at]]
        at = found.end() if found else at + 1
    return keys, text[at:]


class Screen:
    """The alternate screen of standard output, and keys of standard input one by one; as it was at the end.

    on_key is called in a thread of its own, with a key of keys_in(); on_tick too, with no key for tick_s() seconds, and
    after the program was stopped by Ctrl-Z and went on.
    """

    def __init__(self, on_key: Callable[[str], None], on_tick: Callable[[], None], tick_s: Callable[[], float]) -> None:
        self.is_gone = False  # nobody is there to look at it
        self._on_key, self._on_tick, self._tick_s = on_key, on_tick, tick_s
        self._in = sys.stdin.fileno()
        self._ended_in, self._ended_out = -1, -1
        self._before: list[Any] = []
        self._lock = threading.Lock()  # of what is written
        self._is_shown = False
        self._lines: list[str] = []  # that were drawn last
        self._thread = threading.Thread(target=self._read, name="keys", daemon=True)

    def __enter__(self) -> Screen:
        self._before = termios.tcgetattr(self._in)
        self._ended_in, self._ended_out = os.pipe()
        self._show()
        self._thread.start()
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None):  # type: ignore[no-untyped-def]
        os.close(self._ended_out)
        self._thread.join()
        os.close(self._ended_in)
        self._leave()

    def draw(self, lines: list[str], only_changed: bool = False) -> None:
        """Shows these lines from the top, and nothing else.

        only_changed: as many were shown before; those that are the same stay, if nobody else wrote there.
        """
        with self._lock:
            before, self._lines = self._lines, lines
            if not self._is_shown:
                return
            if only_changed and len(before) == len(lines):
                changed = (place for place, line in enumerate(lines) if line != before[place])
                self._write("".join(f"\x1b[{place + 1}H{lines[place]}{_END_OF_LINE}" for place in changed))
            else:
                self._write(_HOME + f"{_END_OF_LINE}\r\n".join(lines) + _END_OF_LINE + _END_OF_SCREEN)

    def _show(self) -> None:
        tty.setcbreak(self._in)
        mode = termios.tcgetattr(self._in)
        mode[_CC][_VSUSP] = b"\0"  # Ctrl-Z comes as a key, as it must not leave the terminal as it is now
        termios.tcsetattr(self._in, termios.TCSADRAIN, mode)
        with self._lock:
            self._write(_ALTERNATE)
            self._is_shown = True

    def _leave(self) -> None:
        with self._lock:
            self._is_shown, self._lines = False, []
            self._write(_NORMAL)
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._before)

    def _stop(self) -> None:
        """Does what Ctrl-Z does elsewhere, and goes on when the shell says so."""
        self._leave()
        os.killpg(os.getpgrp(), signal.SIGTSTP)
        time.sleep(_STOP_S)
        self._show()
        self._on_tick()

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OutputError:
            self.is_gone = True

    def _read(self) -> None:
        decoder, begun = codecs.getincrementaldecoder("utf-8")("ignore"), ""
        while True:
            ready, _, _ = select.select([self._in, self._ended_in], [], [], _REST_S if begun else self._tick_s())
            if self._ended_in in ready:
                return
            if ready:
                try:
                    data = os.read(self._in, 1024)
                except OSError:
                    data = b""
                if not data:
                    self.is_gone = True
                    return
                keys, begun = keys_in(begun + decoder.decode(data))
            else:
                keys = [_ESCAPE] if begun == _ESCAPE else []
                if not begun:
                    self._on_tick()
                begun = ""
            for key in keys:
                self._stop() if key == _CTRL_Z else self._on_key(key)
