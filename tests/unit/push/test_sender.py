"""What becomes of bodies where the server fails, is slow, sends elsewhere or is gone: all are sent, kept or counted."""

from __future__ import annotations

import http.server
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bpfprof.push import sender_child

ENDS_WITHIN_S = 120


@dataclass
class Server:
    """Answers with these statuses in turn, the last one from then on; keeps what it was sent. answer: what to say."""

    statuses: list[int]
    answer: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    drips: bool = False
    taken: list[tuple[str, bytes, dict[str, str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.taken.append((self.path, body, dict(self.headers)))
                status = outer.statuses.pop(0) if len(outer.statuses) > 1 else outer.statuses[0]
                if outer.drips:
                    while True:  # a byte of a header now and then: no single read takes long
                        self.wfile.write(b"H")
                        self.wfile.flush()
                        time.sleep(0.1)
                self.send_response(status)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(outer.answer)))
                self.end_headers()
                self.wfile.write(outer.answer)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.http.server_address[1])

    def bodies(self) -> list[bytes]:
        return [body for _, body, _ in self.taken]


@pytest.fixture
def serve() -> Iterator[Any]:
    made: list[Server] = []

    def start(*statuses: int, **values: Any) -> Server:
        made.append(Server([*statuses], **values))
        return made[-1]

    yield start
    for server in made:
        server.http.shutdown()
        server.http.server_close()


class Child:
    """The process, with shorter pauses than it has for people.

    end_s: how long it goes on when its input has ended, if not all is sent. A busy machine may well take a second to
    send something, so a test that wants it sent has more.
    """

    def __init__(self, folder: Path, port: int, attempt_s: float = 20.0, **values: Any) -> None:
        times = f"_ATTEMPT_S, m._FIRST_PAUSE_S = {attempt_s}, 0.05"
        code = f"import importlib.util as u, sys; s = u.spec_from_file_location('m', {sender_child.__file__!r})\n"
        code += f"m = u.module_from_spec(s); s.loader.exec_module(m); m.{times}; m.main(sys.stdin.buffer)"
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        settings = {"is_tls": False, "host": "127.0.0.1", "port": port, "path": "/it", "is_otlp": True, "nice": 0}
        settings |= {"headers": {"Content-Type": "x/y"}, "folder": str(folder), "limit_bytes": 1000, "end_s": 20.0}
        self._say({**settings, **values})
        self.began = self._answer()

    def put(self, *bodies: bytes, query: str = "") -> None:
        for body in bodies:
            self._say({"bytes": len(body), "query": query}, body)

    def end(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.close()
        found = self._answer()
        self._process.wait(ENDS_WITHIN_S)
        return found

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _say(self, what: dict[str, Any], body: bytes = b"") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n" + body)
        self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return dict(json.loads(self._process.stdout.readline()))


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Where nobody listens. It is bound, so that nobody else gets it, nor a client that connects to itself."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield int(bound.getsockname()[1])


def counts(found: dict[str, Any], *names: str) -> list[int]:
    return [found[name] for name in names]


def until(is_so: Any) -> None:
    end_s = time.monotonic() + ENDS_WITHIN_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_all_is_sent_in_order(serve: Any, tmp_path: Path) -> None:
    server = serve(200)
    child = Child(tmp_path / "spool", server.port)
    child.put(b"one", b"two", query="from=1&name=a%7Bb%3Dc%7D")
    found = child.end()
    assert counts(found, "sent", "taken", "left", "dropped", "retries") == [2, 2, 0, 0, 0]
    assert server.bodies() == [b"one", b"two"]
    path, _, headers = server.taken[0]
    assert path == "/it?from=1&name=a%7Bb%3Dc%7D" and headers["Content-Type"] == "x/y"


def test_a_server_that_is_busy_is_asked_again(serve: Any, tmp_path: Path) -> None:
    server = serve(503, 429, 500, 200)
    child = Child(tmp_path / "spool", server.port)
    child.put(b"one")
    until(lambda: len(server.taken) == 4)
    found = child.end()
    assert counts(found, "sent", "retries", "refused", "left") == [1, 3, 0, 0]
    assert server.bodies() == [b"one"] * 4


@pytest.mark.parametrize("status", [400, 401, 404, 413])
def test_what_is_refused_is_counted_and_not_sent_again(status: int, serve: Any, tmp_path: Path) -> None:
    server = serve(status, 200)
    child = Child(tmp_path / "spool", server.port)
    child.put(b"one", b"two")
    found = child.end()
    assert counts(found, "sent", "refused", "retries", "left") == [1, 1, 0, 0] and found["reason"] == f"HTTP {status}"


def test_a_redirection_is_not_followed(serve: Any, tmp_path: Path) -> None:
    other = serve(200)
    server = serve(307, headers={"Location": f"http://127.0.0.1:{other.port}/it"})
    child = Child(tmp_path / "spool", server.port)
    child.put(b"one")
    assert counts(child.end(), "sent", "refused") == [0, 1] and not other.taken


def test_what_a_server_rejects_of_a_body_is_counted(serve: Any, tmp_path: Path) -> None:
    """ExportProfilesServiceResponse.partial_success.rejected_profiles: 300."""
    server = serve(200, answer=b"\x0a\x03\x08\xac\x02")
    child = Child(tmp_path / "spool", server.port)
    child.put(b"one")
    assert counts(child.end(), "sent", "rejected") == [1, 300]


def test_what_cannot_be_sent_is_there_for_the_next_run(closed_port: int, serve: Any, tmp_path: Path) -> None:
    child = Child(tmp_path / "spool", closed_port, end_s=3.0)
    child.put(b"one", b"two")
    begun_s = time.monotonic()
    found = child.end()
    assert time.monotonic() - begun_s < ENDS_WITHIN_S
    assert counts(found, "sent", "left", "dropped") == [0, 2, 0] and "refused" in found["reason"].lower()
    for path in (tmp_path / "spool").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "spool").stat().st_mode) == 0o700
    server = serve(200)
    again = Child(tmp_path / "spool", server.port)
    assert again.began["left_before"] == 2
    again.put(b"three")
    assert counts(again.end(), "sent", "left") == [3, 0] and server.bodies() == [b"one", b"two", b"three"]


