"""The command `bpfprof`, and `python -m bpfprof`: Ctrl-C before it works or after it is done ends it without a word."""

import sys

if __name__ == "__main__" and not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
    del sys.path[0]  # the current folder, which root may share with others: nothing is imported from it

import contextlib
import gc
import os
import signal
import threading

# What is imported stays. Python looks for what does not after each 700 objects, which takes a tenth of the start.
gc.set_threshold(100_000, 20, 20)


def main() -> None:
    """As bpfprof.cli.main() does."""
    handler = signal.getsignal(signal.SIGINT)
    is_ours = handler is signal.default_int_handler  # else it is ignored
    if is_ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from bpfprof import cli

    if is_ours:
        signal.signal(signal.SIGINT, handler)
    try:
        cli.main()
    except SystemExit as end:
        _leave(end)
        raise
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _leave(end: SystemExit) -> None:
    """Ends here where a thread still works: the interpreter's end throws it out of numpy's C++ code, which aborts."""
    if threading.active_count() == 1 or not isinstance(end.code, int):
        return
    with contextlib.suppress(Exception):  # what reads it is gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(end.code)


if __name__ == "__main__":
    main()
