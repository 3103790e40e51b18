"""Who reads what bpfprof prints is no work of the machine: `bpfprof record -a | sed | less`."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path

from tests.integration.recorded import BPFPROF, bpfprof, needs_root

pytestmark = needs_root
READERS = (["sed", "-u", "s/^/own/"], ["tee", "/dev/null"], ["cat"])


def test_who_reads_the_output_waits_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    command = [*BPFPROF, "record", "-a", "-d", "1", "-o", str(path)]
    with ExitStack() as stack:
        record = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        last, pids = record, []
        for reader in READERS:
            source = last.stdout
            last = stack.enter_context(subprocess.Popen(reader, stdin=source, stdout=subprocess.PIPE))
            assert source is not None
            source.close()
            pids.append(last.pid)
        assert b"ownrecording" in last.communicate()[0] and record.wait() == 0
    said = json.loads(bpfprof("report", path, "-f", "json").stdout)
    readers = [thread for thread in said["threads"] if thread["pid"] in pids]
    # A wait that was under way at the start may not be told.
    idle_s, wall_s = (sum(thread[name] for thread in readers) for name in ("idle_s", "wall_s"))
    assert len(readers) == len(READERS) and idle_s > 0.9 * wall_s, readers