def test_one_that_was_killed_leaves_what_it_had(closed_port: int, serve: Any, tmp_path: Path) -> None:
    child = Child(tmp_path / "spool", closed_port)
    child.put(b"one")
    until(lambda: any(path.name.isdigit() for path in (tmp_path / "spool").iterdir()))
    child.kill()
    server = serve(200)
    assert counts(Child(tmp_path / "spool", server.port).end(), "sent", "left") == [1, 0]


def test_with_too_many_the_oldest_are_dropped(closed_port: int, serve: Any, tmp_path: Path) -> None:
    child = Child(tmp_path / "spool", closed_port, end_s=1.0)
    child.put(*[bytes([65 + number]) * 300 for number in range(5)], bytes(2000))
    found = child.end()
    assert counts(found, "taken", "left", "dropped") == [6, 3, 3]
    sizes = [path.stat().st_size for path in (tmp_path / "spool").iterdir()]
    assert sum(sizes) <= 1000
    server = serve(200)
    assert Child(tmp_path / "spool", server.port).end()["sent"] == 3
    assert [body[:1] for body in server.bodies()] == [b"C", b"D", b"E"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """With room for three bodies of 20 KB."""
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=72k", "tmpfs", tmp_path]).returncode:
        pytest.skip("no root, or no mounts")
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_what_a_full_disk_has_no_room_for_is_counted(closed_port: int, serve: Any, small_disk: Path) -> None:
    child = Child(small_disk / "spool", closed_port, limit_bytes=1_000_000, end_s=1.0)
    child.put(*[bytes([65 + number]) * 20_000 for number in range(6)])
    found = child.end()
    assert found["taken"] == 6 == found["left"] + found["dropped"] and 0 < found["left"] < 6
    server = serve(200)
    assert Child(small_disk / "spool", server.port, limit_bytes=1_000_000).end()["sent"] == found["left"]
    assert all(body in [bytes([65 + number]) * 20_000 for number in range(6)] for body in server.bodies())


def test_a_server_that_drips_has_an_end(serve: Any, tmp_path: Path) -> None:
    server = serve(200, drips=True)
    child = Child(tmp_path / "spool", server.port, attempt_s=1.0, end_s=1.0)
    child.put(b"one")
    until(lambda: len(server.taken) >= 2)  # the first attempt was ended
    assert counts(child.end(), "sent", "left") == [0, 1]


def test_a_server_that_never_answers_does_not_keep_others_from_being_taken(tmp_path: Path) -> None:
    """Nor the end from coming."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        child = Child(tmp_path / "spool", listening.getsockname()[1], limit_bytes=100_000_000, end_s=0.5)
        child.put(*[bytes(1_000_000)] * 20)
        found = child.end()
    assert counts(found, "taken", "sent", "left") == [20, 0, 20]


def test_two_that_send_at_once_do_not_mix(serve: Any, tmp_path: Path) -> None:
    server = serve(200)
    first, second = (Child(tmp_path / "spool", server.port) for _ in range(2))
    assert first.began["folder"] != second.began["folder"]
    first.put(b"one")
    second.put(b"two")
    assert [it.end()["sent"] for it in (first, second)] == [1, 1]


@pytest.mark.parametrize("kind", ["link", "open"])
def test_a_folder_of_others_is_not_taken(kind: str, tmp_path: Path) -> None:
    if kind == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (tmp_path / "spool").symlink_to(tmp_path / "elsewhere")
    else:
        (tmp_path / "spool").mkdir()
        os.chmod(tmp_path / "spool", 0o777)
    assert "private" in Child(tmp_path / "spool", 1).began["error"]
