"""What the oracles share: programs at once, the recording of them, and tables of programs by interpreters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from tests.integration.recorded import ALL_INTERPRETERS, Target, bpfprof, running

Command = tuple[Sequence[str], Mapping[str, str]]  # its words, and what its environment has beside what all have
S = TypeVar("S")
_TOGETHER = 6  # in one recording: they mostly sleep


@contextmanager
def started(commands: Mapping[str, Command]) -> Iterator[dict[str, Target]]:
    """All of them at once."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(running(*words, env={**env})) for name, (words, env) in commands.items()}


def record(path: Path, pids: Iterable[int], seconds: float, *options: str | int) -> None:
    bpfprof("record", *(word for pid in pids for word in ("-p", pid)), "-d", seconds, *options, "-o", path)


def chosen(names: Iterable[str], words: Sequence[str]) -> list[str]:
    """Those that are called like a word, else those that have it in their names; all of them without a word."""
    names = [*names]
    return [it for it in names if not words or any(it == word or (word not in names and word in it) for word in words)]


def by_interpreter(
    versions: Iterable[str],
    commands_of: Callable[[str], dict[str, Command]],
    scores_of: Callable[[dict[str, Command]], dict[str, S]],
) -> dict[str, dict[str, S]]:
    """Interpreter -> program -> score, of the interpreters that are here."""
    found: dict[str, dict[str, S]] = {version: {} for version in versions if version in ALL_INTERPRETERS}
    for version, scores in found.items():
        commands = [*commands_of(version).items()]
        for begin in range(0, len(commands), _TOGETHER):
            scores |= scores_of(dict(commands[begin : begin + _TOGETHER]))
    return found


def show(heading: str, found: Mapping[str, Mapping[str, S]], kinds: Iterable[str]) -> None:
    """A column for each interpreter."""
    print(heading)
    print(" " * 28 + "".join(f"{version:>18}" for version in found))
    for kind in kinds:
        print(f"{kind:28}" + "".join(f"{scores.get(kind, ''):>18}" for scores in found.values()))
