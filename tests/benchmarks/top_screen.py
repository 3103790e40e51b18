"""`top` on a terminal beside two busy programs, as root: its clock, its keys, and its own CPU time.

top_screen.py [PROGRAM]: what of tests/programs is watched, lock_service.py by default. Figures: seconds between two
clocks that are shown, seconds from a key to another screen, and the CPU time of bpfprof in parts of one CPU.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import statistics
import struct
import sys
import termios
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pyte

from tests.integration.recorded import BPFPROF, program, running

_COLUMNS, _ROWS = 100, 30
_STARTS_S, _LOOKED_S, _KEYS = 5, 30, "smwtsmwthxsmmmwwttss"  # x ends the help
_CLOCK = re.compile(r" (\d\d):(\d\d) ")


class Terminal:
    def __init__(self, command: list[str]) -> None:
        self.pid, self._fd = pty.fork()
        if not self.pid:
            os.execvp(command[0], command)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        self._screen = pyte.Screen(_COLUMNS, _ROWS)
        self._stream = pyte.ByteStream(self._screen)

    def read(self, timeout_s: float) -> str:
        """The screen after what has come meanwhile."""
        if select.select([self._fd], [], [], timeout_s)[0]:
            self._stream.feed(os.read(self._fd, 1 << 16))
        return "\n".join(self._screen.display)

    def press(self, key: str) -> float:
        """Seconds until anything but a figure is another one."""
        before, begin_s = shape(self.read(0)), time.monotonic()
        os.write(self._fd, key.encode())
        while shape(self.read(0.01)) == before and time.monotonic() - begin_s < 15:
            pass
        return time.monotonic() - begin_s

    def end(self) -> None:
        os.write(self._fd, b"q")
        os.waitpid(self.pid, 0)


def cpu_s(pid: int) -> float:
    """Of all its threads."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def shape(screen: str) -> str:
    """What a key changes, and no second does: the first words of lines."""
    return "\n".join(
        [line[:8] if number > 3 else "" for number, line in enumerate(screen.split("\n"))][:-2]
        + screen.split("\n")[-2:-1]
    )


def main() -> None:
    command = [program(sys.argv[1] if sys.argv[1:] else "lock_service.py")]
    with ExitStack() as stack:
        watched = stack.enter_context(running(sys.executable, *command, env=dict(os.environ)))
        for _ in range(2):
            stack.enter_context(running(sys.executable, program("bounds.py"), "python"))
        terminal = Terminal([*BPFPROF, "top", str(watched.pid)])
        clocks: list[float] = []
        last, begin_s = "", time.monotonic()
        begun = begin_s, 0.0
        while time.monotonic() - begin_s < _STARTS_S + _LOOKED_S:
            if time.monotonic() - begin_s < _STARTS_S:
                begun = time.monotonic(), cpu_s(terminal.pid)
            found = _CLOCK.search(terminal.read(0.02).split("\n")[0])
            if found and found[0] != last:
                last = found[0]
                clocks.append(time.monotonic())
        steps = [after - before for before, after in zip(clocks[3:], clocks[4:])]
        end_s, used_s = time.monotonic(), cpu_s(terminal.pid)
        print(f"clock: {len(steps)} steps, longest {max(steps):.2f} s, median {statistics.median(steps):.2f} s")
        print(f"own CPU: {100 * used_s / (end_s - begin_s):.1f}% since the command began, start included")
        going_on = (used_s - begun[1]) / (end_s - begun[0])
        print(f"own CPU: {100 * going_on:.1f}% from {begun[0] - begin_s:.0f} s on")
        keys = [(key, terminal.press(key)) for key in _KEYS]
        print("keys, s: " + " ".join(f"{key} {seconds:.2f}" for key, seconds in keys))
        print(
            f"keys: median {statistics.median(it for _, it in keys):.2f} s, longest {max(it for _, it in keys):.2f} s"
        )
        shown = terminal.read(0)
        print("\n".join(line.rstrip() for line in shown.split("\n")))
        terminal.end()


if __name__ == "__main__":
    main()
