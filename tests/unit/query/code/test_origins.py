"""Paths to libraries and modules, in the layouts that Python's files come in."""

from __future__ import annotations

import pytest

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.query.code.origins import GENERATED, INTERPRETER, KERNEL, OWN_CODE, STDLIB, Origin, origins

SITE = "/home/u/venv/lib/python3.11/site-packages"
PYTHON = {
    # virtual environments, Debian, pyenv, conda, uv, Nix, user installs
    f"{SITE}/numpy/core/fromnumeric.py": ("numpy", "numpy.core.fromnumeric"),
    f"{SITE}/requests/__init__.py": ("requests", "requests"),
    f"{SITE}/six.py": ("six", "six"),
    f"{SITE}/pip/_vendor/urllib3/connectionpool.py": ("pip", "pip._vendor.urllib3.connectionpool"),
    f"{SITE}/pip/_internal/cli/main.py": ("pip", "pip._internal.cli.main"),
    "/usr/lib/python3/dist-packages/apt/cache.py": ("apt", "apt.cache"),
    "/usr/local/lib/python3.11/dist-packages/flask/app.py": ("flask", "flask.app"),
    "/root/.local/lib/python3.9/site-packages/rich/text.py": ("rich", "rich.text"),
    "/usr/lib64/python3.9/site-packages/dnf/base.py": ("dnf", "dnf.base"),
    "/nix/store/abc-python3.11-numpy/lib/python3.11/site-packages/numpy/linalg/linalg.py": (
        "numpy",
        "numpy.linalg.linalg",
    ),
    "/usr/lib/python3.11/json/decoder.py": (STDLIB, "json.decoder"),
    "/usr/lib/python3.11/threading.py": (STDLIB, "threading"),
    "/root/.pyenv/versions/3.12.4/lib/python3.12/asyncio/__init__.py": (STDLIB, "asyncio"),
    "/opt/conda/lib/python3.10/collections/__init__.py": (STDLIB, "collections"),
    "/opt/python/lib/python3.13t/queue.py": (STDLIB, "queue"),
    "/usr/lib/python311.zip/json/encoder.py": (STDLIB, "json.encoder"),
    # eggs, wheels, zipimports, zip applications
    f"{SITE}/foo-1.2-py3.9.egg/foo/bar.py": ("foo", "foo.bar"),
    "/srv/eggs/zope.interface-5.0-py3.8.egg/zope/interface/adapter.py": ("zope", "zope.interface.adapter"),
    "/root/.pex/installed_wheels/1/requests-2.0-py3-none-any.whl/requests/api.py": ("requests", "requests.api"),
    f"{SITE}/virtualenv/pip-23.0-py3-none-any.whl/pip/__main__.py": ("pip", "pip.__main__"),
    "/srv/app.zip/shop/cart.py": (OWN_CODE, "shop.cart"),
    "/srv/tool.pyz/__main__.py": (OWN_CODE, "__main__"),
    # frozen modules and code without a file
    "<frozen importlib._bootstrap>": (STDLIB, "importlib._bootstrap"),
    "<frozen os>": (STDLIB, "os"),
    "<string>": (GENERATED, ""),
    "<attrs generated init x.y>": (GENERATED, ""),
    "<frozen >": (GENERATED, ""),
    # the program itself, an editable install, code without any path
    "/srv/app/train.py": (OWN_CODE, "train"),
    "train.py": (OWN_CODE, "train"),
    "test.py": (OWN_CODE, "test"),
    "/home/u/src/mylib/src/mylib/model.py": (OWN_CODE, "model"),
    "/home/u/src/mylib/__init__.py": (OWN_CODE, "mylib"),
    "/home/u/python3.11/train.py": (OWN_CODE, "train"),
    "/home/u/site-packages.py": (OWN_CODE, "site-packages"),
    "": (OWN_CODE, ""),
    "/": (OWN_CODE, ""),
}
NATIVE = {
    f"{SITE}/numpy/core/_multiarray_umath.cpython-311-x86_64-linux-gnu.so": ("numpy", "numpy.core._multiarray_umath"),
    f"{SITE}/numpy.libs/libopenblas64_p-r0-15028c96.3.21.so": ("numpy", "libopenblas64_p-r0-15028c96.3.21.so"),
    f"{SITE}/torch/lib/libtorch_cpu.so": ("torch", "libtorch_cpu.so"),
    f"{SITE}/nvidia/cublas/lib/libcublas.so.12": ("nvidia", "libcublas.so.12"),
    f"{SITE}/_cffi_backend.cpython-311-x86_64-linux-gnu.so": ("_cffi_backend", "_cffi_backend"),
    f"{SITE}/cryptography/hazmat/bindings/_rust.abi3.so": ("cryptography", "cryptography.hazmat.bindings._rust"),
    "/usr/lib/python3/dist-packages/apt_pkg.cpython-311-x86_64-linux-gnu.so": ("apt_pkg", "apt_pkg"),
    "/usr/lib/python3.11/lib-dynload/_json.cpython-311-x86_64-linux-gnu.so": (STDLIB, "_json"),
    "/usr/lib/x86_64-linux-gnu/libc.so.6": ("libc.so.6", "libc.so.6"),
    "/usr/bin/python3.11": (INTERPRETER, "python3.11"),
    "/opt/python/lib/libpython3.13t.so.1.0": (INTERPRETER, "libpython3.13t.so.1.0"),
    "/usr/bin/nginx": ("nginx", "nginx"),
    "[vdso]": ("[vdso]", "[vdso]"),
    "/tmp/_MEIa1B2c3/numpy/core/_simd.cpython-311-x86_64-linux-gnu.so": ("numpy", "numpy.core._simd"),
    "/tmp/_MEIa1B2c3/numpy.libs/libgfortran-040039e1.so.5.0.0": ("numpy", "libgfortran-040039e1.so.5.0.0"),
    "/tmp/_MEIa1B2c3/libssl.so.3": ("libssl.so.3", "libssl.so.3"),
    "/tmp/_MEIa1B2c3/libpython3.11.so.1.0": (INTERPRETER, "libpython3.11.so.1.0"),
    "/srv/app/_internal/lib-dynload/_ssl.cpython-311-x86_64-linux-gnu.so": (STDLIB, "_ssl"),
    "/srv/app/_internal/pandas/_libs/lib.cpython-311-x86_64-linux-gnu.so": ("pandas", "pandas._libs.lib"),
}
BUNDLED = {
    "threading.py": (STDLIB, "threading"),
    "json/decoder.py": (STDLIB, "json.decoder"),
    "requests/api.py": ("requests", "requests.api"),
    "app.py": (OWN_CODE, "app"),
    "/srv/plugin/train.py": (OWN_CODE, "train"),
}


