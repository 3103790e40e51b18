"""What a recording says of itself when it begins."""

from __future__ import annotations

import os
import time

from bpfprof import __version__
from bpfprof.capture.numbers import status_texts
from bpfprof.capture.watch import Watch
from bpfprof.recording.tables import Start


def recording_start(watch: Watch) -> Start:
    """Of what is watched since watch.start_ns."""
    host, options = os.uname(), watch.options
    return Start(
        bpfprof_version=__version__,
        start_ns=watch.start_ns,
        started_unix_ns=time.time_ns() - (time.monotonic_ns() - watch.start_ns),
        host_name=host.nodename,
        kernel_release=host.release,
        rate_hz=options.rate_hz,
        event="cpu-clock",
        events=list(options.events),
        mode=options.mode,
        native=options.native,
        min_block_us=options.min_block_us,
        async_rate_hz=options.async_rate_hz,
        counts_calls=options.counts_calls,
        target_pids=list(watch.targets.pids),
        status_texts=status_texts(),
    )
