"""Profiles -> a process that sends them: who hands one over never waits for the network, nor for a disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pwd
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bpfprof import __version__
from bpfprof.errors import OutputError
from bpfprof.model.memory import give_back_freed
from bpfprof.model.profile import Profile
from bpfprof.proc.caller import caller_groups, caller_ids
from bpfprof.proc.own_process import usual_nice, usual_priority
from bpfprof.push.endpoint import OTLP_PATH, Endpoint
from bpfprof.render.labels import printable

SPOOL_BYTES = 64 << 20
END_S = 10.0  # for what is left when the recording ends
_CHILD = str(Path(__file__).with_name("sender_child.py"))
_MOST_WAITING = 2  # profiles that are not bytes yet
_KEPT_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


class Outbox:
    """One server's. Raises OutputError where nothing can be kept for it."""

    def __init__(self, endpoint: Endpoint, token: str = "") -> None:
        self._endpoint, self._failed, self._missed, self._reason = endpoint, 0, 0, ""
        caller = caller_ids()
        ids: dict[str, Any] = {}
        if caller is not None:
            ids = {"user": caller[0], "group": caller[1], "extra_groups": caller_groups(*caller)}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
            cwd="/",
            start_new_session=True,  # Ctrl-C is for the recording
            **ids,
        )
        kind, encoding = endpoint.content
        headers = {"Content-Type": kind, "User-Agent": f"bpfprof/{__version__}"}
        headers |= {"Content-Encoding": encoding} if encoding else {}
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        self._write_line(
            {
                "is_tls": endpoint.is_tls,
                "host": endpoint.host,
                "port": endpoint.port,
                "path": endpoint.path,
                "is_otlp": endpoint.path.endswith(OTLP_PATH),
                "headers": headers,
                "folder": str(_folder(endpoint, caller)),
                "limit_bytes": SPOOL_BYTES,
                "end_s": END_S,
                "nice": usual_nice(),
            }
        )
        answer = self._answer()
        if "folder" not in answer:
            self._process.kill()
            self._process.wait()
            raise OutputError(f"profiles cannot be kept until they are sent: {answer.get('error', 'no answer')}")
        self.left_before = int(answer["left_before"])
        self._queue: queue.Queue[Callable[[], Profile] | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._hand_over, name="push", daemon=True)
        self._thread.start()

    def put(self, made: Callable[[], Profile], within_s: float = 0.0) -> None:
        """Where too many wait already, for so long, it is dropped, and counted. made: called in another thread."""
        try:
            self._queue.put(made, within_s > 0, within_s or None)
        except queue.Full:
            self._missed += 1

    def finish(self) -> list[str]:
        """Sends what is left, for at most some seconds; lines that say what became of all."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=END_S)
        self._thread.join(3 * END_S)
        if self._thread.is_alive():
            self._missed += self._queue.qsize()
            self._process.kill()
        else:
            with contextlib.suppress(OSError):
                self._input.close()
        killer = threading.Timer(3 * END_S, self._process.kill)
        killer.daemon = True
        killer.start()
        counts = self._answer()
        self._process.wait()
        killer.cancel()
        return self._lines(counts)

    def _lines(self, counts: dict[str, Any]) -> list[str]:
        where = self._endpoint.text
        lost = {
            "dropped: they came faster than they could be made": self._missed,
            "dropped: they could not be made": self._failed,
            "dropped: too many waited to be sent": int(counts.get("dropped", 0)),
            "refused by the server": int(counts.get("refused", 0)),
            "rejected by the server, of those it took": int(counts.get("rejected", 0)),
            "given up after many tries": int(counts.get("given_up", 0)),
        }
        reason = printable(str(counts.get("reason") or self._reason))
        if not counts:
            return [f"the process that sends to {where} died: how many profiles it sent is not known"]
        lines = [f"{_profiles(int(counts['sent']))} sent to {where}, {int(counts['sent_bytes']) / 1e6:.1f} MB"]
        lines += [f"{_profiles(count)} {what}" for what, count in lost.items() if count]
        if left := int(counts["left"]):
            lines.append(f"{_profiles(left)} not sent yet: in {counts['folder']}, for the next run")
        return lines + ([f"the last that went wrong: {reason}"] if reason and len(lines) > 1 else [])

    def _hand_over(self) -> None:
        usual_priority()  # the recording goes before it
        while (made := self._queue.get()) is not None:
            try:
                body, query = self._endpoint.made(made())
            except Exception as error:  # one that cannot be made is no reason to lose the others
                self._failed, self._reason = self._failed + 1, f"{type(error).__name__}: {error}"
                continue
            try:
                self._write_line({"bytes": len(body), "query": query})
                self._input.write(body)
                self._input.flush()
            except OSError:
                self._missed += 1
            del body, made
            give_back_freed()  # else what one large profile took stays with the process

    @property
    def _input(self) -> Any:
        assert self._process.stdin is not None
        return self._process.stdin

    def _write_line(self, what: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._input.write(json.dumps(what).encode() + b"\n")
            self._input.flush()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline(1 << 16)
        return dict(json.loads(line)) if line.endswith(b"\n") else {}


def _profiles(count: int) -> str:
    return f"{count} profile{'s' * (count != 1)}"


def _folder(endpoint: Endpoint, caller: tuple[int, int] | None) -> Path:
    """Of the user whose files the outputs are, by the XDG base directory specification ("state")."""
    uid = os.geteuid() if caller is None else caller[0]
    state = os.environ.get("XDG_STATE_HOME", "") if caller is None else ""
    if not os.path.isabs(state):
        try:
            state = f"{pwd.getpwuid(uid).pw_dir}/.local/state"
        except KeyError as error:
            raise OutputError(f"user {uid} has no home, in which profiles are kept until they are sent") from error
    return Path(state) / "bpfprof" / "push" / hashlib.sha256(endpoint.text.encode()).hexdigest()[:16]
