"""What is said of a file that cannot be read."""

from __future__ import annotations

import errno
import os

import pytest

from bpfprof.model.ids import FileOffset, Pid, RuntimeAddress
from bpfprof.proc import unreadable
from bpfprof.proc.maps import Mapping

MOUNTS = b"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:58 / /home/a/m\\040x rw,nosuid,nodev - fuse.squashfuse squashfuse rw,user_id=1000,group_id=1000
41 22 0:59 / /media rw - fuseblk /dev/sdb1 rw,user_id=0,group_id=0,allow_other,blksize=4096
42 22 0:60 / /net rw - nfs4 server:/x rw,vers=4.2,sec=sys,note=user_id=7
broken
"""


@pytest.mark.parametrize(
    ("device", "mount"),
    [
        ("00:3a", " (a fuse.squashfuse mount that only user 1000 may read)"),
        ("00:3b", " (on fuseblk)"),
        ("00:3c", " (on nfs4)"),
        ("08:01", " (on ext4)"),
        ("00:ff", ""),
        ("what", ""),
    ],
)
def test_what_by_whom_and_on_what(device: str, mount: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Reader:
        def read_file(self, *_: object) -> bytes:
            return MOUNTS

    monkeypatch.setattr(unreadable, "reader", Reader)
    mapping = Mapping(RuntimeAddress(0), RuntimeAddress(1), "r-xp", FileOffset(0), device, 7, "/a/\x1bpython3")
    error = PermissionError(errno.EACCES, "Permission denied")
    for uid, who in ((0, "root"), (5, "user 5")):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        told = unreadable.why_file_unreadable(Pid(1), mapping, error)
        assert told == f"/a/python3 cannot be read by {who}: Permission denied{mount}"
