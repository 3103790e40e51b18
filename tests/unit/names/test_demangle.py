from __future__ import annotations

import random
import re
import shutil
import subprocess
import threading
import time

import pytest

from bpfprof.names.demangled import can_demangle
from bpfprof.names.symbols import demangle

pytestmark = pytest.mark.skipif(not can_demangle(), reason="no demangler for this Python")


def nested(levels: int) -> str:
    """f<A<c, c>, A<S0, S0>, ...>: each argument is twice as long as the one before, when it is written out."""

    def reference(index: int) -> str:
        digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
        text = ""
        while index:
            text, index = digits[(index - 1) % 36] + text, (index - 1) // 36
        return f"S{text or '0'}_"

    return "_Z1f1AIccE" + "".join(f"S_I{reference(i)}{reference(i)}E" for i in range(1, levels))


@pytest.mark.parametrize(
    ("mangled", "readable"),
    [
        ("_ZNSt6vectorIiSaIiEE9push_backERKi", "std::vector<int, std::allocator<int> >::push_back(int const&)"),
        ("_Z3foov.cold", "foo() [clone .cold]"),
        ("_ZL3foov.part.0", "foo() [clone .part.0]"),
        ("_ZN4core3fmt9Formatter3pad17h9b2b3a0e5b4d1b31E", "core::fmt::Formatter::pad"),
        ("_RNvCskwGfYPst2Cb_3foo16example_function", "foo::example_function"),
        ("_RINvNtC3std3mem8align_ofdE", "std::mem::align_of::<f64>"),
    ],
)
def test_known_names(mangled: str, readable: str) -> None:
    assert demangle(mangled) == readable


@pytest.mark.parametrize(
    ("mangled", "readable"),
    [
        ("__pyx_pw_7cy_part_1cython_calls", "cy_part.cython_calls"),
        ("__pyx_pf_6uvloop_4loop_4Loop_44run_until_complete", "uvloop.loop.Loop.run_until_complete"),
        ("__pyx_f_6uvloop_4loop_4Loop__run", "uvloop.loop.Loop._run"),
        ("__pyx_f_7cy_part_spin.constprop.0", "cy_part.spin [clone .constprop.0]"),
        ("__pyx_pw_3mod_1C_1__init__", "mod.C.__init__"),
        ("__pyx_pw_3mod_6method_x", "mod.method_x"),
        ("__pyx_pw_3mod_5outer_1inner", "mod.outer.inner"),
        ("__pyx_gb_7cy_part_6Holder_4generator", "cy_part.Holder.<generator 4>"),
        ("__pyx_fuse_1_0__pyx_pw_3mod_9f", "mod.f"),
        *(
            (name, name)
            for name in ("__pyx_pymod_exec_mod", "__pyx_pw_", "__pyx_pw_3mod_", "__pyx_f_3", "__pyx_pw_9mod_1f")
        ),
        ("__pyx_pw_" + "1a_" * 9000 + "1f", "__pyx_pw_" + "1a_" * 9000 + "1f"),
    ],
)
def test_names_that_cython_writes(mangled: str, readable: str) -> None:
    assert demangle(mangled) == readable


@pytest.mark.parametrize(
    "name",
    [
        "main",
        "",
        "_",
        "_Z",
        "_R",
        "_Z_oom",
        "_ZZZZ",
        "PyEval_EvalFrameDefault",
        "eqdestroy___x",
        "?f@@YAXH@Z",
        "_Zürich",
    ],
)
def test_names_that_are_not_mangled_stay(name: str) -> None:
    assert demangle(name) == name


def test_it_agrees_with_cxxfilt() -> None:
    library = subprocess.run(["g++", "-print-file-name=libstdc++.so.6"], capture_output=True, text=True).stdout.strip()
    if shutil.which("c++filt") is None or not library.startswith("/"):
        pytest.skip("no c++filt or no libstdc++")
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    names = sorted(set(re.findall(r"^[0-9a-f]+ [TWV] (_Z[^\s@]+)", listed, re.M)))
    assert len(names) > 1000
    out = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    assert [demangle(name) for name in names] == out.splitlines()


@pytest.mark.second_tier
@pytest.mark.parametrize(
    "name",
    [
        nested(30),
        nested(500),
        "_Z1f" + "P" * 60000 + "c",
        "_Z1f" + "1AI" * 4000 + "c" + "E" * 4000,
        "_RNv" * 10000,
        "_RINv" * 3000,
        "_Z" + "9" * 60000,
        "_Z1f" + "c" * 16000,
        "_ZN" + "1a" * 8000 + "E",
        "_Z1fDv" + "9" * 5000 + "_c",
    ],
    ids=lambda name: name[:10],
)
def test_hostile_names_cost_little(name: str) -> None:
    before = time.process_time()
    assert len(demangle(name)) <= max(len(name), 16 << 10)
    assert time.process_time() - before < 1


@pytest.mark.second_tier
def test_damaged_names() -> None:
    rng = random.Random(5)
    bases = ["_ZNSt6vectorIiSaIiEE9push_backERKi", "_RINvNtC3std3mem8align_ofdE", nested(8)]
    for _ in range(5000):
        name = list(rng.choice(bases)[2:])
        for _ in range(rng.randrange(1, 6)):
            name[rng.randrange(len(name))] = rng.choice("SITNEPRKFLXDJCMAGv_0123456789ci\0\udc80é")
        before = time.process_time()
        assert demangle("_Z" + "".join(name)) and demangle("_R" + "".join(name))
        assert time.process_time() - before < 0.5


def test_several_threads() -> None:
    names = [f"_ZN3std3foo{len(str(i)) + 1}a{i}Ev" for i in range(200)]
    results: list[list[str]] = []
    threads = [threading.Thread(target=lambda: results.append([demangle(n) for n in names])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[f"std::foo::a{i}()" for i in range(200)]] * 8
