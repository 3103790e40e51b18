"""What the verdict says of programs whose bottleneck is known, one row a program; with SHOW=1 also each screen."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import packages
from tests.integration.recorded import PROGRAMS, PYTHON, bpfprof, program, running
from tests.oracles.limits import memory_limit, slow_disk
from tests.oracles.programs import chosen, record
from tests.programs.priority import go_first, session_first

RECORD_S, RATE_HZ = 4, 199
PYTHON_VERSION = ".".join(map(str, sys.version_info[:2]))
# Kind -> (program, what bounds it, what else must be in the sentence).
KNOWN = {
    "python": ("bounds.py", "python", ""),
    "native": ("bounds.py", "native", ""),
    "gil": ("bounds.py", "gil", ""),
    "lock": ("bounds.py", "lock", "one lock"),
    "sleep": ("bounds.py", "sleep", ""),
    "child": ("bounds.py", "child", ""),
    "joined": ("bounds.py", "native", ""),
    "shared_lock": ("bottlenecks.py", "lock", "one lock"),
    "file_lock": ("bottlenecks.py", "lock", ""),
    "upstream": ("bottlenecks.py", "net", ""),
    "database": ("bottlenecks.py", "net", ""),
    "blocking": ("bottlenecks.py", "sleep", "event loop waits"),
    "disk": ("bottlenecks.py", "disk", ""),
    "faults": ("bottlenecks.py", "native", "page faults a second"),
    "openmp": ("bottlenecks.py", "ready", ""),
    "crowded": ("bottlenecks.py", "ready", ""),
    "pipe": ("bottlenecks.py", "child", ""),
    "ioctl": ("bottlenecks.py", "device", "/dev/loop"),
    "mapped_file": ("short_memory.py", "disk", "Short of memory"),
    "streams": ("peers.py", "net", ""),
    "turns": ("peers.py", "python", ""),
    "ranks": ("peers.py", "python", ""),
    **{
        kind: ("services.py", bound, word)
        for kind, bound, word in (
            ("flask", "net", "127.0.0.1"),
            ("django", "python", ""),
            ("fastapi_blocks", "sleep", "event loop waits"),
            ("fastapi_sleeps", "sleep", ""),
            ("fastapi_asks", "net", ""),
            ("fastapi_in_threads", "sleep", ""),
        )
    },
    **{
        f"loop_{kind}": ("loops.py", bound, word)
        for kind, bound, word in (
            ("data", "data", "Data-bound"),
            ("gil", "gil", ""),
            ("oversubscribed", "ready", "Oversubscribed: 16 threads of OpenMP"),
            ("device", "gpu", "cudaStreamSynchronize()"),
            ("communication", "net", ""),
            ("checkpoint", "disk", ""),
            ("operator", "native", "aten::sort"),
            ("healthy", "native", ""),
        )
    },
    "idle_server": ("bottlenecks.py", "idle", ""),
    "idle_asyncio": ("bottlenecks.py", "idle", ""),
    "idle_worker": ("bottlenecks.py", "idle", ""),
    "idle_cron": ("bottlenecks.py", "idle", ""),
    "idle_prefork": ("bottlenecks.py", "idle", ""),
    "idle_pool": ("bottlenecks.py", "idle", ""),
    "idle_piped": ("bottlenecks.py", "idle", ""),
    "idle_listener": ("bottlenecks.py", "idle", ""),
    "idle_executor": ("bottlenecks.py", "idle", ""),
}

SERVERS = {"upstream": "slow_http", "database": "slow_sql", "streams": "slow_sql"}
SERVERS |= {kind: "slow_http" for kind, (name, *_) in KNOWN.items() if name == "services.py"}
LIBRARIES = {"openmp": ("openmp.c", "-fopenmp"), "loop_device": ("cuda.c",)}
_ALONE = ("loop_communication", "idle_listener")
PACKAGES = ("flask", "django", "fastapi", "uvicorn", "httpx")


def lines_of(name: str, kind: str) -> list[int]:
    """The lines that may be named."""
    text = (PROGRAMS / name).read_text().splitlines()
    return [
        number for number, line in enumerate(text, 1) if re.search(rf"# here: .*\b{kind.removeprefix('loop_')}\b", line)
    ]


def asked(kind: str, folder: Path) -> tuple[dict[str, Any], str]:
    """(the report as JSON, the screen)"""
    path, words = folder / f"{kind}.bpfprof", []
    environment = {"OMP_NUM_THREADS": "16"} if kind == "openmp" else {}
    with contextlib.ExitStack() as stack:
        if kind in SERVERS:
            server = stack.enter_context(running(PYTHON, program("bottlenecks.py"), SERVERS[kind]))
            words.append(server.first_line.strip())
        if kind == "crowded":
            for _ in range(3 * (os.cpu_count() or 1)):
                stack.enter_context(running(PYTHON, program("bounds.py"), "python"))
        if kind in LIBRARIES:
            source, *options = LIBRARIES[kind]
            words.append(str(folder / "libcudart.so.12"))
            subprocess.run(["gcc", "-shared", "-fPIC", "-O1", *options, "-o", words[-1], program(source)], check=True)
        if KNOWN[kind][0] == "short_memory.py":
            words.append(str(stack.enter_context(memory_limit())))
        if kind == "loop_checkpoint":
            words.append(str(stack.enter_context(slow_disk(folder))))
        if kind == "ranks" or KNOWN[kind][0] == "loops.py":
            environment["PYTHONPATH"] = packages.site_packages(PYTHON_VERSION, "torch==2.13.0", "numpy")
        if KNOWN[kind][0] == "services.py":
            environment["PYTHONPATH"] = packages.site_packages(PYTHON_VERSION, *PACKAGES)
        command = PYTHON, program(KNOWN[kind][0]), kind.removeprefix("loop_"), *words
        target = stack.enter_context(running(*command, env=environment, folder=folder))
        if kind != "crowded":
            session_first(target.pid)
        # Who asks a service is its child, and so is the other rank, or who sends messages.
        alone = ("-S",) * (KNOWN[kind][0] == "services.py" or kind in _ALONE)
        record(path, [target.pid], RECORD_S, *alone, "-r", RATE_HZ)
    return json.loads(bpfprof("report", path, "-f", "json").stdout), bpfprof("report", path).stdout


def run(words: Sequence[str], folder: Path) -> None:
    kinds, wrong = chosen(KNOWN, words), 0
    go_first()  # and bpfprof, which a program at work on all CPUs would keep from starting
    for kind in kinds:
        source, bound, word = KNOWN[kind]
        report, screen = asked(kind, folder)
        verdict = report["verdict"]
        where = verdict["where"] or {}
        is_right = verdict["bound"] in bound.split() and word in verdict["sentence"]
        is_right &= not where if bound == "idle" else where.get("line") in lines_of(source, kind)
        rows = len(screen.splitlines())
        wrong += not is_right or rows > 24
        print(f"{'ok   ' if is_right else 'WRONG'} {kind:12} {rows:3} rows  {verdict['sentence']}", flush=True)
        if not is_right:
            print(f"      {verdict}")
        if os.environ.get("SHOW"):
            print(screen)
    print(f"{len(kinds) - wrong} of {len(kinds)} right")
