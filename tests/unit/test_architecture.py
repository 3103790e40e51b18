"""The house rules that a machine can hold: who may import whom, where a library may be used, how long a file may be."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "bpfprof"
TOP = {
    "pyproject.toml",
    "ebpf",
    "bpfprof",
    "tests",
    "vagrant",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "Makefile",
    "docs",
}
MAX_LINE_COUNT = 400

# Data flows down the rows, imports go up: a package imports itself and the rows above it, never a neighbour.
ROWS = (
    {"__init__", "array_types", "dataclass", "marks"},
    {"errors", "model"},
    {"known"},
    {"abi", "private_cache"},
    {"elf", "proc"},
    {"cpython", "unwind"},
    {"kernel", "recording"},
    {"names", "stacks"},
    {"account", "code"},
    {"capture", "profile"},
    {"query"},
    {"render"},
    {"fleet", "push"},
    {"commands"},
    {"cli", "notebook", "pytest_plugin"},
    {"__main__"},
)
ROW_OF = {package: index for index, row in enumerate(ROWS) for package in row}
# A renderer is a pure function of a profile.
ONLY = {
    "render": {"__init__", "array_types", "dataclass", "errors", "known", "model", "query", "render"},
    "known": {"__init__", "dataclass", "model", "known"},
}
# Which rooms of `query` each of its rooms may know.
ROOMS = {
    "code": set(),
    "work": {"code"},
    "compare": {"code"},
    "waits": {"code", "work"},
    "threads": {"code", "work"},
    "steps": {"code", "work", "compare"},
    "tables": {"code", "work", "waits", "threads"},
    "answer": {"code", "work", "waits", "threads", "steps"},
}
# What the kernel side writes is told from its own numbers while recording only: files outlive them.
KNOW_ABI = {"abi", "capture", "code", "cpython", "elf", "kernel", "unwind"}
LIBRARIES = {"bcc": {"kernel"}, "elftools": {"elf"}, "click": {"cli", "commands"}}
LIBRARIES |= {"IPython": {"notebook"}, "pytest": {"pytest_plugin"}}
LIBRARIES |= {
    "duckdb": {"fleet"},
    "ibis": {"fleet"},
    "pyspark": {"fleet"},
    "pyarrow": {"fleet", "render"},
    "opentelemetry": {"push"},
}

FILES = sorted(path for path in ROOT.rglob("*.py") if "_ebpf" not in path.parts)


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of every import, wherever in the file it stands."""
    inside = ("bpfprof", *path.relative_to(ROOT).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(inside[: len(inside) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def complaint(package: str, module: str) -> str:
    """Why `package` may not import `module`; empty if it may."""
    top, *rest = module.split(".")
    if top in LIBRARIES and package not in LIBRARIES[top]:
        return f"only {sorted(LIBRARIES[top])} may import {top}"
    if top != "bpfprof":
        return ""
    target = rest[0] if rest and rest[0] in ROW_OF else "__init__"
    if rest and target == "__init__" and ((ROOT / rest[0]).is_dir() or (ROOT / f"{rest[0]}.py").is_file()):
        return f"{rest[0]} is in no row"
    if target != package and ROW_OF[target] >= ROW_OF[package]:
        return f"{target} is not above {package}"
    if target == "abi" and package not in KNOW_ABI:
        return f"only {sorted(KNOW_ABI)} may know abi"
    if target not in ONLY.get(package, ROW_OF):
        return f"{package} may only know {sorted(ONLY[package])}"
    return ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_keeps_the_rules(path: Path) -> None:
    package = package_of(path)
    assert package in ROW_OF, f"{package} is in no row: see ROWS"
    found = [(line, module, complaint(package, module)) for line, module in imported_modules(path)]
    assert not [f"line {line}: {module}: {why}" for line, module, why in found if why]
    assert len(path.read_text().splitlines()) <= MAX_LINE_COUNT


def test_no_files_import_one_another() -> None:
    """Nor in a circle, wherever in a file the import stands."""
    name_of = {".".join(("bpfprof", *path.relative_to(ROOT).with_suffix("").parts)): path for path in FILES}
    graph = {
        name: {each for _, module in imported_modules(path) for each in (module, module.rpartition(".")[0])}
        & name_of.keys() - {name}
        for name, path in name_of.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize("path", [*(ROOT / "query").rglob("*.py")], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_of_query_knows_those_below_it(path: Path) -> None:
    room = path.relative_to(ROOT / "query").parts[0]
    known = [module.split(".")[2] for _, module in imported_modules(path) if module.startswith("bpfprof.query.")]
    assert room == "__init__.py" or {*known} <= ROOMS[room] | {room}


@pytest.mark.parametrize(
    ("package", "module"),
    [
        ("elf", "bpfprof.proc.maps"),
        ("model", "bpfprof.errors.BpfprofError"),
        ("profile", "bpfprof.render"),
        ("render", "bpfprof.stacks.stitch"),
        ("recording", "bcc.BPF"),
        ("account", "bpfprof.abi.CONSTANTS"),
        ("proc", "elftools.elf"),
        ("capture", "click"),
        ("commands", "IPython.display.display"),
    ],
)
def test_the_rules_bite(package: str, module: str) -> None:
    assert complaint(package, module)


@pytest.mark.parametrize(
    ("package", "module"),
    [
        ("elf", "bpfprof.elf.image"),
        ("cli", "bpfprof.commands.record"),
        ("render", "bpfprof.__version__"),
        ("kernel", "bcc.BPF"),
    ],
)
def test_the_rules_allow(package: str, module: str) -> None:
    assert not complaint(package, module)


@pytest.mark.skipif(not (ROOT.parent / ".git").exists(), reason="no checkout")
def test_nothing_else_stands_at_the_top() -> None:
    """A folder that a program made where it ran is added with all else."""
    files = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files"], cwd=ROOT.parent, capture_output=True, text=True, check=True
    )
    assert {top for top in (line.split("/")[0] for line in files.stdout.splitlines()) if top[0] != "."} <= TOP
