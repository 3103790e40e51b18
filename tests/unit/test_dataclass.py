"""Its classes are as the standard library's: made, compared, hashed, printed, replaced."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import field

import pytest

from bpfprof.dataclass import dataclass


@dataclass(frozen=True)
class Ours:
    name: str
    sizes: list[int] = field(default_factory=list, compare=False)
    count: int = 5
    note: str = field(default="", repr=False)


@dataclasses.dataclass(frozen=True)
class Theirs:
    name: str
    sizes: list[int] = field(default_factory=list, compare=False)
    count: int = 5
    note: str = field(default="", repr=False)


@dataclass(frozen=True)
class One:
    value: tuple[int, ...]


@dataclass
class Open:
    value: int = 1


@dataclass
class More(Open):
    other: int = 2

    def __repr__(self) -> str:
        return "more"


@dataclass(frozen=True)
class Nothing:
    pass


def test_made_compared_hashed_and_printed() -> None:
    for one, other in ((("a",), ("a", [1])), (("a",), ("b",)), (("a", [], 6), ("a",)), (("a", [], 5, "x"), ("a",))):
        assert (Ours(*one) == Ours(*other)) is (Theirs(*one) == Theirs(*other))  # type: ignore[arg-type]
        assert (hash(Ours(*one)) == hash(Ours(*other))) is (hash(Theirs(*one)) == hash(Theirs(*other)))  # type: ignore[arg-type]
    assert repr(Ours("a", note="x")) == repr(Theirs("a", note="x")).replace("Theirs", "Ours")
    assert Ours("a") != Theirs("a") and Ours("a") != "a"
    assert len({One((1,)), One((1,)), One((2,))}) == 2
    assert Nothing() == Nothing() and hash(Nothing()) == hash(Nothing())
    with pytest.raises(TypeError):
        Ours()  # type: ignore[call-arg]


def test_what_changes_has_no_hash_and_a_method_of_its_own_stays() -> None:
    with pytest.raises(TypeError):
        hash(Open())
    assert More() == More(1, 2) and More() != More(1, 3) and More() != Open()
    assert repr(More()) == "more" and repr(Open(3)) == "Open(value=3)"


def test_what_the_standard_library_does_with_them() -> None:
    ours = Ours("a", [1])
    assert dataclasses.replace(ours, count=7) == Ours("a", count=7)
    assert dataclasses.asdict(ours) == {"name": "a", "sizes": [1], "count": 5, "note": ""}
    assert [each.name for each in dataclasses.fields(Ours)] == ["name", "sizes", "count", "note"]
    assert copy.deepcopy(ours) == ours == pickle.loads(pickle.dumps(ours))
