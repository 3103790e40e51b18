"""What sockets are called, by real ones; and addresses as the kernel writes them."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bpfprof.model.ids import Pid
from bpfprof.proc import sockets
from bpfprof.proc.sockets import SocketNames, address_of

ME = Pid(os.getpid())


@pytest.fixture
def names() -> Iterator[SocketNames]:
    found = SocketNames()
    yield found
    found.close()


def inode(of: socket.socket) -> int:
    return os.fstat(of.fileno()).st_ino


def address(of: tuple[str, int]) -> str:
    return f"{of[0]}:{of[1]}"


def test_tcp_and_udp(names: SocketNames) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        asking = stack.enter_context(socket.create_connection(server.getsockname()))
        answering = stack.enter_context(server.accept()[0])
        unconnected = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        connected = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        connected.connect(("127.0.0.1", 53))
        found = [names.name(ME, inode(it)) for it in (server, asking, answering, connected, unconnected)]
        there = address(server.getsockname())
        assert found == [f"listening on {there}", there, address(asking.getsockname()), "udp 127.0.0.1:53", ""]


def test_udp_without_a_peer_asks_or_serves_by_its_port(names: SocketNames) -> None:
    """The kernel gives who asks any port of a range; who serves chooses one, mostly below that."""
    with ExitStack() as stack:
        asks, serves, later = (stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)) for _ in range(3))
        asks.bind(("127.0.0.1", 0))
        port = next(port for port in range(20_000, 30_000) if can_bind(serves, port))
        later.bind(("127.0.0.1", 0))
        found = [names.name(ME, inode(it)) for it in (asks, serves)]
        assert found == [f"udp socket on {address(asks.getsockname())}", f"listening on udp 127.0.0.1:{port}"]
        before = names.name(ME, inode(later))
        later.connect(("127.0.0.1", 53))
        names._next_read_s.clear()
        names._tables.clear()
        assert before.startswith("udp socket on") and names.name(ME, inode(later)) == "udp 127.0.0.1:53"


def can_bind(of: socket.socket, port: int) -> bool:
    try:
        of.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


def test_ipv6_and_what_is_ipv4_inside(names: SocketNames) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6")
    with ExitStack() as stack:
        server = stack.enter_context(
            socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)  # type: ignore[arg-type]
        )
        port = server.getsockname()[1]
        asking = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        answering = stack.enter_context(server.accept()[0])
        assert names.name(ME, inode(server)) == f"listening on [::]:{port}"
        assert names.name(ME, inode(asking)) == f"127.0.0.1:{port}"
        assert names.name(ME, inode(answering)) == address(asking.getsockname())


def test_unix_sockets(names: SocketNames, tmp_path: Path) -> None:
    path = str(tmp_path / "it.sock")
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(path)
        server.listen(1)
        asking = stack.enter_context(socket.socket(socket.AF_UNIX))
        assert names.name(ME, inode(asking)) == "unix socket"
        asking.connect(path)
        answering = stack.enter_context(server.accept()[0])
        pair = [stack.enter_context(it) for it in socket.socketpair()]
        hidden = stack.enter_context(socket.socket(socket.AF_UNIX))
        hidden.bind("\0bpfprof-test")
        found = [names.name(ME, inode(it)) for it in (server, asking, answering, pair[0], hidden)]
        assert found == [*[f"unix:{path}"] * 3, "unix socket", "unix:@bpfprof-test"]


def test_tables_are_not_read_all_the_time(names: SocketNames, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that was made since is known a little later."""
    now = [1000.0]
    monkeypatch.setattr(sockets.time, "monotonic", lambda: now[0])
    with socket.create_server(("127.0.0.1", 0)) as first:
        assert names.name(ME, inode(first))
        with socket.create_server(("127.0.0.1", 0)) as second:
            assert not names.name(ME, inode(second)) and names.name(ME, inode(first))
            now[0] += sockets._READ_EVERY_S + 1
            assert names.name(ME, inode(second))


