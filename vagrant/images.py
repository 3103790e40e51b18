"""What a row of the matrix boots: kernel and modules, an initial file system, a root file system and the checkout.

Everything that is downloaded comes through apt or pip, which check it, and stays in `cache()`. A row is a dict of
matrix.yaml. Functions raise RuntimeError with what a failed tool said, and LookupError without a fitting package.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
_MIRROR = {False: "http://deb.debian.org/debian", True: "http://deb.debian.org/debian-security"}
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_LISTS_SECONDS = 6 * 3600  # older package lists are fetched again: they name files that may be gone
_ROOT_DAYS = 7  # a root file system is made again after so long
# What runs so ends with this process, and its mounts with it.
_ALONE = [
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--mount",
    "--propagation=private",
    "--pid",
    "--fork",
    "--kill-child=KILL",
]
_MODULES = ("virtio_pci", "virtio_blk")  # for the disks; newer kernels have some built in
# Of the emulator, and of the suites before and after it; Debian 12's own 7.2 fails at random with Linux 6.12 and later.
_QEMU_SUITES = ("bookworm", "bookworm-backports")
_QEMU_VERSION = 10
_INIT = """#!/bin/busybox sh
/bin/busybox mount -t devtmpfs devtmpfs /dev
for module in {modules}; do /bin/busybox insmod /$module.ko; done
for attempt in 1 2 3 4 5 6 7 8 9 10; do [ -b /dev/vda ] && break; /bin/busybox sleep 1; done
/bin/busybox mount -t ext4 /dev/vda /root
exec /bin/busybox switch_root /root /sbin/bpfprof-init
"""
# The first process of the machine. The reports go out as a tar file on a disk of their own.
_FIRST_PROCESS = """#!/bin/sh
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t tmpfs tmpfs /tmp; mount -t tmpfs tmpfs /run
mount -t securityfs securityfs /sys/kernel/security; mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t devtmpfs devtmpfs /dev 2>/dev/null; mkdir -p /dev/shm; mount -t tmpfs tmpfs /dev/shm
mount -t ext4 -o ro /dev/vdb /checkout
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
export BPFPROF_REPORTS=/run/reports
mkdir -p $BPFPROF_REPORTS; ip link set lo up 2>/dev/null
cd /checkout && sh /checkout/.command; echo "exit status $?" | tee $BPFPROF_REPORTS/status
tar cf /dev/vdc -C $BPFPROF_REPORTS .
sync; echo o > /proc/sysrq-trigger; while :; do :; done
"""


def cache() -> Path:
    """The folder of downloads and images, outside the checkout."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "bpfprof-matrix"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run(*command: str | Path, **options: object) -> str:
    """Standard output of a command. What it says goes into the error when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)
    if done.returncode:
        words = [str(word) for word in command]
        raise RuntimeError(
            f"{' '.join(words)[:200]}: exit status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
    return done.stdout


def mmdebstrap(*words: str | Path) -> None:
    """Runs it where it ends with this process, and its mounts with it, however that ends."""
    run(*_ALONE, "mmdebstrap", *words)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for this while; those that a killed process has left are removed."""
    for left in cache().glob("scratch-*-*"):
        if not Path("/proc", left.name.split("-")[1]).exists():
            run("rm", "-rf", "--one-file-system", left)
    with tempfile.TemporaryDirectory(dir=cache(), prefix=f"scratch-{os.getpid()}-") as name:
        yield Path(name)


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """One process at a time makes an image."""
    with open(cache() / f"{name}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sources(suites: tuple[str, ...], kind: str = "deb") -> list[str]:
    """Lines of sources.list."""
    return [f"{kind} [signed-by={_KEYS}] {_MIRROR['-security' in suite]} {suite} main" for suite in suites]


class PackageLists:
    """apt with the package lists of some suites and nothing installed."""

    def __init__(self, *suites: str, kind: str = "deb") -> None:
        """kind: "deb-src" for source packages."""
        self._folder = folder = cache() / "apt" / "+".join(suites if kind == "deb" else (*suites, kind))
        for name in ("etc/apt/apt.conf.d", "etc/apt/preferences.d", "var/lib/apt/lists/partial", "var/lib/dpkg"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "var/cache/apt/archives/partial").mkdir(parents=True, exist_ok=True)
        (folder / "var/lib/dpkg/status").touch()
        (folder / "etc/apt/sources.list").write_text("\n".join(sources(suites, kind)) + "\n")
        fetched = folder / "fetched"
        if not fetched.exists() or time.time() - fetched.stat().st_mtime > _LISTS_SECONDS:
            self._apt("apt-get", "update")
            fetched.touch()

    def _apt(self, command: str, *words: str, **options: object) -> str:
        status = self._folder / "var/lib/dpkg/status"
        settings = (
            f"Dir={self._folder}",
            f"Dir::State::status={status}",
            "Acquire::Languages=none",
            "Acquire::Retries=3",
        )
        settings += ("Acquire::Check-Valid-Until=false", "APT::Sandbox::User=root")
        return run(command, "-qq", *(word for setting in settings for word in ("-o", setting)), *words, **options)

    def newest(self, pattern: str) -> str:
        """Name of the newest package whose whole name matches."""
        names = [name for name in self._apt("apt-cache", "pkgnames").split() if re.fullmatch(pattern, name)]
        if not names:
            raise LookupError(f"no package {pattern} in {self._folder.name}")
        return max(names, key=lambda name: [int(number) for number in re.findall(r"\d+", name)])

    def version(self, package: str) -> str:
        """The version that would be installed."""
        return re.findall(r"^Version: (.+)$", self._apt("apt-cache", "show", "--no-all-versions", package), re.M)[0]

    def depends(self, package: str, pattern: str) -> list[str]:
        """The package and what it depends on, directly or not, as far as names match."""
        kinds = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
        words = self._apt("apt-cache", "depends", "--recurse", *(f"--no-{kind}" for kind in kinds), package).split()
        return sorted({package} | {word for word in words if re.fullmatch(pattern, word)})

    def unpack_source(self, package: str, folder: Path) -> Path:
        """Downloads a source package and unpacks what its authors published; the folder of it in `folder`."""
        with scratch() as downloads:
            self._apt("apt-get", "source", "--download-only", "--only-source", package, cwd=downloads)
            (tarball,) = downloads.glob("*.orig.tar.[gx]z")
            folder.mkdir()
            run("tar", "-xf", tarball, "-C", folder)
        (unpacked,) = folder.iterdir()
        return unpacked

    def unpack(self, packages: list[str], folder: Path) -> None:
        """Downloads packages and unpacks them into a folder."""
        with scratch() as downloads:
            self._apt("apt-get", "download", *packages, cwd=downloads)
            for package in sorted(downloads.glob("*.deb")):
                run("dpkg-deb", "--extract", package, folder)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that takes its name when it is complete."""
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=path.name + "."))
    try:
        yield temporary
        shutil.rmtree(path, ignore_errors=True)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def kernel(row: dict) -> Path:
    """The folder with `vmlinuz`, `initrd` and `release` of the row's kernel."""
    lists = PackageLists(row["kernel_from"])
    package = lists.newest(row["kernel_package"])
    folder = cache() / f"kernel-{package}-{lists.version(package)}"
    with locked(folder.name):
        if not (folder / "initrd").exists():
            with new_folder(folder) as new, scratch() as unpacked:
                lists.unpack(lists.depends(package, r"linux-(image|binary|modules)-.*"), unpacked)
                lists_of_tools = PackageLists("bookworm")
                lists_of_tools.unpack(["busybox-static"], unpacked / "tools")
                _pick(unpacked, new)
    return folder


def _pick(unpacked: Path, new: Path) -> None:
    """Puts the kernel and an initial file system with the modules of the disks into the new folder."""
    (modules,) = (folder for pattern in ("lib/modules/*", "usr/lib/modules/*") for folder in unpacked.glob(pattern))
    images = [*unpacked.glob("boot/vmlinuz-*"), *modules.glob("vmlinuz*")]
    shutil.copyfile(images[0], new / "vmlinuz")
    (new / "release").write_text(modules.name)
    root = unpacked / "initial"
    for name in ("bin", "dev", "root"):
        (root / name).mkdir(parents=True)
    shutil.copy(next((unpacked / "tools").glob("**/bin/busybox")), root / "bin/busybox")
    loaded: dict[str, bytes] = {}
    for name in _MODULES:
        _add_module(name, modules, loaded)
    for name, content in loaded.items():
        (root / f"{name}.ko").write_bytes(content)
    (root / "init").write_text(_INIT.format(modules=" ".join(loaded)))
    (root / "init").chmod(0o755)
    run("sh", "-c", f"find . | cpio --quiet -o -H newc > {new}/initrd", cwd=root)


def _add_module(name: str, modules: Path, loaded: dict[str, bytes]) -> None:
    """Adds a module, after those that it depends on (`depends` of its section .modinfo), unless it is built in."""
    for path in modules.glob(f"kernel/**/{name}.ko*"):
        content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        depends = re.search(rb"\0depends=([\w,-]*)\0", content)
        for other in depends[1].decode().split(",") if depends else ():
            if other and other not in loaded:
                _add_module(other, modules, loaded)
        loaded[name] = content


def root(row: dict, packages: list[str]) -> Path:
    """An ext4 image of the row's suite, with bpfprof's dependencies in a virtual environment."""
    others = (f"python{version}" for version in row.get("others", ()))
    packages = [*packages, f"libpython{row['python']}", *others]  # PyInstaller takes the library
    parts = [row["suite"], *packages, _FIRST_PROCESS]
    parts += [(CHECKOUT / name).read_text() for name in ("vagrant/guest.sh", "tests/programs/known.py")]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    image = cache() / f"root-{row['suite']}-{key}.ext4"
    with locked(f"root-{row['suite']}"):
        if image.exists() and time.time() - image.stat().st_mtime < _ROOT_DAYS * 86400:
            return image
        for old in cache().glob(f"root-{row['suite']}-*.ext4"):
            old.unlink()
        with scratch() as new:
            folder = new / "root"
            include = f"--include={','.join(packages)}"
            late = 'Acquire::Check-Valid-Until "false"'  # sid's list may be expired where there is a mirror only
            mmdebstrap(
                "--variant=apt",
                f"--aptopt={late}",
                include,
                row["suite"],
                folder,
                *sources((row["suite"],)),
            )
            _prepare(folder)
            made = new / "image"
            run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", folder, made, "2500M")
            made.rename(image)
    return image


def _prepare(folder: Path) -> None:
    """Installs into the new root what needs the network, which the machine does not have."""
    first = folder / "sbin/bpfprof-init"
    first.write_text(_FIRST_PROCESS)
    first.chmod(0o755)
    (folder / "checkout").mkdir()
    for name in ("/etc/resolv.conf", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt"):
        if os.path.exists(name):
            shutil.copyfile(name, f"{folder}{name}")
    script = (
        'mount --rbind "$1" "$2/checkout"; mount --rbind /proc "$2/proc"; mount --rbind /dev "$2/dev"; '
        'exec chroot "$2" sh -c "cd /checkout && exec sh vagrant/guest.sh --prepare"'
    )
    environment = {name: text for name, text in os.environ.items() if name.startswith("PIP_") or "_proxy" in name}
    environment |= {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
    run(*_ALONE, "sh", "-ec", script, "sh", CHECKOUT, folder, env=environment)


def compiled(row: dict) -> Path:
    """The folder with the programs that were compiled on the row."""
    folder = cache() / f"compiled-{row['name']}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def keep_compiled(row: dict, files: dict[str, Path]) -> None:
    """Takes these files, names to what they are now: all that a machine had. Where some are new, older ones go."""
    known = {path.name for path in compiled(row).iterdir()}
    if new := files.keys() - known:
        for name in known:
            (compiled(row) / name).unlink()
        for name in new:
            shutil.copyfile(files[name], compiled(row) / name)
            (compiled(row) / name).chmod(0o600)
    for path in files.values():
        path.unlink()


def checkout(image: Path, command: str, compiled: Path) -> None:
    """Makes an image of the checkout as git has it, changed files as they are, and of the command to run there.

    compiled: a folder that comes along as `.compiled`.
    """
    folder = image.with_suffix(".folder")
    names = run("git", "-C", CHECKOUT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in filter(None, names):
        if (CHECKOUT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, folder / name)
    (folder / ".command").write_text(command + "\n")
    shutil.copytree(compiled, folder / ".compiled")
    run("mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-d", folder, image, "64M")


def emulator() -> list[str]:
    """The command of qemu: the machine's own if it is new enough, else one in a folder of the cache."""
    own = shutil.which("qemu-system-x86_64")
    if own and _is_new_enough([own]):
        return [own]
    folder = cache() / f"qemu-{_QEMU_VERSION}"
    with locked("qemu"):
        if not folder.exists():
            with new_folder(folder) as new:
                preference = "Package: *\nPin: release n=bookworm-backports\nPin-Priority: 500\n"
                hook = f'mkdir -p "$1/etc/apt/preferences.d"; printf \'{preference}\' > "$1/etc/apt/preferences.d/qemu"'
                include = "qemu-system-x86,seabios"
                mmdebstrap(
                    "--variant=extract",
                    f"--include={include}",
                    f"--setup-hook={hook}",
                    "bookworm",
                    new,
                    *sources(_QEMU_SUITES),
                )
    libraries = folder / "usr/lib/x86_64-linux-gnu"
    line = ["env", f"QEMU_MODULE_DIR={libraries}/qemu", f"{folder}/lib64/ld-linux-x86-64.so.2", "--library-path"]
    line += [f"{folder}/lib/x86_64-linux-gnu:{libraries}", f"{folder}/usr/bin/qemu-system-x86_64"]
    if not _is_new_enough(line):
        raise LookupError(f"no qemu {_QEMU_VERSION} or later in {' and '.join(_QEMU_SUITES)}")
    return [*line, "-L", f"{folder}/usr/share/qemu", "-L", f"{folder}/usr/share/seabios"]


def _is_new_enough(line: list[str]) -> bool:
    found = re.search(r"version (\d+)", run(*line, "--version"))
    return found is not None and int(found[1]) >= _QEMU_VERSION
