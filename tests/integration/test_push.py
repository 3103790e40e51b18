"""`record --push`: a server made of the published messages gets profiles that say what the program did."""

from __future__ import annotations

import gzip
import http.server
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as service

from tests.integration.recorded import BPFPROF, PYTHON, bpfprof, needs_root, program, running
from tests.looks import Look
from tests.other_tools import read_pprof

pytestmark = needs_root
EVERY_S, RECORD_S = 1, 4


class Server(http.server.ThreadingHTTPServer):
    """Fails the first time it is asked, as one that starts does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.taken: list[tuple[str, str, bytes]] = []
        self.failures = 1
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.failures:
            self.server.failures -= 1
            self.send_response(503)
        else:
            self.server.taken.append((self.path, self.headers["Content-Type"], body))
            self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.shutdown()
    made.server_close()


def pushed(url: str, state: Path, seconds: float = RECORD_S, **variables: str) -> str:
    """What the command says while a program that computes and sleeps is recorded."""
    with running(PYTHON, program("known.py")) as target:
        words = ("record", "-p", target.pid, "-d", seconds, "--every", EVERY_S, "--push", url)
        done = bpfprof(*words, env={**os.environ, "XDG_STATE_HOME": str(state), **variables})
    assert not done.stdout
    return done.stderr


def otlp_times(bodies: list[bytes]) -> tuple[Counter[str], Counter[str], int]:
    """(nanoseconds by type of sample, and by the function of the innermost frame that has a file, of all bodies)"""
    by_type, by_function, covered_ns = Counter[str](), Counter[str](), 0
    for body in bodies:
        request = service.ExportProfilesServiceRequest.FromString(gzip.decompress(body))
        tables, texts = request.dictionary, request.dictionary.string_table
        assert texts[0] == "" and not tables.stack_table[0].location_indices
        profiles = request.resource_profiles[0].scope_profiles[0].profiles
        covered_ns += profiles[0].duration_nano
        for profile in profiles:
            assert texts[profile.sample_type.unit_strindex] == "nanoseconds" and len(profile.profile_id) == 16
            for sample in profile.samples:
                by_type[texts[profile.sample_type.type_strindex]] += sum(sample.values)
                keys = {texts[tables.attribute_table[it].key_strindex] for it in sample.attribute_indices}
                assert {"process.pid", "thread.id", "thread.name"} <= keys
                locations = [
                    tables.location_table[it] for it in tables.stack_table[sample.stack_index].location_indices
                ]
                functions = [tables.function_table[line.function_index] for it in locations for line in it.lines]
                named = [texts[it.name_strindex] for it in functions if it.filename_strindex]
                by_function[named[0] if named else ""] += sum(sample.values)
    return by_type, by_function, covered_ns


def test_otlp(server: Server, tmp_path: Path, look: Look) -> None:
    """Times are counted, not sampled. Where the host takes the CPUs, threads are looked at and totals are read late.

    Functions are sampled: each of the three has some 100 samples of its CPU time or its waits, and a quarter of that
    never by chance.
    """

    def judge(times: int) -> None:
        seconds = times * RECORD_S
        server.taken.clear()
        said = pushed(f"http://127.0.0.1:{server.server_address[1]}", tmp_path, seconds)
        assert f"{len(server.taken)} profiles sent to" in said and "dropped" not in said and "not sent" not in said, (
            said
        )
        paths, types, bodies = zip(*server.taken)
        assert set(paths) == {"/v1development/profiles"} and set(types) == {"application/x-protobuf"}
        assert abs(len(bodies) - seconds / EVERY_S) <= 1
        by_type, by_function, covered_ns = otlp_times([*bodies])
        assert by_type.keys() == {"cpu", "ready", "wait"}
        # Both threads are there from the start to the end, and the parts have all of their time, but for what passes
        # in the first one until they are looked at.
        assert covered_ns >= 0.9e9 * seconds and abs(2 * covered_ns - sum(by_type.values())) <= 0.2e9
        assert min(by_function[name] for name in ("count", "digest", "nap")) > 0.05 * covered_ns
        # So it is of the parts between the first and the last. Where totals are read late, the next part has less.
        by_type, by_function, covered_ns = otlp_times([*bodies[1:-1]])
        assert abs(sum(by_type.values()) - 2 * covered_ns) <= 0.05e9, (by_type, covered_ns)
        assert abs(by_function["wait_for"] - covered_ns) <= 0.05e9, (by_function, covered_ns)

    look(judge)


def test_pprof_for_pyroscope(server: Server, tmp_path: Path) -> None:
    said = pushed(f"http://127.0.0.1:{server.server_address[1]}/ingest", tmp_path)
    assert f"{len(server.taken)} profiles sent to" in said, said
    began, ends, seconds = [], [], 0.0
    for number, (path, _, body) in enumerate(server.taken):
        query = parse_qs(urlsplit(path).query)
        assert query["format"] == ["pprof"] and query["name"][0].startswith("known.py{host=")
        began.append(int(query["from"][0]))
        ends.append(int(query["until"][0]))
        (tmp_path / f"{number}.pb.gz").write_bytes(body)
        seconds += sum(sum(it["values"]) for it in read_pprof(tmp_path / f"{number}.pb.gz")["samples"]) / 1e9
    # Whole seconds around each part, which begins where the one before ended.
    assert len(began) > 1 and all(0 <= end - begin <= 1 for end, begin in zip(ends, began[1:]))
    assert 2 * 0.9 * RECORD_S <= seconds <= 2 * (ends[-1] - began[0])  # of two threads


def test_a_server_that_is_gone_costs_nothing_but_the_spool(tmp_path: Path, server: Server) -> None:
    """The next run sends what this one could not."""
    port = server.server_address[1]
    server.failures = 1 << 30
    said = pushed(f"http://127.0.0.1:{port}", tmp_path)
    assert "0 profiles sent to" in said and "not sent yet: in" in said and "HTTP 503" in said, said
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.name.isdigit()]
    assert len(kept) >= RECORD_S / EVERY_S - 1
    server.failures = 0
    said = pushed(f"http://127.0.0.1:{port}", tmp_path)
    assert f"{len(kept)} of an earlier run are sent first" in said, said
    assert f"{len(server.taken)} profiles sent to" in said and len(server.taken) > len(kept), said


def test_ctrl_c_sends_the_last_part(server: Server, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{server.server_address[1]}"
    with running(PYTHON, program("known.py")) as target:
        command = [*BPFPROF, "record", "-p", str(target.pid), "--push", url]
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, "XDG_STATE_HOME": str(tmp_path)}
        )
        assert process.stderr is not None
        while not process.stderr.readline().startswith("recording "):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 0 and "1 profile sent to" in said, said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--push", "http://user:secret@localhost"], "command line"),
        (["--push", "ftp://localhost"], "no URL of http or https"),
        (["--push", "http://localhost", "-o", "x.svg"], "leaves no file"),
        (["--every", "5"], "--every is for --push"),
    ],
)
def test_what_means_nothing_is_refused(words: list[str], said: str) -> None:
    done = bpfprof("record", "-p", os.getpid(), "-d", 1, *words, check=2)
    assert said in done.stderr and "secret" not in done.stderr


def test_a_token_is_not_sent_in_the_open() -> None:
    environment = {**os.environ, "BPFPROF_PUSH_TOKEN": "secret"}
    done = bpfprof("record", "-p", os.getpid(), "-d", 1, "--push", "http://example.com", check=2, env=environment)
    assert "use https" in done.stderr
