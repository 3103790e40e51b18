"""What /proc says of the host and of this process, from texts as kernels write them."""

from __future__ import annotations

import pytest

from bpfprof.proc import host
from bpfprof.proc.privilege import CAPABILITIES, OTHER_USERS, REQUIRED, missing

MOUNTS = """22 28 0:21 / /sys rw,nosuid shared:7 - sysfs sysfs rw
23 28 0:22 / /proc rw,relatime shared:12 - proc proc rw{}
24 28 0:23 / /mnt/proc rw - proc proc rw,hidepid=2
"""


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ("", ""),
        (",hidepid=0", ""),
        (",hidepid=off", ""),
        (",gid=5,hidepid=2", "2"),
        (",hidepid=invisible", "invisible"),
    ],
)
def test_hidepid_of_proc_itself(options: str, value: str) -> None:
    assert host.hidden_processes(MOUNTS.format(options)) == value


def test_of_two_mounts_the_upper_one_shows() -> None:
    assert host.hidden_processes(MOUNTS.format("") + MOUNTS.format(",hidepid=2")) == "2"


@pytest.mark.parametrize(
    ("text", "versions"),
    [
        ("0::/init.scope\n", "v2"),
        ("4:memory:/\n1:name=systemd:/\n", "v1"),
        ("1:cpu:/\n0::/\n", "v1 and v2"),
        ("", "none"),
    ],
)
def test_cgroup_versions(text: str, versions: str) -> None:
    assert host.cgroup_versions(text) == versions


def lacking(*numbers: int) -> list[str]:
    held = sum(1 << number for number in numbers)
    return missing(CAPABILITIES, f"Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t{held:016x}\nSeccomp:\t0\n")


def test_root_lacks_nothing() -> None:
    assert missing(CAPABILITIES, "CapEff:\t000001ffffffffff") == []


def test_who_has_no_capabilities_lacks_all() -> None:
    assert lacking() == [each.name for each in CAPABILITIES]


def test_each_is_missed_by_its_own_name() -> None:
    for each in CAPABILITIES:
        assert lacking(*(other.number for other in CAPABILITIES if other != each)) == [each.name]


def test_admin_includes_what_was_taken_out_of_it() -> None:
    """CAP_BPF, CAP_PERFMON and CAP_CHECKPOINT_RESTORE came out of CAP_SYS_ADMIN; CAP_SYSLOG is no longer in it."""
    assert lacking(21) == [*(each.name for each in OTHER_USERS), "CAP_SYSLOG"]
    assert not {each.name for each in REQUIRED} & set(lacking(21))


@pytest.mark.parametrize(
    ("offsets", "is_other"),
    [
        ("", False),  # a kernel without time namespaces
        ("monotonic           0         0\nboottime            0         0\n", False),
        ("monotonic           0         0\nboottime      864000         0\n", False),
        ("monotonic      864000         0\nboottime            0         0\n", True),
        ("monotonic          -1 999999999\nboottime            0         0\n", True),
    ],
)
def test_a_time_namespace_has_other_clocks(offsets: str, is_other: bool) -> None:
    assert host.has_other_clocks(offsets) is is_other
