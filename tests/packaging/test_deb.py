"""The Debian package: built, installed, run and purged in an overlay over this machine's root, which stays as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ["record", "offcpu", "top", "dump", "report", "diff", "doctor", "completion", "manual"]
COMPLETIONS = (
    "bash-completion/completions/bpfprof",
    "zsh/vendor-completions/_bpfprof",
    "fish/vendor_completions.d/bpfprof.fish",
)

# The dependencies are those of the environment of the tests, so that nothing is fetched: the .pth file stands for them.
STEPS = """
mount -t tmpfs tmpfs "$1" && cd "$1" && mkdir upper work root
mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work overlay root
mount --rbind /proc root/proc && mount --rbind /sys root/sys && mount --rbind /dev root/dev
cp "$2" root/opt/bpfprof.deb
folder=root$(/usr/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$folder" && echo "$3" >"$folder/dependencies.pth"
until rm -rf root/var/cache/bpfprof 2>/dev/null; do :; done # others may fill it just then
# What is there and was not, and what was there and is not: a device in the overlay's upper folder.
listing() {
    (cd upper && find . -path ./tmp -prune -o -path ./var/log -prune -o -path ./var/lib/dpkg -prune -o -print) | sort |
        while read -r path; do
            if [ -c "upper/$path" ]; then echo "-$path"; elif [ ! -e "/$path" ]; then echo "+$path"; fi
        done
}
listing >before
chroot root dpkg --install --force-depends /opt/bpfprof.deb
chroot root find /usr/share/bpfprof -name '*.pyc' | grep -q bpfprof/__pycache__
chroot root bpfprof --version
chroot root bpfprof record -- true
test -e root/var/cache/bpfprof
listing | grep -q '^+./usr/share/bpfprof/'
rm -f root/bpfprof-true-*.bpfprof
chroot root dpkg --"$4" bpfprof
listing >after
diff before after
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb")
    environment = {**os.environ, "PYTHON": sys.executable}
    command = [str(ROOT / ".ci" / "build-deb")]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return ROOT / done.stdout.strip()


def test_what_it_carries(package: Path) -> None:
    listed = subprocess.run(["dpkg-deb", "--contents", str(package)], capture_output=True, text=True, check=True).stdout
    paths = {line.split()[5].lstrip(".") for line in listed.splitlines()}
    modules = {f"/usr/share/bpfprof/{path.relative_to(ROOT)}" for path in (ROOT / "bpfprof").rglob("*.py")}
    sources = {
        f"/usr/share/bpfprof/bpfprof/_ebpf/{p.relative_to(ROOT / 'ebpf')}" for p in (ROOT / "ebpf").rglob("*.[hc]")
    }
    assert modules | sources | {"/usr/bin/bpfprof", "/usr/share/bpfprof/demangle/__init__.py"} <= paths
    assert {f"/usr/share/doc/bpfprof/{name}" for name in ("copyright", "demangle.NOTICE")} <= paths
    pages = {f"/usr/share/man/man1/{name}.1.gz" for name in ("bpfprof", *(f"bpfprof-{each}" for each in COMMANDS))}
    assert pages | {f"/usr/share/{name}" for name in COMPLETIONS} <= paths
    assert not [path for path in paths if "__pycache__" in path or path.startswith("/etc")]
    assert all(line.split()[1] == "root/root" for line in listed.splitlines())


@pytest.mark.root
@pytest.mark.parametrize("way", ["remove", "purge"])
def test_what_it_installs_runs_and_is_removed_without_a_trace(way: str, package: Path, tmp_path: Path) -> None:
    packages = sysconfig.get_path("purelib")
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-exc", STEPS]
    done = subprocess.run(
        [*command, "sh", str(tmp_path), str(package), packages, way], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bpfprof 0." in done.stdout and "BCC " in done.stdout
