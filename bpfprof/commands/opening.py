"""A picture in a file -> shown in the user's browser, which never runs as root."""

from __future__ import annotations

import os
from pathlib import Path

from bpfprof.commands.outputs import tell


def open_picture(path: Path) -> None:
    """Says where it is when no browser is started: as root, or where there is none."""
    import webbrowser

    address = path.resolve().as_uri()
    if os.geteuid() == 0:
        tell(f"no browser is started as root; open {address}")
    elif not webbrowser.open(address):
        tell(f"no browser was found; open {address}")