def origin(kind: FrameKind, path: str, *others: Frame) -> tuple[str, str]:
    found = origins([Frame(kind, "f", path), *others])[0]
    return found.library, found.module


@pytest.mark.parametrize(("path", "expected"), PYTHON.items())
def test_python(path: str, expected: tuple[str, str]) -> None:
    assert origin(FrameKind.PYTHON, path) == expected


@pytest.mark.parametrize(("path", "expected"), NATIVE.items())
@pytest.mark.parametrize("kind", [FrameKind.NATIVE, FrameKind.INLINED])
def test_native(kind: FrameKind, path: str, expected: tuple[str, str]) -> None:
    assert origin(kind, path) == expected


@pytest.mark.parametrize(("path", "expected"), BUNDLED.items())
def test_python_of_a_bundle(path: str, expected: tuple[str, str]) -> None:
    unpacked = Frame(FrameKind.NATIVE, "g", "/tmp/_MEIa1B2c3/libpython3.11.so.1.0")
    assert origin(FrameKind.PYTHON, path, unpacked) == expected


def test_the_kernel_and_marks() -> None:
    assert origin(FrameKind.KERNEL, "") == (KERNEL, KERNEL)
    assert origins([Frame(kind) for kind in list(FrameKind)[4:]]) == [Origin()] * (len(FrameKind) - 4)
