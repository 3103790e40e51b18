"""The wheel: it carries the kernel side and the assets, and what is installed from it runs."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD_LIMIT_S = 90


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the checkout as it is."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"pip did not build a wheel within {BUILD_LIMIT_S} s")
    if done.returncode:
        said = done.stderr.strip().splitlines()
        pytest.skip(f"pip cannot build here: {said[-1] if said else 'it said nothing'}")
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment that has the wheel, and what it needs from this one."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, str(wheel)], capture_output=True, check=True)
    # Its dependencies come from here; the .pth files in there, that of an editable install too, are not followed.
    (site,) = (folder / "lib").glob("python*/site-packages")
    others = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *filter(os.path.isdir, sys.path[1:])}
    checkout = {str(ROOT), str(ROOT / "tests")}
    standard = sysconfig.get_path("stdlib")
    kept = [path for path in others if path not in checkout and not path.startswith(standard)]
    (site / "dependencies.pth").write_text("\n".join(sorted(kept)) + "\n")
    return folder / "bin"


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
    assets = {str(path.relative_to(ROOT)) for path in (ROOT / "bpfprof" / "render" / "assets").iterdir()}
    assert len(assets) >= 2 and modules | assets <= names
    tops = {name.split("/")[0] for name in names}
    assert tops == {"bpfprof", next(top for top in tops if top.endswith(".dist-info"))}
    assert not [name for name in names if "__pycache__" in name or name.endswith(".bpfprof")]


def test_the_license_of_both_halves_is_told(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    text = archive.read(metadata).decode()
    assert "Apache-2.0" in text and "GPL-2.0-only" in text
    assert [name for name in archive.namelist() if name.endswith("LICENSE")]


def test_the_command_runs_from_an_installed_copy(installed: Path, tmp_path: Path) -> None:
    version = run([installed / "bpfprof", "--version"], tmp_path)
    assert version.returncode == 0 and version.stdout.startswith("bpfprof, version "), version.stderr
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
