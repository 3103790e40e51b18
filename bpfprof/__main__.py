"""The command `bpfprof`, and `python -m bpfprof`: Ctrl-C before it works or after it is done ends it without a word."""

# Built in: while a module of Python is imported Ctrl-C would show a traceback.
import _signal  # type: ignore[import-not-found]
import sys

IS_OURS = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler  # else it is ignored
if IS_OURS:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

if __name__ == "__main__" and not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
    del sys.path[0]  # the current folder, which root may share with others: nothing is imported from it

import contextlib  # noqa: E402
import gc  # noqa: E402
import os  # noqa: E402
import threading  # noqa: E402

# What is imported stays. Python looks for what does not after each 700 objects, which takes a tenth of the start.
gc.set_threshold(100_000, 20, 20)


def main() -> None:
    """As bpfprof.cli.main() does."""
    from bpfprof import cli

    try:
        try:
            if IS_OURS:
                _signal.signal(_signal.SIGINT, _signal.default_int_handler)
            cli.main()
        finally:
            if IS_OURS:
                _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    except KeyboardInterrupt:  # before the command took it, or after
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        _signal.raise_signal(_signal.SIGINT)
    except SystemExit as end:
        _leave(end)
        raise


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
