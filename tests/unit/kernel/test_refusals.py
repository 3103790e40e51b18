"""Sentences for what kernels refuse, and the kernel's lockdown, from texts as kernels write them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from bpfprof.errors import UnsupportedError
from bpfprof.kernel import refusals
from bpfprof.kernel.refusals import check_lockdown, lockdown_mode, refusal
from bpfprof.proc import privilege


def error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.fixture
def is_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """No capability is missing, and nothing else is known of."""
    monkeypatch.setattr(privilege, "missing", lambda *_: [])
    monkeypatch.setattr(privilege, "has_seccomp_filter", lambda: False)
    monkeypatch.setattr(refusals, "perf_event_paranoid", lambda: 2)


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("[none] integrity confidentiality\n", "none", "none"),
        ("none [integrity] confidentiality\n", "integrity", "allows"),
    ],
)
def test_modes_of_lockdown_that_do_not_matter(text: str, mode: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "lockdown").write_text(text)
    assert lockdown_mode(tmp_path / "lockdown") == mode
    assert words in check_lockdown(tmp_path / "lockdown")


def test_the_mode_of_lockdown_that_does(tmp_path: Path) -> None:
    (tmp_path / "lockdown").write_text("none integrity [confidentiality]\n")
    with pytest.raises(UnsupportedError, match="locked down") as caught:
        check_lockdown(tmp_path / "lockdown")
    assert "lockdown=integrity" in caught.value.hint


def test_a_kernel_without_lockdown(tmp_path: Path) -> None:
    assert "securityfs" in check_lockdown(tmp_path / "lockdown")  # nothing is mounted there
    (tmp_path / "lsm").write_text("capability,yama")
    assert check_lockdown(tmp_path / "lockdown") == "none"


@pytest.mark.usefixtures("is_root")
@pytest.mark.parametrize(
    "log",
    [
        "12: (85) call bpf_probe_read_kernel#113\nunknown func bpf_probe_read_kernel#113\nprocessed 12 insns",
        "program of this type cannot use helper bpf_probe_read_kernel#113\nprocessed 12 insns",
    ],
)
def test_lockdown_where_securityfs_is_not_mounted(log: str) -> None:
    assert "locked down" in str(refusal("the BPF program on_cpu", error(errno.EINVAL), log))


@pytest.mark.usefixtures("is_root")
def test_what_is_no_matter_of_privilege_is_told_as_it_is() -> None:
    told = refusal("the BPF map threads", error(errno.ENOMEM), "call bpf_probe_read_kernel#113")
    assert str(told) == "the kernel refuses the BPF map threads (Cannot allocate memory)"


@pytest.mark.usefixtures("is_root")
@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.ENOSYS])
def test_who_forbids_it(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "SELinux" in str(refusal("the BPF map threads", error(number)))
    monkeypatch.setattr(privilege, "has_seccomp_filter", lambda: True)
    assert "seccomp" in str(refusal("the BPF map threads", error(number)))
    monkeypatch.setattr(refusals, "perf_event_paranoid", lambda: 3)
    assert "seccomp" in str(refusal("the perf event cpu-clock", error(number)))
    monkeypatch.setattr(privilege, "missing", lambda wanted: ["CAP_SYS_ADMIN"] * (wanted == privilege.PERF_EVENTS_AT_3))
    assert "seccomp" in str(refusal("the BPF map threads", error(number)))
    told = refusal("the perf event cpu-clock", error(number))
    assert "paranoid is 3, so this kernel asks for CAP_SYS_ADMIN" in str(told) and "paranoid=2" in told.hint
    monkeypatch.setattr(privilege, "missing", lambda *_: ["CAP_PERFMON"])
    assert "CAP_PERFMON" in str(refusal("the perf event cpu-clock", error(number)))
