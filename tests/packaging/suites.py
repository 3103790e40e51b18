"""bpfprof on each Debian suite's own Python and BCC: installed by pip, pipx and apt, run, and removed. Run as root.

    .venv/bin/python tests/packaging/suites.py [SUITE...]

In: the wheel and the .deb of this checkout, which are built here. Out: a table of what passed, and the output of what
did not; the exit status is 1 then. The roots that mmdebstrap makes stay in ~/.cache/bpfprof-matrix. A run sees one
through an overlay in a mount namespace, so it changes nothing in it and leaves nothing mounted.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bpfprof-matrix"
MIRROR = "http://deb.debian.org/debian"
PACKAGES = "python3-venv,python3-bpfcc,python3-numpy,python3-click,python3-pyelftools"
SUITES = {"bullseye": "", "bookworm": ",pipx", "trixie": ",pipx", "sid": ",pipx"}
LIMIT_S = 400

PREPARE = """
mount -t tmpfs tmpfs {mounts} && cd {mounts} && mkdir upper work root
mount -t overlay -o lowerdir={lower},upperdir=upper,workdir=work overlay root
mount -t proc proc root/proc && mount --rbind /sys root/sys && mount --rbind /dev root/dev
mkdir root/wheels && mount --bind {wheels} root/wheels
cp {built}/*.whl {built}/*.deb {built}/steps root/opt
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 PIP_NO_INDEX=1 \
    PIP_FIND_LINKS="/wheels /opt" DEBIAN_FRONTEND=noninteractive chroot root sh /opt/steps
"""
# Of one bpfprof: it starts, the machine is fit, a launched program is recorded and its times add up.
USED = """
{0} --version
{0} doctor
{0} record -o /tmp/a.bpfprof -- python3 -c 'sum(range(20000000))'
{0} report /tmp/a.bpfprof --check
rm /tmp/a.bpfprof
"""
LISTED = "find / -xdev -path /tmp -prune -o -path /var/log -prune -o -path '/var/*/apt' -prune -o -path /var/lib/dpkg"
LISTED += " -prune -o -path /var/cache/debconf -prune -o -print"
STEPS = {
    "pip": "python3 -m venv /opt/pip; /opt/pip/bin/pip install bpfprof;" + USED.format("/opt/pip/bin/bpfprof"),
    "pip uninstall": "/opt/pip/bin/pip uninstall -y bpfprof; ! find /opt/pip | grep -i bpfprof",
    "pipx": "pipx install bpfprof;" + USED.format("/root/.local/bin/bpfprof"),
    "pipx uninstall": "pipx uninstall bpfprof; ! find /root | grep -i bpfprof",
    "deb": f"rm -rf /var/cache/bpfprof; {LISTED} >/tmp/before; apt-get -qq install /opt/bpfprof_*_all.deb;"
    + USED.format("bpfprof"),
    "deb purge": f"apt-get -qq purge bpfprof; {LISTED} >/tmp/after; diff /tmp/before /tmp/after",
}


def root_of(suite: str) -> Path:
    """A root with the suite's Python and BCC, made when it is not in the cache."""
    folder = CACHE / f"install-{suite}"
    if not folder.is_dir():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        # The lists of a suite that is no longer updated have expired; their signatures hold.
        options = ["--quiet", "--variant=apt", '--aptopt=Acquire::Check-Valid-Until "false"']
        include = f"--include={PACKAGES}{SUITES[suite]}"
        subprocess.run(["mmdebstrap", *options, include, suite, str(part), MIRROR], check=True)
        part.rename(folder)
    return folder


def inside(root: Path, *command: str) -> str:
    return subprocess.run(["chroot", str(root), *command], check=True, capture_output=True, text=True).stdout.strip()


def wheels_for(version: str, wheel: Path) -> Path:
    """What the wheel needs from PyPI on this version of Python, and what pipx installs besides."""
    folder = CACHE / f"wheels-{version}"
    markers = {"python_version": version, "python_full_version": f"{version}.0"}
    command = [sys.executable, "-c", _REQUIREMENTS, str(wheel), str(markers)]
    needed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--python-version", version]
    subprocess.run([*download, "--dest", str(folder), *needed, "pip", "setuptools", "wheel"], check=True)
    return folder


# pip evaluates markers by the Python that runs it, so those that hold for the suite's are chosen here.
_REQUIREMENTS = """
import ast, email, sys, zipfile
from packaging.requirements import Requirement
archive = zipfile.ZipFile(sys.argv[1])
(name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
for text in email.message_from_bytes(archive.read(name)).get_all("Requires-Dist"):
    found = Requirement(text)
    if found.marker is None or found.marker.evaluate({"extra": "", **ast.literal_eval(sys.argv[2])}):
        print(found.name + str(found.specifier))
"""


def build(folder: Path) -> Path:
    """Builds wheel and .deb into the folder; the wheel's path."""
    hatchling = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(hatchling, cwd=ROOT, check=True, capture_output=True)
    done = subprocess.run(
        [ROOT / ".ci" / "build-deb"],
        env={**os.environ, "PYTHON": sys.executable},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    shutil.copy(ROOT / done.stdout.strip(), folder)
    return next(folder.glob("*.whl"))


def run_steps(root: Path, wheels: Path, built: Path, steps: dict[str, str]) -> dict[str, tuple[bool, str]]:
    """For each step whether it passed, and its output."""
    lines = [f"(set -ex\n{text}\n) >/tmp/step 2>&1; echo $?; cat /tmp/step; printf '\\0'" for text in steps.values()]
    (built / "steps").write_text("\n".join(lines) + "\n")
    with tempfile.TemporaryDirectory() as mounts:
        names = {"mounts": mounts, "lower": root, "wheels": wheels, "built": built}
        script = PREPARE.format(**{name: shlex.quote(str(path)) for name, path in names.items()})
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True)
    outputs = [output.partition("\n") for output in done.stdout.split("\0")]
    return {name: (status == "0", said) for name, (status, _, said) in zip(steps, outputs)}


def main() -> int:
    with tempfile.TemporaryDirectory() as built:
        wheel = build(Path(built))
        print(f"{'suite':10} {'Python':8} {'BCC':8}" + "".join(f" {name:>14}" for name in STEPS) + f" {'seconds':>8}")
        failures = []
        for suite in sys.argv[1:] or SUITES:
            start_s = time.monotonic()
            root = root_of(suite)
            version = inside(root, "python3", "-c", "import platform; print(platform.python_version())")
            bcc = inside(root, "dpkg-query", "-Wf", "${Version}", "python3-bpfcc").partition("+")[0]
            steps = {name: text for name, text in STEPS.items() if SUITES[suite] or "pipx" not in name}
            found = run_steps(root, wheels_for(version.rpartition(".")[0], wheel), Path(built), steps)
            words = ["-" if name not in found else "passed" if found[name][0] else "failed" for name in STEPS]
            seconds = time.monotonic() - start_s
            print(f"{suite:10} {version:8} {bcc:8}" + "".join(f" {word:>14}" for word in words) + f" {seconds:8.0f}")
            failures += [f"{suite}, {name}:\n{said}" for name, (passed, said) in found.items() if not passed]
    print(*failures, sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
