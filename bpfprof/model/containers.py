"""Containers by their cgroups: a path as /proc/PID/cgroup has it in, who made the container and its id out.

Names as docker, containerd, CRI-O, podman, LXC and systemd-nspawn give them, with cgroupfs and with systemd:
`/docker/ID`, `/system.slice/docker-ID.scope`, `/kubepods.slice/.../cri-containerd-ID.scope`,
`/kubepods/burstable/podUID/ID`, `/machine.slice/libpod-ID.scope/container`, `/lxc.payload.NAME`, `/lxc/NAME`,
`/machine.slice/machine-NAME.scope`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_SCOPE = re.compile(r"(docker|cri-containerd|crio|libpod|nerdctl|containerd)-([0-9a-f]{12,64})(?:\.scope)?")
_PLAIN_ID = re.compile(r"[0-9a-f]{64}")
_ID_BELOW = re.compile(r"[0-9a-f]{12,64}")
_LXC = re.compile(r"lxc\.payload\.(.+)")
_MACHINE = re.compile(r"machine-(.+)\.scope")
_SHOWN_DIGITS = 12  # as docker ps does


class Container(NamedTuple):
    """`engine` is what made it, as far as its cgroup tells; `name` its id, or its name where it has none."""

    engine: str
    name: str

    @property
    def label(self) -> str:
        """`docker 0123456789ab`."""
        is_id = _ID_BELOW.fullmatch(self.name) is not None
        return f"{self.engine} {self.name[:_SHOWN_DIGITS] if is_id else self.name}"


@lru_cache(maxsize=1024)  # it is asked for each thread
def container_of(cgroup: str) -> Container | None:
    """The innermost container that a cgroup is in; None for none."""
    parts = cgroup.split("/")
    found = (_container(parts, end) for end in range(len(parts), 0, -1))
    return next((each for each in found if each is not None), None)


def _container(parts: list[str], end: int) -> Container | None:
    """The container whose own cgroup the first `end` parts are."""
    last, above = parts[end - 1], parts[end - 2] if end > 1 else ""
    if scope := _SCOPE.fullmatch(last):
        return Container(scope[1].replace("cri-", "").replace("libpod", "podman"), scope[2])
    if above == "docker" and _ID_BELOW.fullmatch(last):
        return Container("docker", last)
    if _PLAIN_ID.fullmatch(last):
        is_pod = any(part.startswith("kubepods") for part in parts[:end])
        return Container("kubernetes" if is_pod else above.partition(".")[0] or "container", last)
    if payload := _LXC.fullmatch(last):
        return Container("lxc", payload[1])
    if above == "lxc" and last:
        return Container("lxc", last)
    if machine := _MACHINE.fullmatch(last):
        return Container("machine", machine[1].replace("\\x2d", "-"))
    return None