def test_what_is_remembered_has_a_bound(names: SocketNames, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_REMEMBERED", 3)
    monkeypatch.setattr(sockets, "_READ_EVERY_S", 0)
    monkeypatch.setattr(sockets, "_REST", 0)
    with ExitStack() as stack:
        for _ in range(8):
            names.name(ME, inode(stack.enter_context(socket.create_server(("127.0.0.1", 0)))))
            assert len(names._known) <= 3


def test_a_process_that_is_gone(names: SocketNames) -> None:
    assert names.name(Pid(2**22), 1) == ""


@pytest.mark.skipif(sys.byteorder != "little", reason="the texts are of a little-endian machine")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0100007F:1F90", "127.0.0.1:8080"),
        ("00000000:0000", "0.0.0.0:0"),
        ("00000000000000000000000001000000:0050", "[::1]:80"),
        ("0000000000000000FFFF00000100007F:0050", "127.0.0.1:80"),
        ("B80D0120000000000000000001000000:01BB", "[2001:db8::1]:443"),
        *[(text, "") for text in ("", ":", "zz:0050", "0100007F", "0100007F:zz", "01000:0050", "0" * 40 + ":1")],
    ],
)
def test_addresses(text: str, expected: str) -> None:
    assert address_of(text) == expected


def connected(family: int, address: str) -> tuple[socket.socket, socket.socket]:
    server, client = socket.socket(family), socket.socket(family)
    try:
        server.bind((address, 0))
    except OSError:
        pytest.skip(f"there is no {address}")
    server.listen()
    client.connect(server.getsockname()[:2])
    return server, client


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_other_end_of_a_connection(names: SocketNames, family: int, address: str) -> None:
    server, client = connected(family, address)
    with server, client:
        assert names.other_end(ME, inode(client)) == inode(server), "nobody has accepted it yet"
        with server.accept()[0] as accepted:
            assert names.other_end(ME, inode(client)) == inode(accepted)
        assert names.other_end(ME, inode(server)) == 0


def test_of_what_is_on_its_way_nothing_is_known(names: SocketNames) -> None:
    """The window is full: what was sent last has not come to the other end."""
    server, client = connected(socket.AF_INET, "127.0.0.1")
    with server, client, server.accept()[0] as accepted:
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                client.send(bytes(1 << 20))
        for one in (client, accepted):
            assert names.other_end(ME, inode(one)) == 0


def test_of_several_that_listen_on_one_port_nothing_is_known(names: SocketNames) -> None:
    with ExitStack() as stack:
        port, listening = 0, []
        for _ in range(2):
            listening.append(stack.enter_context(socket.socket()))
            listening[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listening[-1].bind(("127.0.0.1", port))
            listening[-1].listen()
            port = listening[0].getsockname()[1]
        client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert names.other_end(ME, inode(client)) == 0


def test_the_other_end_of_a_pair(names: SocketNames) -> None:
    one, other = socket.socketpair()
    with one, other:
        assert names.peer(ME, inode(one)) == inode(other) and names.other_end(ME, inode(one)) == 0
    assert names.other_end(ME, 0) == names.other_end(Pid(1 << 22), 5) == 0


def test_who_waits_for_an_answer(names: SocketNames) -> None:
    """Once something has come it is not known whether more is due."""
    server, client = connected(socket.AF_INET, "127.0.0.1")
    with server, client, server.accept()[0] as accepted:
        assert not names.waits_for_answer(ME, inode(client)), "it has not asked"
        client.send(b"ask")
        assert names.waits_for_answer(ME, inode(client))
        assert names.is_accepted(ME, inode(accepted)) and not names.is_accepted(ME, inode(client))
        accepted.send(b"answer")
        client.recv(6)
        client.send(b"acknowledged")
        assert not names.waits_for_answer(ME, inode(client)) and not names.waits_for_answer(ME, inode(accepted))
