"""The other tests of this folder again, with the address and undefined-behaviour sanitizers in the programs.

Maps are then separate pieces of memory with guarded edges, and every array in a struct is checked at each index.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ebpf_host.host import SANITIZED, compiler

HERE = Path(__file__).parent
FILES = (
    *("test_native_random.py", "test_search.py", "test_record.py", "test_python_walk.py"),
    *("test_scheduler.py", "test_missed_switches.py", "test_scheduler_random.py", "test_switch_sampling.py"),
    *("test_lifecycle.py", "test_wakers.py", "test_gil.py", "test_code_copies.py"),
)


def sanitizer_library() -> str:
    """Path of libasan, which must be loaded before everything else. Skips the test where there is none."""
    asked = subprocess.run([compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True)
    path = asked.stdout.strip()
    if not os.path.isabs(path):  # the compiler gives back the bare name
        pytest.skip("the compiler has no address sanitizer (libasan.so)")
    return path


@pytest.mark.second_tier
@pytest.mark.skipif(SANITIZED in os.environ, reason="this is the run with sanitizers")
def test_with_sanitizers() -> None:
    environment = {
        **os.environ,
        SANITIZED: "1",
        "LD_PRELOAD": sanitizer_library(),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        *(str(HERE / name) for name in FILES),
    ]
    found = subprocess.run(command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True)
    print(found.stdout)
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-6000:]
    assert " passed" in found.stdout and "skipped" not in found.stdout
