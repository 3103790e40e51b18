"""Profile with its spans -> one HTML page that needs nothing but a browser: no network, no second file.

The numbers are little-endian columns behind a JSON head, compressed and in base64: `<script id="data">`, which is
no script. The browser makes a profile of them again (assets/page/data.js), so that a part of the time, or of the
threads, is added up where it is chosen.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from dataclasses import replace
from html import escape

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.ahead import second_thread
from bpfprof.model.grouping import sums_by
from bpfprof.model.memory import give_back_freed
from bpfprof.model.profile import Profile
from bpfprof.query.work.table import work_of
from bpfprof.render.formats import RenderOptions
from bpfprof.render.named_locks import with_named_locks
from bpfprof.render.page_spans import PageSpans, page_looks, page_spans_of
from bpfprof.render.page_tables import page_files, page_frames, page_groups, page_tables, page_waits
from bpfprof.render.scripts import asset, joined

# Each after those whose names it uses.
_MODULES = (
    "tree",
    "data",
    "sums",
    "look",
    "view",
    "dom",
    "table",
    "gil",
    "timeline",
    "flame",
    "details",
    "tables",
    "source",
    "shell",
    "main",
)
_ALIGNED = 8  # bytes
_LEVEL = 5  # of zlib: half the time of 6, and 2% larger (28 MB of a page: 0.35 and 0.69 s, 5.18 and 5.07 MB)
_GZIP_HEAD = bytes([0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 3])  # deflated, without a time, on Unix


def render_page(profile: Profile, options: RenderOptions) -> str:
    """A complete HTML document. Raises ValueError if the profile was built without its spans."""
    work = work_of(profile)
    give_back_freed()  # what follows needs much memory, too
    groups = page_groups(profile, work, options.merge)
    with second_thread() as other:
        drawn = with_named_locks(profile, work, options)
        looks = page_looks(drawn, work, groups.group_of)
        drawn = replace(drawn, spans=None)  # it has them twice in memory
        give_back_freed()
        making = other.submit(page_spans_of, drawn, *looks, groups.group_of)
        tables, serve_nobody = page_tables(profile, work, groups, options), work.serve_nobody
        del work, looks
        give_back_freed()
        tables["waits"] = page_waits(profile, serve_nobody, options)
        spans = making.result()
    give_back_freed()
    tables["frames"] = page_frames(drawn, options)
    tables["files"] = page_files(drawn, options, _by_time(drawn, spans))
    tables |= {"span_count": spans.span_count, "bucket_ns": spans.bucket_ns, "is_apart": spans.is_apart}
    return document(str(tables["title"]), tables, spans.columns, page_script())


def document(title: str, head: dict[str, object], columns: dict[str, npt.NDArray[np.generic]], script: str) -> str:
    """The page around a script and the data that it reads: `head` as JSON, and columns of numbers."""
    data = f'<script type="application/octet-stream" id="data">{_packed(head, columns)}</script>\n'
    return around(title, asset("page/page.html") + data, script)


def around(title: str, body: str, script: str, more_style: str = "") -> str:
    """A document with what all pages have; body: from its begin tag on, without its end."""
    style = asset("page/page.css") + more_style
    policy = f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}; form-action \'none\'">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)} - bpfprof</title>\n<style>{style}</style>\n</head>\n{body}"
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def page_script() -> str:
    """All modules as one."""
    return joined([f"page/{name}" for name in _MODULES])


def _by_time(profile: Profile, spans: PageSpans) -> npt.NDArray[np.generic]:
    """Places of the frames that most time is of, most first."""
    columns = spans.columns
    weight = columns["duration_low"].astype(np.int64) + (columns["duration_high"].astype(np.int64) << 32)
    owner = columns["place_owner"].astype(np.int64)[columns["place"].astype(np.int64)]
    of_frame = sums_by(owner, weight * (1 + 9 * (columns["kind"] == 0)), len(profile.frames) + 1)[1:]
    order = np.argsort(-of_frame, kind="stable")
    return np.asarray(order[of_frame[order] > 0])


def _packed(head: dict[str, object], columns: dict[str, npt.NDArray[np.generic]]) -> str:
    """Base64 of the gzip form (RFC 1952) of: length of the head in 4 bytes, the head, the columns."""
    body, places = [], {}
    size = 0
    for name, column in columns.items():
        content = column.astype(column.dtype.newbyteorder("<")).tobytes()
        places[name] = (column.dtype.str.lstrip("<|"), size, len(column))
        padding = -len(content) % _ALIGNED
        body.append(content + bytes(padding))
        size += len(content) + padding
    text = json.dumps({**head, "columns": places}, separators=(",", ":")).encode()
    text += b" " * ((-len(text) - 4) % _ALIGNED)
    whole = b"".join([len(text).to_bytes(4, "little"), text, *body])
    body.clear()
    return base64.b64encode(_gzipped(whole)).decode("ascii")


def _gzipped(content: bytes) -> bytes:
    """The gzip form (RFC 1952), made by two threads: a block that begins anew can follow any other (RFC 1951)."""
    middle = len(content) // 2
    halves = memoryview(content)[:middle], memoryview(content)[middle:]
    with second_thread() as other:
        first = other.submit(_deflated, halves[0], zlib.Z_FULL_FLUSH)
        second = _deflated(halves[1], zlib.Z_FINISH)
        sums = zlib.crc32(content), len(content) & 0xFFFFFFFF
        return b"".join([_GZIP_HEAD, first.result(), second, *(each.to_bytes(4, "little") for each in sums)])


def _deflated(content: memoryview, flush: int) -> bytes:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(content) + packer.flush(flush)


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
