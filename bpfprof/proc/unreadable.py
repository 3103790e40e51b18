"""A mapped file that bpfprof could not open -> a sentence: what cannot be read, by whom, and what it lies on."""

from __future__ import annotations

import os
import re

from bpfprof.model.ids import Pid
from bpfprof.proc.living import living
from bpfprof.proc.maps import Mapping
from bpfprof.proc.reader import reader
from bpfprof.proc.text import without_controls

_MOUNTS_LIMIT_BYTES = 1 << 20
_USER = re.compile(r"(?:^|,)user_id=(\d{1,10})(?:,|$)")


def why_file_unreadable(pid: Pid, mapping: Mapping, error: OSError) -> str:
    """`/x/python3 cannot be read by root: Permission denied (a fuse mount that only user 1000 may read)`."""
    who = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
    path = without_controls(os.fsencode(mapping.path))
    mount = _mount_of(pid, mapping.device)
    return f"{path} cannot be read by {who}: {error.strerror}" + (f" ({mount})" if mount else "")


def _mount_of(pid: Pid, device: str) -> str:
    """What a file lies on, by the first mount of its device that its process has; "": that is not known.

    Without `allow_other` nobody but its user may enter a FUSE mount, root neither: fuse_allow_current_process(),
    fs/fuse/dir.c (Linux 6.1).
    """
    try:
        numbers = ":".join(str(int(part, 16)) for part in device.split(":"))
        content = reader().read_file(pid, f"/proc/{living(pid)}/mountinfo", _MOUNTS_LIMIT_BYTES)
    except (OSError, ValueError):
        return ""
    for line in map(without_controls, content.split(b"\n")):
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) > 2 and fields[2] == numbers and len(kind) > 2:
            user = _USER.search(kind[2])
            if kind[0].partition(".")[0] in ("fuse", "fuseblk") and user and "allow_other" not in kind[2].split(","):
                return f"a {kind[0]} mount that only user {user[1]} may read"
            return f"on {kind[0]}"
    return ""
