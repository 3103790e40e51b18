"""`bpfprof --version`: what a report of a bug has to say. Imports neither click nor BCC."""

from __future__ import annotations

import os
import platform
import sys

from bpfprof import __version__
from bpfprof.errors import UnsupportedError
from bpfprof.kernel.compiler import bcc_version, check_bcc


def version_text() -> str:
    """Four lines: bpfprof, the Python that runs it, BCC (or that it is missing) and Linux."""
    try:
        folder = check_bcc()
        bcc = f"BCC {bcc_version(folder)} ({folder})"
    except UnsupportedError as error:
        bcc = f"BCC is missing: {error.hint}"
    host = os.uname()
    return "\n".join(
        (
            f"bpfprof {__version__}",
            f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})",
            bcc,
            f"{host.sysname} {host.release} {host.machine}",
        )
    )
