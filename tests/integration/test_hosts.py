"""Hardened hosts, each made for real: bpfprof records as ever, or with less, or says in a sentence why it does not."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests import pyenv
from tests.integration.hardened import after, as_user, denying, kernel_setting, with_capabilities
from tests.integration.recorded import (
    BPFPROF,
    NOBODY,
    PYTHON,
    Done,
    assert_told,
    checked,
    collapsed,
    completed,
    needs_root,
    open_folder,
    program,
    running,
    skip_unless_nobody_can_run,
)
from tests.tiers import first_in_gate

pytestmark = needs_root
LAUNCH = ["--", PYTHON, program("short_lived.py"), "--seconds", "2"]
NOTHING_KEPT = {**os.environ, "HOME": "/nowhere", "XDG_CACHE_HOME": "/nowhere"}


def record(prefix: list[str], path: Path, *arguments: str | float, **options: Any) -> Done:
    """`bpfprof record` under a prefix; it may end as it likes."""
    return completed([*prefix, *BPFPROF, "record", "-o", str(path), *map(str, arguments)], None, **options)


def assert_recorded(path: Path) -> None:
    """All of short_lived.py is there: its functions with their CPU time and sleep, under times that add up."""
    checked(path)
    folded = collapsed(path)
    burn_us, rest_us = folded.total_us("burn"), folded.total_us("rest", "off")
    assert burn_us > 0.3e6 and rest_us > 0.3e6, (burn_us, rest_us)


def doctor(prefix: list[str], *options: str, **settings: Any) -> Done:
    """It never has more to say than fits, and no traceback."""
    done = completed([*prefix, *BPFPROF, "doctor", *options], None, **settings)
    assert len(done.stdout.splitlines()) < 40
    assert "Traceback" not in done.stdout + done.stderr and "internal error" not in done.stderr
    return done


# --- what does not matter to bpfprof


BARE = """
mount --make-rprivate /
while umount -l /sys/kernel/tracing 2>/dev/null; do :; done
while umount -l /sys/kernel/debug 2>/dev/null; do :; done
test -z "$(ls /sys/kernel/tracing)"
mount -t tmpfs none /mnt
mount --bind "$BPFPROF_TEST_FOLDER" /mnt
mount -o remount,bind,ro /
! touch /var/cache/x 2>/dev/null
"""


def test_a_bare_and_strict_host_that_root_can_record_on(tmp_path: Path) -> None:
    """No tracefs, nothing that can be written, no locked memory, no network, no ptrace, strict settings."""
    limits = ["prlimit", "--memlock=0:0", "--nofile=256:256"]
    options: dict[str, Any] = {
        "env": {**os.environ, "BPFPROF_TEST_FOLDER": str(tmp_path), "XDG_CACHE_HOME": "/nowhere"},
        "preexec_fn": denying(errno.EPERM, "ptrace", "process_vm_readv", "process_vm_writev", "setpriority"),
    }
    prefix = [*limits, *after(BARE, "--net", "--uts", "--ipc")]
    with kernel_setting("kernel.perf_event_paranoid", "3"), kernel_setting("kernel.kptr_restrict", "2"):
        done = record(prefix, Path("/mnt/x.bpfprof"), *LAUNCH, **options)
        told = doctor(prefix, **options)
    assert_told(done, 0)
    assert_recorded(tmp_path / "x.bpfprof")
    assert_told(told, 0)
    for words in ("perf_event_paranoid 3", "a filter is on", "kernel.kptr_restrict=1", "made at each start"):
        assert words in told.stdout, told.stdout
    assert "can record here" in told.stdout and "in burn()" in told.stdout


def test_unprivileged_bpf_may_be_off(tmp_path: Path) -> None:
    with kernel_setting("kernel.unprivileged_bpf_disabled", "2"):
        assert_told(record([], tmp_path / "x.bpfprof", *LAUNCH), 0)
    assert_recorded(tmp_path / "x.bpfprof")


@pytest.mark.second_tier
@pytest.mark.gate
def test_a_user_without_name_and_home() -> None:
    skip_unless_nobody_can_run()
    prefix = with_capabilities(["CAP_BPF", "CAP_PERFMON"], 54321)
    with open_folder(54321) as folder:
        done = record(prefix, folder / "x.bpfprof", *LAUNCH, env={"PATH": os.environ["PATH"]}, cwd=folder)
        assert_told(done, 0)
        assert_recorded(folder / "x.bpfprof")


# --- what is forbidden


@pytest.mark.gate
@pytest.mark.parametrize(
    "number", [errno.EPERM, pytest.param(errno.ENOSYS, marks=pytest.mark.second_tier)], ids=errno.errorcode.get
)
@pytest.mark.parametrize("call", ["bpf", "perf_event_open", "pidfd_open"])
def test_a_seccomp_filter(call: str, number: int, tmp_path: Path) -> None:
    done = record([], tmp_path / "x.bpfprof", *LAUNCH, preexec_fn=denying(number, call))
    assert_told(done, 3, "seccomp", call)
    assert len(done.stderr.splitlines()) == 2 and not any(tmp_path.iterdir())


@pytest.mark.gate
@pytest.mark.parametrize(
    ("prefix", "words"),
    [
        (["unshare", "--user", "--map-root-user"], ["CAP_BPF", "user namespace"]),
        (["unshare", "--pid", "--fork", "--mount-proc"], ["pid namespace", "--pid=host"]),
        (with_capabilities([], 0), ["CAP_BPF", "CAP_PERFMON", "--cap-add=BPF --cap-add=PERFMON"]),
        *first_in_gate(
            0,
            [
                (with_capabilities(["CAP_PERFMON"], 0), ["CAP_BPF", "--cap-add=BPF"]),
                (with_capabilities(["CAP_BPF"], 0), ["CAP_PERFMON", "--cap-add=PERFMON"]),
                (with_capabilities(["CAP_BPF"], NOBODY), ["CAP_PERFMON", "sudo"]),
            ],
        ),
    ],
    ids=["user namespace", "pid namespace", "no capability", "no CAP_BPF", "no CAP_PERFMON", "nobody"],
)
def test_a_place_without_privilege(prefix: list[str], words: list[str]) -> None:
    if "--reuid" in " ".join(prefix):
        skip_unless_nobody_can_run()
    with open_folder() as folder:
        folder.chmod(0o777)  # root without capabilities is bound by permissions, too
        for options in ([], ["--no-native"]):
            done = record(prefix, folder / "x.bpfprof", *options, *LAUNCH)
            assert_told(done, 3, *words)
            assert len(done.stderr.splitlines()) == 2 and not any(folder.iterdir())
    told = doctor(prefix)
    assert_told(told, 3, "recording does not work here")
    assert "missing" in told.stdout and all(word in told.stdout for word in words), told.stdout


# --- what is less


def test_without_the_capabilities_for_other_users() -> None:
    """Programs of one's own are whole; of others there are times, and a sentence that says what is missing."""
    skip_unless_nobody_can_run()
    prefix = with_capabilities(["CAP_BPF", "CAP_PERFMON"], NOBODY)
    command = [PYTHON, program("short_lived.py"), "--seconds", "200"]  # the first half of them on a CPU
    with open_folder(NOBODY) as folder, running(*as_user(), *command) as own, running(*command) as other:
        done = record(prefix, folder / "x.bpfprof", "-p", own.pid, "-p", other.pid, "-d", 1.5, env=NOTHING_KEPT)
        assert_told(done, 0, f"process {other.pid}", "may not be read", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH")
        assert f"process {own.pid} " not in done.stderr
        folded = collapsed(folder / "x.bpfprof")
        assert folded.of_process(own.pid).total_us("burn") > 0.5e6
        others = folded.of_process(other.pid)
        assert others.total_us() > 1.4e6 and "burn" not in others.functions()


HIDDEN = "mount -t proc -o hidepid={} proc /proc"


def test_proc_hides_other_users() -> None:
    skip_unless_nobody_can_run()
    with (
        open_folder(NOBODY) as folder,
        running(PYTHON, program("short_lived.py"), "--seconds", "200") as target,  # half of them in burn()
    ):
        for mode in (1, 2):
            prefix = [*after(HIDDEN.format(mode)), *with_capabilities(["CAP_BPF", "CAP_PERFMON"], NOBODY)]
            done = record(prefix, folder / "x.bpfprof", "-p", target.pid, env=NOTHING_KEPT)
            assert_told(done, 3, "hidepid", "sudo")
        told = doctor(prefix, "--no-self-test", env=NOTHING_KEPT)
        assert "hidepid" in told.stdout and told.returncode == 0, told.stdout
        done = record(after(HIDDEN.format(2)), folder / "x.bpfprof", "-p", target.pid, "-d", "1.5")  # as root
        assert_told(done, 0)
        assert "burn" in collapsed(folder / "x.bpfprof").functions()


AS_IF_ON = """
import sys
from bpfprof.cpython.layouts_static import STATIC_LAYOUTS
del STATIC_LAYOUTS[3, 7]  # as before it was known
import bpfprof.commands.doctor, bpfprof.commands.self_test
from bpfprof.cli import main
sys.executable, sys.version_info = sys.argv.pop(1), (3, 7, 16)
main()
"""


def test_the_self_test_of_a_python_that_is_not_read() -> None:
    """Its native frames and times are still proven; that it is less is said."""
    found = pyenv.paths("3.7.*/bin/python")
    if not found:
        pytest.skip("no CPython 3.7")
    told = completed([PYTHON, "-c", AS_IF_ON, str(found[0]), "doctor"], 0)
    assert "Python 3.7 is not read yet: native frames only" in told.stdout and "in burn()" not in told.stdout
