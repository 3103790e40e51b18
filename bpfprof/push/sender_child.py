"""A process that keeps bodies in a folder and posts them to one server: run by outbox.py, as the caller.

Standard input: a line of JSON with the settings, then for each body a line of JSON (`bytes`, `query`) and the bytes.
Its end is the end: what is there is sent for some more seconds, what is left stays for the next run. Standard output: a
line of JSON when it is ready (`error`: why it is not), and one with the counts at the end.

Reading never waits for the server, so who writes does not either.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import socket
import stat
import sys
import threading
import time
from typing import Any, BinaryIO

_ATTEMPT_S = 15.0  # connecting, sending and the answer together, each
_MOST_TRIES = 100  # of a body in one run
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_ANSWER_BYTES = 4096
_RETRIED = (408, 425, 429, 500, 502, 503, 504)
_FOLDERS = 16  # others send to the same server at the same time
_LINE_BYTES = 65536


class Spool:
    """Bodies in a private folder, the oldest first; with more than limit_bytes the oldest are dropped."""

    def __init__(self, root: str, limit_bytes: int) -> None:
        self.dropped, self.limit_bytes = 0, limit_bytes
        self.folder, self._lock = self._opened(root)
        for name in os.listdir(self.folder):
            if name.endswith(".new"):
                os.unlink(os.path.join(self.folder, name))  # of a run that ended while it was written
        self._sizes = {name: os.lstat(os.path.join(self.folder, name)).st_size for name in self._names()}
        self._number = max([int(name) for name in self._sizes], default=0)
        self.left_before = len(self._sizes)
        self._guard = threading.Lock()

    @staticmethod
    def _opened(root: str) -> tuple[str, int]:
        os.umask(0o077)
        for number in range(_FOLDERS):
            folder = root if not number else f"{root}-{number}"
            os.makedirs(folder, mode=0o700, exist_ok=True)
            status = os.lstat(folder)
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o77:
                raise OSError(f"{folder} is not a private folder")
            lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return folder, lock
            except BlockingIOError:
                os.close(lock)
        raise OSError(f"{_FOLDERS} others send to the same server")

    def _names(self) -> list[str]:
        return sorted(name for name in os.listdir(self.folder) if name.isdigit())

    def put(self, query: str, body: bytes) -> None:
        """Where that cannot be it is dropped."""
        content = json.dumps({"query": query}).encode() + b"\n" + body
        with self._guard:
            if len(content) > self.limit_bytes:
                self.dropped += 1
                return
            while self._sizes and sum(self._sizes.values()) + len(content) > self.limit_bytes:
                self._forget(min(self._sizes))
                self.dropped += 1
            self._number += 1
            name = f"{self._number:020d}"
            path = os.path.join(self.folder, name)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with os.fdopen(os.open(f"{path}.new", flags, 0o600), "wb") as file:
                    file.write(content)
                os.rename(f"{path}.new", path)
                self._sizes[name] = len(content)
            except OSError:
                self.dropped += 1
                if os.path.lexists(f"{path}.new"):
                    os.unlink(f"{path}.new")

    def oldest(self) -> tuple[str, str, bytes] | None:
        """(name, query, body); None: there is none."""
        with self._guard:
            while self._sizes:
                name = min(self._sizes)
                try:
                    fd = os.open(os.path.join(self.folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                    with os.fdopen(fd, "rb") as file:
                        line, _, body = file.read(self.limit_bytes + 1).partition(b"\n")
                    return name, str(json.loads(line)["query"]), body
                except (OSError, ValueError, KeyError, TypeError):
                    self._forget(name)
                    self.dropped += 1
            return None

    def forget(self, name: str) -> None:
        """It is sent, or given up; that it was dropped meanwhile is no matter."""
        with self._guard:
            self._forget(name)

    def _forget(self, name: str) -> None:
        self._sizes.pop(name, None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.folder, name))

    def has(self, name: str) -> bool:
        with self._guard:
            return name in self._sizes

    def count(self) -> int:
        with self._guard:
            return len(self._sizes)


class Sender:
    """Posts what the spool has, one after the other, in a thread of its own."""

    def __init__(self, settings: dict[str, Any], spool: Spool) -> None:
        self._settings, self._spool = settings, spool
        self.sent = self.sent_bytes = self.refused = self.rejected = self.given_up = self.retries = 0
        self.reason = ""
        self._changed = threading.Condition()
        self._end_s = 0.0
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def has_new(self) -> None:
        with self._changed:
            self._changed.notify()

    def end(self, within_s: float) -> None:
        """Returns when all is sent, or the time is over."""
        with self._changed:
            self._end_s = time.monotonic() + within_s
            self._changed.notify()
        self.thread.join(within_s)

    def _run(self) -> None:
        pause_s, tries, last = _FIRST_PAUSE_S, 0, ""
        while not self._end_s or time.monotonic() < self._end_s:
            found = self._spool.oldest()
            if found is None:
                with self._changed:
                    if self._end_s:
                        return
                    self._changed.wait(1.0)
                continue
            name, query, body = found
            tries, last = (tries + 1 if name == last else 1), name
            status, reason, after_s = self._post(query, body)
            if 200 <= status < 300:
                self.sent += 1
                self.sent_bytes += len(body)
                self._spool.forget(name)
                pause_s = _FIRST_PAUSE_S
                continue
            self.reason = reason
            if status and status not in _RETRIED:
                self.refused += 1
                self._spool.forget(name)
            elif tries >= _MOST_TRIES:
                self.given_up += self._spool.has(name)
                self._spool.forget(name)
            else:
                self.retries += 1
                self._wait(max(pause_s, after_s))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _wait(self, seconds: float) -> None:
        """Shorter at the end, when there is no other time."""
        until_s = time.monotonic() + seconds
        with self._changed:
            while (left_s := until_s - time.monotonic()) > 0:
                if self._end_s:
                    left_s = min(left_s, _FIRST_PAUSE_S)
                    self._changed.wait(left_s)
                    return
                self._changed.wait(left_s)

    def _post(self, query: str, body: bytes) -> tuple[int, str, float]:
        """(status, 0: there was no answer, what to say of it, seconds that the server asks to wait)"""
        settings = self._settings
        kind = http.client.HTTPSConnection if settings["is_tls"] else http.client.HTTPConnection
        connection = kind(settings["host"], settings["port"], timeout=_ATTEMPT_S)
        # The timeout is of each call; a server that sends a byte now and then would have no end.
        is_done = threading.Event()
        threading.Thread(target=_cut_late, args=[connection, is_done], daemon=True).start()
        try:
            path = settings["path"] + (f"?{query}" if query else "")
            connection.request("POST", path, body, settings["headers"])
            answer = connection.getresponse()  # a redirection is not followed: it is an answer as any other
            content = answer.read(_ANSWER_BYTES)
            after = answer.headers.get("Retry-After", "")
            after_s = (
                min(float(after), _LONGEST_PAUSE_S) if after.isascii() and after.isdigit() and len(after) < 6 else 0
            )
            if 200 <= answer.status < 300 and settings["is_otlp"]:
                self.rejected += _rejected(content)
            return answer.status, f"HTTP {answer.status}", after_s
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            name = (error.strerror or str(error)) if isinstance(error, OSError) else type(error).__name__
            return 0, name or type(error).__name__, 0.0
        finally:
            is_done.set()
            connection.close()


def _cut_late(connection: http.client.HTTPConnection, is_done: threading.Event) -> None:
    is_done.wait(_ATTEMPT_S)
    while not is_done.wait(1.0):
        with contextlib.suppress(OSError, AttributeError):
            connection.sock.shutdown(socket.SHUT_RDWR)


def _rejected(answer: bytes) -> int:
    """partial_success.rejected_profiles of an ExportProfilesServiceResponse: field 1 of field 1."""
    if answer[:1] != b"\x0a" or answer[2:3] != b"\x08":
        return 0
    count = 0
    for place, byte in enumerate(answer[3:13]):
        count |= (byte & 127) << 7 * place
        if byte < 128:
            return count
    return 0


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main(stream: BinaryIO) -> None:
    settings = json.loads(stream.readline(_LINE_BYTES))
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, 0, settings["nice"])  # bpfprof goes before others; this need not
    try:
        spool = Spool(settings["folder"], settings["limit_bytes"])
    except OSError as error:
        _say({"error": f"{error.strerror or error}: {error.filename or settings['folder']}"})
        return
    sender = Sender(settings, spool)
    _say({"folder": spool.folder, "left_before": spool.left_before})
    taken = cut = 0
    while line := stream.readline(_LINE_BYTES):
        head = json.loads(line)
        body = stream.read(head["bytes"])
        if len(body) < head["bytes"]:
            cut += 1
            break
        taken += 1
        spool.put(head["query"], body)
        sender.has_new()
    sender.end(settings["end_s"])
    names = ("sent", "sent_bytes", "refused", "rejected", "given_up", "retries", "reason")
    counts = {name: getattr(sender, name) for name in names}
    _say(
        {**counts, "taken": taken, "dropped": spool.dropped, "cut": cut, "left": spool.count(), "folder": spool.folder}
    )
    os._exit(0)  # a name may still be looked up, which has no end of its own


if __name__ == "__main__":
    main(sys.stdin.buffer)
