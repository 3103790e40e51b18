"""Who called: under sudo, the user behind it."""

from __future__ import annotations

import os


def caller_ids() -> tuple[int, int] | None:
    """(uid, gid) of the user who called sudo, None when this is not run by root through sudo."""
    uid, gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if os.geteuid() != 0 or not uid.isdigit() or not gid.isdigit():
        return None
    return int(uid), int(gid)
