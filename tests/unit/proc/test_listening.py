"""Who connects to whom."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from bpfprof.model.ids import Pid
from bpfprof.proc.listening import Listening

ME = Pid(os.getpid())


@pytest.fixture(autouse=True)
def nothing_listens() -> None:
    if Listening().listens(ME):
        pytest.skip("what runs the tests listens itself")


def test_a_server_and_its_clients() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert Listening().listens(ME) is True
        with socket.create_connection(server.getsockname()) as asking:
            answering, _ = server.accept()
            ends = ["{}:{}".format(*it.getsockname()) for it in (asking, answering)]
            assert [end in Listening().clients(ME) for end in ends] == [True, False]
            server.close()
            with answering:
                assert Listening().listens(ME) is False, "connected ones do not listen"


def test_a_server_of_a_unix_socket(tmp_path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(str(tmp_path / "it.sock"))
        assert Listening().listens(ME) is False
        server.listen(1)
        assert Listening().listens(ME) is True


def test_of_a_process_that_is_gone_it_is_not_known() -> None:
    assert Listening().listens(Pid(2**22)) is None and not Listening().clients(Pid(2**22))


def test_who_asks_sends_as_it_receives() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            assert not Listening().asks(ME), "nothing was sent"
            for sends, receives in ((one, other), (other, one)) * 3:
                sends.sendall(b"x")
                receives.recv(1)
            assert Listening().asks(ME)
