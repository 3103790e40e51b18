"""What the running kernel is like, from its types; it is asked once."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfprof import private_cache
from bpfprof.errors import UnsupportedError
from bpfprof.kernel import btf, kernel_facts
from bpfprof.kernel.btf import kernel_identity
from bpfprof.kernel.kernel_facts import facts_of, kernel_version_code
from bpfprof.kernel.sources import NUMBERS


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(private_cache, "cache_directory", lambda: tmp_path / "cache")
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("release", "version"),
    [
        ("6.18.44-cloud-amd64", (6, 18, 44)),
        ("6.1.0-18-amd64", (6, 1, 0)),
        ("5.10.300", (5, 10, 255)),
        ("6.8.0-45-generic", (6, 8, 0)),
        ("7.0.0-rc3+", (7, 0, 0)),
        ("6.6", (6, 6, 0)),
    ],
)
def test_version_code(release: str, version: tuple[int, int, int]) -> None:
    major, minor, patch = version
    assert kernel_version_code(release) == (major << 16) + (minor << 8) + patch


def test_the_running_kernel_has_a_version() -> None:
    assert kernel_version_code() > 4 << 16


def test_a_kernel_without_ring_buffers_is_too_old() -> None:
    class Types:
        def has_name(self, name: str) -> bool:
            return name != "BPF_FUNC_ringbuf_output"

    with pytest.raises(UnsupportedError, match=r"no BPF ring buffer, which Linux 5\.8 brought"):
        facts_of(Types(), True)  # type: ignore[arg-type]


def test_numbers_are_those_of_the_types() -> None:
    class Types:
        """Every member is at the length of its name."""

        def offset(self, _struct_name: str, member: str) -> int:
            return len(member)

        def percpu_distance(self, first: str, second: str) -> int:
            return len(second) - len(first)

        def has_name(self, _name: str) -> bool:
            return True

    facts = facts_of(Types(), True)  # type: ignore[arg-type]
    assert facts.takes_pointer and facts.uses_links and len(facts.numbers) == len(NUMBERS)
    assert (facts.number("BP_OFFSET_TASK_PID"), facts.number("BP_OFFSET_TASK_TGID")) == (3, 4)
    assert facts.number("BP_OFFSET_TASK_EXEC") == len("se") + len("sum_exec_runtime")
    assert facts.number("BP_OFFSET_TASK_RUN_DELAY") == len("sched_info") + len("run_delay")
    assert facts_of(Types(), False).number("BP_OFFSET_TASK_RUN_DELAY") == 0  # type: ignore[arg-type]


def test_what_older_kernels_lack_is_asked_of_their_types() -> None:
    """No helper bpf_task_pt_regs, and a tracepoint sched_switch without the state, whose member has its old name."""

    class Types:
        def offset(self, _struct_name: str, member: str) -> int:
            return {"state": 24, "stack": 32}.get(member, 8)

        def percpu_distance(self, _first: str, second: str) -> int:
            return 64 if second == "pcpu_hot" else 0

        def has_name(self, name: str) -> bool:
            return name not in ("BPF_FUNC_task_pt_regs", "__state")

        def parameters(self, _function: str) -> int:
            return 4

    facts = facts_of(Types(), True)  # type: ignore[arg-type]
    assert not facts.takes_pointer
    assert (facts.number("BP_OFFSET_TASK_STACK"), facts.number("BP_RQ_TO_PREEMPT_COUNT")) == (32, 72)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_facts, "kernel_version_code", lambda: 5 << 16 | 10 << 8)
        old = facts_of(Types(), True)  # type: ignore[arg-type]
        assert old.number("BP_OFFSET_TASK_STATE") == 24


def test_a_kernel_without_a_build_id_is_known_by_its_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < len(kernel_identity()) < 65536
    types, notes = tmp_path / "vmlinux", tmp_path / "notes"
    types.write_bytes(b"types")
    monkeypatch.setattr(btf, "BTF_PATH", types)
    monkeypatch.setattr(btf, "_NOTES_PATH", notes)
    assert kernel_identity() == b"types"
    notes.write_bytes(b"other notes")
    assert kernel_identity() == b"types"
    types.unlink()
    with pytest.raises(UnsupportedError, match="no type information"):
        kernel_identity()


def test_without_types_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(btf, "BTF_PATH", tmp_path / "missing")
    with pytest.raises(UnsupportedError, match="no type information"):
        kernel_facts.kernel_facts()


def test_it_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = kernel_facts.kernel_facts()
    assert facts == facts_of(btf.KernelTypes(), kernel_facts.keeps_run_delay())
    monkeypatch.setattr(kernel_facts, "KernelTypes", None)
    assert kernel_facts.kernel_facts() == facts
    for name, other in (("kernel_identity", b"another"), ("keeps_run_delay", not kernel_facts.keeps_run_delay())):
        with monkeypatch.context() as patch, pytest.raises(TypeError):  # it would be asked again
            patch.setattr(kernel_facts, name, lambda other=other: other)
            kernel_facts.kernel_facts()
    monkeypatch.setattr(kernel_facts, "NUMBERS", NUMBERS[::-1])
    with pytest.raises(TypeError):
        kernel_facts.kernel_facts()


@pytest.mark.parametrize(
    "content", [b"", b"not JSON", b"[1]", b'{"numbers": [1]}', b'{"numbers": "x"}', b'{"numbers": 5}']
)
def test_what_another_version_kept_is_no_error(content: bytes, folder: Path) -> None:
    facts = kernel_facts.kernel_facts()
    (file,) = folder.iterdir()
    private_cache.PrivateCache("", 1 << 16).store(file.name, content)
    assert kernel_facts.kernel_facts() == facts
