"""Where the tables of a recording are in a data set: DIR/date=DATE/host=HOST/recording=ID/TABLE.parquet.

A recording is a folder, which gets its name when it is whole. Folders that are being written begin with a dot.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from bpfprof.model.profile import RecordingInfo

# In the order in which they are written.
RECORDINGS, THREADS, FRAMES, STACKS, FUNCTIONS, STEPS, WEIGHTS, SPANS = TABLES = (
    *("recordings", "threads", "frames", "stacks", "functions", "steps", "weights", "spans"),
)
_NO_PART_OF_A_PATH = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST_HOST = 100  # letters
_LAST_NS = 4_102_444_800_000_000_000  # the year 2100


def recording_id(start: Mapping[str, Any]) -> str:
    """Of its `start`, which all copies of it have: when it began, to the nanosecond, where, and of what.

    It begins with a letter, or readers would take some for numbers.
    """
    facts = [start.get(name) for name in ("started_unix_ns", "start_ns", "host_name", "target_pids")]
    return "r" + hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def folder_of(info: RecordingInfo, identity: str) -> PurePosixPath:
    """Below the data set's own. The date is that of UTC; a host's name has nothing in it that a path cannot have."""
    began = datetime.datetime.fromtimestamp(unix_ns(info) // 1_000_000_000, datetime.timezone.utc)
    host = _NO_PART_OF_A_PATH.sub("_", info.host_name)[:_LONGEST_HOST] or "unknown"
    return PurePosixPath(f"date={began:%Y-%m-%d}", f"host={host}", f"recording={identity}")


def unix_ns(info: RecordingInfo) -> int:
    """When the recording began; a recording that is damaged may say what is no time."""
    return min(max(info.started_unix_ns, 0), _LAST_NS)


def files_of(folder: str, table: str) -> str:
    """The pattern that all files of a table have, and none that is being written."""
    return f"{folder.rstrip('/') or '/'}/date=*/host=*/recording=*/{table}.parquet"
