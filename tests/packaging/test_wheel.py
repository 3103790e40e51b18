"""Wheel and sdist: what they carry; what is installed from the wheel runs and records; removed, it leaves nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BCC = "/usr/lib/python3/dist-packages"


def build(source: Path, kind: str, folder: Path) -> Path:
    """What hatchling makes of a source tree: a "wheel" or an "sdist"."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = (path for path in folder.iterdir() if path.name.endswith(".whl" if kind == "wheel" else ".tar.gz"))
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the checkout as it is."""
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


def contents(wheel: Path) -> dict[str, bytes]:
    archive = zipfile.ZipFile(wheel)
    return {name: archive.read(name) for name in archive.namelist()}


def files_below(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment that has the wheel, and what it needs from this one."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    pip(folder, "install", "--no-deps", "--no-index", str(wheel))
    # Its dependencies come from here; the .pth files in there, that of an editable install too, are not followed.
    (site,) = (folder / "lib").glob("python*/site-packages")
    others = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *filter(os.path.isdir, sys.path[1:])}
    checkout = {str(ROOT), str(ROOT / "tests")}
    standard = sysconfig.get_path("stdlib")
    kept = [path for path in others if path not in checkout and not path.startswith(standard)]
    (site / "dependencies.pth").write_text("\n".join(sorted(kept)) + "\n")
    return folder / "bin"


def pip(folder: Path, *arguments: str) -> None:
    """The pip of the tests for the environment in the folder."""
    command = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--quiet", *arguments]
    subprocess.run(command, capture_output=True, check=True)


def run(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)


def test_the_wheel_carries_the_kernel_side(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {path.relative_to(ROOT / "ebpf") for path in (ROOT / "ebpf").rglob("*.[hc]")}
    assert Path("profiler.bpf.c") in sources and Path("abi.h") in sources and Path("include/linux/types.h") in sources
    assert {f"bpfprof/_ebpf/{path}" for path in sources} <= names


def test_the_wheel_carries_the_package_and_its_assets_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "bpfprof").rglob("*.py")}
    folder = ROOT / "bpfprof" / "render" / "assets"
    assets = {str(path.relative_to(ROOT)) for path in folder.rglob("*") if path.is_file()}
    assert len(assets) > 2 and modules | assets <= names
    tops = {name.split("/")[0] for name in names}
    assert tops == {"bpfprof", next(top for top in tops if top.endswith(".dist-info"))}
    assert not [name for name in names if "__pycache__" in name or name.endswith(".bpfprof")]


def test_the_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(build(ROOT, "sdist", tmp_path), tmp_path)
    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert {"Makefile", "README.md", "CHANGELOG.md", "LICENSE", "tests", "docs", ".ci"} <= set(os.listdir(source))
    assert contents(build(source, "wheel", tmp_path / "again")) == contents(wheel)


def test_the_license_of_both_halves_is_told(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    text = archive.read(metadata).decode()
    assert "Apache-2.0" in text and "GPL-2.0-only" in text
    assert [name for name in archive.namelist() if name.endswith("LICENSE")]


def test_the_command_runs_from_an_installed_copy(installed: Path, tmp_path: Path) -> None:
    version = run([installed / "bpfprof", "--version"], tmp_path)
    assert version.returncode == 0 and version.stdout.startswith("bpfprof "), version.stderr
    report = run([installed / "bpfprof", "report", "--help"], tmp_path)
    assert report.returncode == 0 and "RECORDING" in report.stdout, report.stderr


def test_the_installed_copy_finds_its_own_kernel_side(installed: Path, tmp_path: Path) -> None:
    done = run(
        [installed / "python", "-c", "from bpfprof.abi import ebpf_directory; print(ebpf_directory())"], tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("site-packages/bpfprof/_ebpf")
    assert Path(done.stdout.strip()).is_relative_to(installed.parent)


def test_a_report_needs_neither_bcc_nor_a_kernel(installed: Path, tmp_path: Path) -> None:
    from tests.unit.recording.hand_made import file_bytes, small

    (tmp_path / "a.bpfprof").write_bytes(file_bytes(small().chunks()))
    code = "import sys; sys.modules['bcc'] = None; sys.argv[0] = 'bpfprof'; from bpfprof.cli import main; main()"
    command: list[str | Path] = [installed / "python", "-c", code, "report", tmp_path / "a.bpfprof", "-f", "collapsed"]
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Worker.run (a.py:" in done.stdout


def test_what_pip_removes_leaves_nothing(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path, with_pip=False, symlinks=True)
    before = files_below(tmp_path)
    pip(tmp_path, "install", "--no-deps", "--no-index", str(wheel))
    run([tmp_path / "bin" / "python", "-c", "import bpfprof.model.frames"], tmp_path)
    assert len(files_below(tmp_path) - before) > 100
    pip(tmp_path, "uninstall", "--yes", "bpfprof")
    assert files_below(tmp_path) == before


@pytest.mark.root
def test_the_installed_copy_records(installed: Path, tmp_path: Path) -> None:
    doctor = run([installed / "bpfprof", "doctor"], tmp_path)
    assert doctor.returncode == 0 and "missing" not in doctor.stdout, doctor.stdout
    program = "def work():\n    return sum(range(60_000_000))\nwork()\n"
    (tmp_path / "work.py").write_text(program)
    command = [installed / "bpfprof", "record", "-o", "a.txt", "--", sys.executable, "work.py"]
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "<module> (work.py:3);work (work.py:2)" in (tmp_path / "a.txt").read_text()


@pytest.mark.root
@pytest.mark.parametrize("arguments", [["doctor"], ["record", "--", "true"]], ids=lambda words: words[0])
def test_ready_made_programs_need_no_bcc(arguments: list[str], installed: Path, tmp_path: Path) -> None:
    """Also with an empty cache, and not on kernels before 5.15, for which there are none."""
    hidden = f'mount -t tmpfs tmpfs {BCC} && mount -t tmpfs tmpfs /var/cache && exec "$0" "$@"'
    done = run(["unshare", "--mount", "sh", "-c", hidden, installed / "bpfprof", *arguments], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    if arguments == ["doctor"]:
        assert "not needed: the programs for this kernel came with bpfprof" in " ".join(done.stdout.split())


@pytest.mark.root
@pytest.mark.parametrize("arguments", [["doctor"], ["record", "--", "true"]], ids=lambda words: words[0])
def test_without_bcc_and_ready_made_programs_it_says_what_to_install(
    arguments: list[str], installed: Path, tmp_path: Path
) -> None:
    (ready_made,) = installed.parent.glob("lib/python*/site-packages/bpfprof/kernel/ready_made")
    hidden = f'for folder in {BCC} {ready_made} /var/cache; do mount -t tmpfs tmpfs $folder; done; exec "$0" "$@"'
    done = run(["unshare", "--mount", "sh", "-c", hidden, installed / "bpfprof", *arguments], tmp_path)
    assert done.returncode == 3, done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert "BCC's Python package, which no pip installs, is missing" in said
    assert "sudo apt-get install python3-bpfcc" in said
