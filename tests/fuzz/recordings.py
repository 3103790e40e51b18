"""Recordings: chunks with other JSON, other columns and other numbers in them, through what `report` shows."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import marshal
import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from bpfprof.errors import RecordingError
from bpfprof.fleet.layout import TABLES
from bpfprof.fleet.tables import Tables
from bpfprof.model.profile import Profile
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.recording.format import MAGIC, Chunk, decode, encode
from bpfprof.recording.reader import read_recording
from bpfprof.render.formats import FORMATS, Format, RenderOptions
from tests.fuzz.engine import Fuzzer
from tests.hostile.recordings import ATTACKS
from tests.unit.recording.hand_made import file_bytes, small

_NUMBERS = (0, 1, 2, 3, 7, 255, 256, 65_535, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 58) + 1, (1 << 62) - 1, 1 << 62)
_WORDS = (*_NUMBERS, (1 << 63) - 1, (1 << 64) - 1)
_VALUES: tuple[Any, ...] = (None, -1, 1.5, "", "x" * 500, "\x1b]0;x\x07", "</script>", [], {}, True, [[]], *_WORDS)
_TYPES = ("<u8", "<i8", "<u4", "<i4", "<u2", "<i2", "|u1", "|i1", "<f8", "<f4")
# What reads some of the formats, those of bytes among them.
_READERS: dict[str, Callable[[Any], object]] = {
    "json": json.loads,
    "speedscope": json.loads,
    "chrome": json.loads,
    "gecko": json.loads,
    "pprof": gzip.decompress,
    "pstats": marshal.loads,
}
_CONTROL = re.compile("[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e]")


def tables_as_text(profile: Profile, _options: RenderOptions) -> str:
    """All tables of a data set."""
    tables = Tables(profile, {"version": "1"})
    rows = [part.to_pylist() for name in TABLES for part in tables.table(name)]
    return json.dumps(rows, default=str, ensure_ascii=False)


_DATA_SET = Format("data set", (), (), "", f"{__name__}:{tables_as_text.__name__}", needs_spans=True)


class Recordings(Fuzzer):
    """The bytes of a file."""

    name = "recordings"

    def seeds(self) -> list[bytes]:
        made = [file_bytes(small().chunks()), *(file_bytes(attack(4)) for attack in ATTACKS.values())]
        return [data for data in made if len(data) < 1 << 16]

    def mutant(self, data: bytes, other: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.1:
            return super().mutant(data, other, rng)
        chunks = _chunks(data)
        if other is not data and rng.random() < 0.1:
            chunks += rng.sample(_chunks(other), 1)
        for _ in range(rng.choice((1, 1, 2, 4, 10))):
            _change(chunks, rng)
        with contextlib.suppress(ValueError):  # an array of this type cannot hold that
            return MAGIC + b"".join(map(encode, chunks))
        return data

    def read(self, data: bytes, rng: random.Random) -> object:
        try:
            recording = read_recording(io.BytesIO(data))
        except RecordingError as error:
            return re.sub(r"[0-9]+|'.*'", "", str(error))
        form = rng.choice((*FORMATS, _DATA_SET))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            profile = build_profile(recording, ProfileOptions(with_spans=form.needs_spans))
            output = form.render(profile, RenderOptions())
        if isinstance(output, str):
            assert not _CONTROL.search(output), form.name
        if form.name in _READERS:
            _READERS[form.name](output)
        # What came of it, roughly: the same words and as many threads, stacks and spans to a factor of two.
        counts = [len(profile.threads), len(profile.stacks), len(profile.weights), len(recording.waits)]
        words = re.sub(r"[0-9]+|'.*'", "", recording.unfinished)
        return (words, *(count.bit_length() for count in counts))


def _chunks(data: bytes) -> list[Chunk]:
    file, chunks = io.BytesIO(data[len(MAGIC) :]), []
    with contextlib.suppress(RecordingError):
        while (chunk := decode(file)) is not None:
            chunks.append(chunk)
    return chunks or _chunks(file_bytes(small().chunks()))


def _change(chunks: list[Chunk], rng: random.Random) -> None:
    how, place = rng.random(), rng.randrange(len(chunks))
    chunk = chunks[place]
    if how < 0.05 and len(chunks) > 1:
        del chunks[place]
    elif how < 0.1:
        chunks.insert(rng.randrange(len(chunks)), chunk)
    elif how < 0.35 and chunk.fields:
        fields = json.loads(json.dumps(chunk.fields))
        _change_json(fields, rng)
        chunks[place] = Chunk(chunk.kind, fields, chunk.arrays)
    elif chunk.arrays:
        name = rng.choice(sorted(chunk.arrays))
        chunks[place] = Chunk(chunk.kind, chunk.fields, {**chunk.arrays, name: _changed(chunk.arrays[name], rng)})


def _change_json(value: Any, rng: random.Random) -> None:
    places = sorted(value) if isinstance(value, dict) else range(len(value))
    if not places:
        return
    place = rng.choice(places)
    if isinstance(value[place], (dict, list)) and value[place] and rng.random() < 0.8:
        _change_json(value[place], rng)
    elif rng.random() < 0.1:
        del value[place]
    else:
        value[place] = rng.choice(_VALUES)


def _changed(array: Any, rng: random.Random) -> Any:
    array = array.copy()
    names = array.dtype.names
    if names is None or rng.random() < 0.05:
        if len(array) and names is None:
            array[rng.randrange(len(array))] = np.asarray(rng.choice(_WORDS), np.uint64).astype(array.dtype)
        return (
            array[: rng.randrange(len(array) + 1)] if rng.random() < 0.5 else np.repeat(array, rng.randrange(4))[:5000]
        )
    name = rng.choice(names)
    how = rng.random()
    if how < 0.1:  # another type, or none
        kept = [(one, array.dtype[one]) for one in names if one != name]
        if rng.random() < 0.7 or not kept:
            kept.append((name, np.dtype(rng.choice(_TYPES))))
        made = np.zeros(len(array), kept)
        with np.errstate(all="ignore"):
            for one, kind in kept:
                if array.dtype[one].shape == kind.shape:
                    made[one] = array[one]
        return made
    value = np.asarray(rng.choice(_WORDS), np.uint64).astype(array.dtype[name].base)
    if how < 0.3:
        array[name] = value
    elif len(array) and how < 0.6:
        array[name][rng.randrange(len(array))] = value
    elif how < 0.7:
        array[name] = array[name][::-1].copy()
    elif len(array) and array.dtype[name].shape == ():
        other = rng.choice([one for one in names if array.dtype[one].shape == ()])
        with np.errstate(all="ignore"):
            array[name] = array[other].astype(array.dtype[name]) + np.arange(len(array)).astype(array.dtype[name])
    return array
