"""Runs another program, as `python PROGRAM ARGUMENTS` does: what a packed or embedded Python is given to run.

Usage: run_script.py PROGRAM ARGUMENTS...
"""

import os
import runpy
import sys

del sys.argv[0]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
