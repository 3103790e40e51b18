"""Round trips of TCP connections, of this process and of a child."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfprof.model.ids import Pid
from bpfprof.proc.round_trips import RoundTrips, connections_of

CARRIED = 100_000
CHILD = f"""
import socket, sys
family, address = (socket.AF_INET6, "::1") if sys.argv[1] == "6" else (socket.AF_INET, "127.0.0.1")
listens = socket.create_server((address, 0), family=family)
asks = socket.create_connection(listens.getsockname()[:2])
answers, _ = listens.accept()
left, right = socket.socketpair()
asks.sendall(bytes({CARRIED}))
while True:
    count = {CARRIED}
    while count:
        count -= len(answers.recv(count))
    answers.setblocking(False)
    print(listens.getsockname()[1], asks.getsockname()[1], flush=True)
    sys.stdin.read()
    sys.exit(answers.getblocking() or not asks.getblocking())
"""


@pytest.fixture(params=["4", "6"])
def child(request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], list[str], str]]:
    command = [sys.executable, "-c", CHILD, request.param]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        yield process, process.stdout.readline().split(), {"4": "127.0.0.1", "6": "[::1]"}[request.param]
        process.stdin.close()
        assert process.wait() == 0, "what its sockets are was changed"


@pytest.mark.skipif(os.geteuid() != 0, reason="descriptors of others are for root")
def test_connections_of_another_process(child: tuple[subprocess.Popen[str], list[str], str]) -> None:
    process, ports, host = child
    descriptors = sorted(os.listdir("/proc/self/fd"))
    looks = RoundTrips()
    looks.look([Pid(process.pid)])
    found = looks.found[str(process.pid)]
    assert found.keys() == {f"{host}:{port}" for port in ports} and looks.is_apart == {str(process.pid): False}
    assert all(0 < microseconds < 100_000 and carried >= CARRIED for microseconds, carried in found.values())
    assert sorted(os.listdir("/proc/self/fd")) == descriptors
    looks.found.clear()
    looks.look([Pid(process.pid)])
    assert not looks.found, "it is looked at again later"


def test_a_process_that_is_gone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert not connections_of(Pid(process.pid))


def test_sockets_that_are_no_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listens, socket.socket(type=socket.SOCK_DGRAM) as sends:
        sends.connect(listens.getsockname())
        assert listens.getsockname()[1] not in {int(end.rpartition(":")[2]) for end in connections_of(Pid(os.getpid()))}
