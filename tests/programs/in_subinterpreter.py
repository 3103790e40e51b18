"""Runs another program in an interpreter beside the main one. On CPython 3.8 and newer.

Usage: in_subinterpreter.py GIL PROGRAM ARGUMENTS...

GIL is `shared`, or `own` (CPython 3.13 and newer: before, ctypes runs in the main interpreter only).
"""

import sys

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

SCRIPT = """
import os, runpy, sys
sys.argv = {!r}
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def make(gil):
    if gil == "own":
        return interpreters.create(interpreters.new_config("isolated", allow_daemon_threads=True))
    if sys.version_info >= (3, 13):
        return interpreters.create("legacy")
    return interpreters.create(**({"isolated": False} if sys.version_info >= (3, 9) else {}))


gil, *command = sys.argv[1:]
print(interpreters.run_string(make(gil), SCRIPT.format(command)) or "", file=sys.stderr)
