"""When a target ends: after a given time, or when its standard input closes. For those that have no time to block."""

import ctypes
import os
import select
import sys
import time


def finished(seconds, started):
    """Whether `seconds` (None: for ever) have passed since `started` (monotonic), or standard input was closed.

    With a time given, standard input is not looked at: it may be /dev/null.
    """
    if seconds is not None:
        return time.monotonic() - started >= seconds
    readable, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(readable) and not os.read(sys.stdin.fileno(), 4096)


def die_with_parent():
    """Of a child."""
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG


def die_with_input():
    """Kills this process when its standard input closes, from a child: for those that fork before they have threads."""
    if not os.fork():
        die_with_parent()
        sys.stdin.read()
        os.kill(os.getppid(), 9)
        os._exit(0)
