"""What is in the gate (docs/development.md) depends on the code alone: no test in it has a bound on time."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.tiers import GATE_FOLDERS

TESTS = Path(__file__).resolve().parents[1]
CLOCKS = {"process_time", "perf_counter", "thread_time", "least_cpu_s"}


def names_in(tree: ast.AST) -> set[str]:
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return attributes | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def with_a_bound(path: Path) -> list[str]:
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    tests = [node for node in functions if node.name.startswith("test_")]
    in_gate = [node for node in tests if not any("second_tier" in names_in(mark) for mark in node.decorator_list)]
    return [f"{path.name}::{node.name}" for node in in_gate if CLOCKS & names_in(node)]


@pytest.mark.parametrize("folder", GATE_FOLDERS)
def test_no_test_of_the_gate_has_a_bound_on_time(folder: str) -> None:
    paths = sorted((TESTS / folder).rglob("test_*.py"))
    assert not [name for path in paths for name in with_a_bound(path)]
