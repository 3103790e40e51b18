"""A URL -> where profiles are sent, and as what: OTLP, or pprof as Pyroscope takes it."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from urllib.parse import quote, urlencode, urlsplit

from bpfprof.dataclass import dataclass
from bpfprof.errors import UsageError
from bpfprof.model.profile import Profile
from bpfprof.push.names import app_name, label
from bpfprof.render.formats import RenderOptions
from bpfprof.render.labels import printable
from bpfprof.render.pprof import render_pprof

# opentelemetry.io/docs/specs/otlp, "OTLP/HTTP Request"; the profiles of opentelemetry-proto are in v1development.
OTLP_PATH, OTLP_PORT = "/v1development/profiles", 4318
PYROSCOPE_PATH = "/ingest"  # grafana.com/docs/pyroscope, "Server HTTP API"
_URL = re.compile(r"[!-~]+")  # no spaces, nothing that ends a line
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Endpoint:
    """host, port: of one server; it is never another. content: the content type, and how it is encoded ("": not)."""

    is_tls: bool
    host: str
    port: int
    path: str
    content: tuple[str, str]
    made: Callable[[Profile], tuple[bytes, str]]  # (the body, the query of the URL)
    names_locks: bool  # in profiles, which are built with their spans for that

    @property
    def text(self) -> str:
        """As a person would type it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' * self.is_tls}://{host}:{self.port}{self.path}"


def endpoint_of(url: str, has_token: bool) -> Endpoint:
    """Of a path that ends in /ingest that of Pyroscope, else of OTLP, whose own path is added where there is none.

    Raises UsageError.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"--push: {error}", "give it as http://HOST:PORT") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or not _URL.fullmatch(url):
        raise UsageError(f"--push: {printable(url)!r} is no URL of http or https", "give it as http://HOST:PORT")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise UsageError(
            "--push: others can read what stands on a command line", "put a token into BPFPROF_PUSH_TOKEN, without user"
        )
    is_tls = parts.scheme == "https"
    if has_token and not is_tls and parts.hostname not in _LOOPBACK:
        raise UsageError("--push: a token can be read on its way over http", "use https")
    if parts.path.endswith(PYROSCOPE_PATH):
        content = "application/octet-stream", ""
        return Endpoint(
            is_tls, parts.hostname, port or (443 if is_tls else 4040), parts.path, content, _pyroscope, True
        )
    path = parts.path if parts.path.endswith(OTLP_PATH) else parts.path.rstrip("/") + OTLP_PATH
    content = "application/x-protobuf", "gzip"
    return Endpoint(is_tls, parts.hostname, port or (443 if is_tls else OTLP_PORT), path, content, _otlp, False)


def _otlp(profile: Profile) -> tuple[bytes, str]:
    from bpfprof.push.otlp import otlp_request

    return gzip.compress(otlp_request(profile), 6, mtime=0), ""


def _pyroscope(profile: Profile) -> tuple[bytes, str]:
    info = profile.info
    until_ns = info.started_unix_ns + info.duration_ns
    query = {
        "name": f"{app_name(profile)}{{host={label(info.host_name)}}}",
        "from": str(info.started_unix_ns // 1_000_000_000),
        "until": str(-(-until_ns // 1_000_000_000)),
        "format": "pprof",
        "spyName": "bpfprof",
        "sampleRate": str(info.rate_hz or 100),
    }
    return render_pprof(profile, RenderOptions()), urlencode(query, quote_via=quote)
