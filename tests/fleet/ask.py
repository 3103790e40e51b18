"""`python -m tests.fleet.ask DIR ENGINE QUERY...`: what they answer, one JSON object, with one start of the engine."""

from __future__ import annotations

import dataclasses
import json
import sys

from bpfprof.fleet import answers
from bpfprof.fleet.answers import Asked
from bpfprof.fleet.engines import Limits, opened

QUERIES = {
    "top": (answers.top, Asked(limit=100)),
    "top of a host": (
        answers.top,
        Asked(where=[("host", "node-03"), ("date", "2026-11-02..2026-11-04")], sort="total"),
    ),
    "waits": (answers.waits, Asked()),
    "hourly waits": (answers.waits, Asked(where=[("date", "2026-11-08")], every_s=3600)),
    "hosts": (answers.slow, Asked(limit=3)),
    "ranks": (answers.slow, Asked(by="rank", sort="work", where=[("version", "1.5")], limit=100)),
    "steps": (answers.slow, Asked(by="rank", sort="step", limit=5)),
    "versions": (answers.regressions, Asked(before=[("version", "1.4")], after=[("version", "1.5")])),
    "dates": (
        answers.regressions,
        Asked(before=[("date", "..2026-11-02")], after=[("date", "2026-11-03..2026-11-04")]),
    ),
}


def main() -> None:
    folder, engine, *names = sys.argv[1:]
    with opened(folder, engine, Limits()) as found:
        told = {name: ask(found, asked) for name, (ask, asked) in QUERIES.items() if name in names}
    plain = {name: answer if isinstance(answer, dict) else dataclasses.asdict(answer) for name, answer in told.items()}
    print(json.dumps(plain))


if __name__ == "__main__":
    main()
