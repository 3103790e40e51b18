"""For targets of which a test knows what bounds them, on a machine where others run."""

import contextlib
import os


def go_first() -> None:
    """What else runs takes no CPU from this process and those that it starts, if that can be: else they lack CPUs."""
    with contextlib.suppress(OSError):
        os.setsid()
    with contextlib.suppress(OSError):
        os.nice(-10)
    session_first("self")


def session_first(pid: "int | str") -> None:
    """The same of the session of a process: the scheduler may have a group for each, and nice values count inside."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/autogroup", "w") as file:
        file.write("-10")
