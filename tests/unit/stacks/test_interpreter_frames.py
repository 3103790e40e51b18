from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from bpfprof.stacks import interpreter_frames
from bpfprof.stacks.interpreter_frames import begins_collection, collects, is_internal
from tests import pyenv, sid

LIBRARIES = pyenv.paths("3.*/lib/libpython3.*.so.1.0")
STRIPPED_LIBRARIES = sorted(sid.folder().glob("usr/lib/*/libpython3.*.so.1.0"))

# What stood between Python frames in real processes, 3.9 to 3.15; in each line the call that was made and the frames.
BETWEEN_PYTHON_FRAMES = """
f(*a, **k)           PyVectorcall_Call _PyVectorcall_Call _PyFunction_Vectorcall _PyEval_Vector function_code_fastcall
C()                  type_call slot_tp_init _PyObject_Call_Prepend _PyObject_FastCallDictTstate slot_tp_new
a.x                  PyObject_GetAttr _PyObject_GenericGetAttrWithDict property_descr_get slot_tp_getattr_hook
a + b                PyNumber_Add binary_op1 slot_nb_add vectorcall_maybe.constprop.0
a @ b, a += b        PyNumber_MatrixMultiply PyNumber_InPlaceAdd slot_nb_inplace_add
a[i]                 PyObject_GetItem slot_mp_subscript vectorcall_method.constprop.0 method_vectorcall
a < b, a in b        PyObject_RichCompare slot_tp_richcompare slot_sq_contains
next(g), g.send(1)   gen_iternext gen_send_ex gen_send_ex2 PyGen_am_send PyIter_Send method_vectorcall_O
g.throw(e)           gen_throw _gen_throw method_vectorcall_FASTCALL _PyCallMethodDescriptorFast_StackRef
f(x), C(x) in 3.15   _Py_BuiltinCallFastWithKeywords_StackRef _Py_CallBuiltinClass_StackRef _Py_VectorCall_StackRefSteal
async for            _PyAsyncGenASend_Send _PyIter_Send
C.__del__            PyObject_CallFinalizerFromDealloc slot_tp_finalize _PyEvalFrameClearAndPop _PyFrame_ClearExceptCode
import, class        PyImport_ImportModuleLevelObject builtin___build_class__ cfunction_vectorcall_FASTCALL_KEYWORDS
thread               pythread_wrapper thread_run t_bootstrap
start                Py_BytesMain Py_RunMain pymain_run_python.constprop.0 _PyRun_AnyFileObject PyRun_SimpleFileExFlags
run                  run_mod run_eval_code_obj PyEval_EvalCode _PyEval_EvalCodeWithName PyRun_StringFlags
"""

VISIBLE = """
builtin_sorted builtin_exec builtin___import__ builtin_print builtin_next list_sort list_sort_impl time_sleep os_read
map_next filter_next zip_next list_extend list_vectorcall dict_vectorcall partial_call bounded_lru_cache_wrapper
functools_reduce context_run _sre_SRE_Pattern_sub pattern_subx dict_repr unicode_decode_utf8 type_new
subtype_dealloc gen_dealloc handle_callback PyObject_ClearWeakRefs gc_collect _PyErr_CheckSignalsTstate
trace_trampoline take_gil PyObject_Malloc PyObject_Calloc _PyObject_Calloc PyNumber_ToBase _PyLong_Add long_add
PyRunner run_module main wrap_strftime slot_cache gen_server method_vectorcaller cfunction_vectorcall_ ""
"""


@pytest.mark.parametrize("line", BETWEEN_PYTHON_FRAMES.strip().splitlines(), ids=lambda line: line[:20].strip())
def test_internal(line: str) -> None:
    assert [name for name in line[21:].split() if not is_internal(name)] == []


def test_visible() -> None:
    assert [name for name in VISIBLE.split() if is_internal(name)] == []
    assert not is_internal("")


@pytest.mark.parametrize(
    "suffix", [".cold", ".part.0", ".constprop.12", ".isra.0", ".lto_priv.3", ".part.0.isra.0", ".cold.0", "@plt"]
)
def test_suffixes_do_not_matter(suffix: str) -> None:
    assert is_internal("_PyEval_EvalFrameDefault" + suffix)
    assert is_internal("method_vectorcall_NOARGS" + suffix)
    assert not is_internal("list_sort" + suffix)


def test_handlers_of_tail_call_builds() -> None:
    assert is_internal("_TAIL_CALL_LOAD_FAST.llvm.1234")
    assert not is_internal("_TAIL_CALL_")


def test_what_is_a_part_of_a_collection_of_garbage() -> None:
    begin = "gc_collect_main _PyGC_Collect _Py_RunGC collect.constprop.0 _PyGC_CollectNoFail PyGC_Collect"
    parts = "visit_decref subtype_traverse tupletraverse deduce_unreachable delete_garbage handle_weakrefs update_refs"
    others = "gc_collect collect_stats handle_callback handle_signals subtype_clear subtype_dealloc slot_tp_finalize"
    assert all(begins_collection(name) and collects(name) and not is_internal(name) for name in begin.split())
    assert all(collects(name) and not begins_collection(name) for name in parts.split())
    assert not any(collects(name) or begins_collection(name) for name in others.split())


# Inlined into their callers in every library at hand; in others, and in the debug information, they are functions.
_INLINED = {
    *("_PyEval_EvalFrame", "call_function", "do_call_core", "binary_iop1", "ternary_op"),
    *("import_find_and_load", "import_name", "pyrun_file", "run_pyc_file", "pyrun_simple_file"),
    r"_TAIL_CALL_\w+",  # of 3.14
}


def test_each_group_has_a_reason_and_no_name_is_listed_twice() -> None:
    patterns = [pattern for _, listed in interpreter_frames._NAMES for pattern in listed.split()]
    assert all(reason for reason, _ in interpreter_frames._NAMES)
    for name in patterns:
        assert [pattern for pattern in patterns if re.fullmatch(pattern, name)] in ([name], []), name


@pytest.mark.second_tier
@pytest.mark.skipif(
    shutil.which("nm") is None or len(LIBRARIES) < 5 or not STRIPPED_LIBRARIES,
    reason="no nm, or few libraries (see tests/sid.py)",
)
def test_every_name_is_a_function_of_some_cpython() -> None:
    functions: set[str] = set()
    for library in [*LIBRARIES, *STRIPPED_LIBRARIES]:
        command = ["nm", "--defined-only", *(["--dynamic"] if library in STRIPPED_LIBRARIES else []), library]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        functions |= {re.sub(r"[.@].*", "", line.split()[2]) for line in listed.splitlines()}
    patterns = {pattern for _, listed in interpreter_frames._NAMES for pattern in listed.split()}
    assert {p for p in patterns if not any(re.fullmatch(p, name) for name in functions)} <= _INLINED
