"""Which native functions of CPython only carry out what the Python frames say: a function's name in, yes or no out.

A function is internal when it only finds what to run and runs it: the evaluation function, the glue of calls, the
dispatch of operators and attributes, the way in at start-up. Left visible is what a Python user calls by name
(`builtin_sorted`, `list_sort`, `time_sleep`, `map_next`, `partial_call`), what takes time by itself (allocation,
garbage collection, `take_gil`), and what tells why Python code runs that no line calls (`subtype_dealloc`,
`handle_callback` of a weak reference, `_PyErr_CheckSignalsTstate`, `trace_trampoline`), and `_start`, the root.

The names are those seen between Python frames in stacks of CPython 3.9 to 3.13, and their like in the same sources.
"""

from __future__ import annotations

import re
from functools import lru_cache

# What compilers and linkers put behind a name (gcc, clang, BOLT), and what is said of a stub for a function.
_SUFFIX = re.compile(r"(?:\.(?:cold|constprop|isra|part|lto_priv|localalias|llvm|warm|org)(?:\.\d+)*|@plt)+$")

# (why it is internal, exact names)
_NAMES: tuple[tuple[str, str], ...] = (
    (
        "evaluates the Python frames that stand in its place: Python/ceval.c, Python/perf_trampoline.c",
        """_PyEval_EvalFrameDefault _PyEval_EvalFrame PyEval_EvalFrame PyEval_EvalFrameEx _PyEval_Vector PyEval_EvalCode
        PyEval_EvalCodeEx _PyEval_EvalCode _PyEval_EvalCodeWithName py_trampoline_evaluator""",
    ),
    (
        "makes or clears the frame of a Python call: Python/ceval.c, Python/frame.c, Objects/frameobject.c",
        """_PyEvalFramePushAndInit _PyEvalFrameClearAndPop _PyEval_FrameClearAndPop _PyFrame_Clear
        _PyFrame_ClearExceptCode _PyFrame_ClearLocals _PyFrame_Push _PyFrame_New_NoTrack frame_dealloc""",
    ),
    (
        "passes a call on: Objects/call.c, Objects/methodobject.c, Objects/descrobject.c, Objects/classobject.c",
        """_PyFunction_Vectorcall function_code_fastcall _PyObject_MakeTpCall _PyObject_Call
        _PyObject_Call_Prepend _PyObject_FastCall _PyObject_FastCallDictTstate _PyObject_VectorcallTstate
        _PyObject_VectorcallDictTstate PyObject_Vectorcall PyObject_VectorcallDict
        PyObject_VectorcallMethod PyVectorcall_Call PyVectorcall_Function _PyVectorcall_Call PyObject_Call
        PyObject_CallObject PyObject_CallNoArgs PyObject_CallOneArg PyObject_CallFunction PyObject_CallFunctionObjArgs
        PyObject_CallMethod PyObject_CallMethodObjArgs _PyObject_CallFunctionVa _PyObject_CallFunction_SizeT
        _PyObject_CallMethod _PyObject_CallMethodFormat _PyObject_CallMethodId _PyObject_CallMethodIdObjArgs
        _PyObject_CallMethodId_SizeT _PyObject_CallMethod_SizeT PyEval_CallFunction PyEval_CallMethod
        PyEval_CallObjectWithKeywords object_vacall call_function do_call_core cfunction_call
        method_vectorcall classmethoddescr_call wrapper_call wrapperdescr_call
        instancemethod_call vectorcall_method vectorcall_maybe type_call _Py_CheckFunctionResult""",
    ),
    (
        "runs a finalizer (what drops the object stays visible): Objects/object.c",
        "PyObject_CallFinalizer PyObject_CallFinalizerFromDealloc",
    ),
    (
        "leads from a slot of a type to the method written in Python, or back: Objects/typeobject.c, descrobject.c",
        """_Py_slot_tp_getattr_hook _Py_slot_tp_getattro tp_new_wrapper wrap_binaryfunc wrap_binaryfunc_l
        wrap_binaryfunc_r wrap_buffer wrap_call wrap_del wrap_delattr wrap_delitem wrap_descr_delete wrap_descr_get
        wrap_descr_set wrap_hashfunc wrap_indexargfunc wrap_init wrap_inquirypred wrap_lenfunc wrap_next
        wrap_objobjargproc wrap_objobjproc wrap_releasebuffer wrap_setattr wrap_sq_delitem wrap_sq_item wrap_sq_setitem
        wrap_ternaryfunc wrap_ternaryfunc_r wrap_unaryfunc property_descr_get property_descr_set""",
    ),
    (
        "finds the slot for an operation that the line spells, and calls it: Objects/abstract.c, Objects/object.c",
        """binary_op1 binary_iop1 ternary_op PyNumber_Divmod PyNumber_Absolute PyNumber_Invert PyNumber_Negative
        PyNumber_Positive PyNumber_Index _PyNumber_Index PyNumber_AsSsize_t PyNumber_Long PyNumber_Float
        _PyLong_FromNbInt PyObject_GetItem PyObject_SetItem PyObject_DelItem PyObject_Size PyObject_Length
        PyObject_IsTrue PyObject_Hash PyObject_Repr PyObject_Str PyObject_Format PyObject_RichCompare
        PyObject_RichCompareBool PyObject_GetIter PyObject_GetAIter PyIter_Next PyObject_GetAttr PyObject_SetAttr
        PyObject_GetOptionalAttr _PyObject_LookupAttr PyObject_GenericGetAttr PyObject_GenericSetAttr
        _PyObject_GenericGetAttrWithDict _PyObject_GenericSetAttrWithDict PyObject_IsInstance PyObject_IsSubclass""",
    ),
    (
        "resumes a generator or a coroutine, whose Python frame follows: Objects/genobject.c",
        """gen_send_ex gen_send_ex2 gen_send gen_iternext gen_throw _gen_throw gen_close gen_close_iter PyGen_am_send
        _PyGen_Send PyIter_Send coro_wrapper_iternext coro_wrapper_send coro_wrapper_throw coro_wrapper_close
        async_gen_asend_iternext async_gen_asend_send async_gen_asend_throw async_gen_asend_close
        async_gen_athrow_iternext async_gen_athrow_send async_gen_athrow_throw async_gen_athrow_close""",
    ),
    (
        "carries out `import` and `class` statements, whose Python frames follow: Python/import.c, bltinmodule.c",
        "PyImport_ImportModuleLevelObject import_find_and_load import_name builtin___build_class__",
    ),
    (
        "starts the program: Programs/python.c, Modules/main.c, Python/pythonrun.c",
        """Py_BytesMain Py_Main Py_FrozenMain Py_RunMain run_mod run_eval_code_obj run_pyc_file pyrun_file
        pyrun_simple_file""",
    ),
    (
        "starts a thread: Modules/_threadmodule.c, Python/thread_pthread.h",
        "thread_run t_bootstrap pythread_wrapper",
    ),
)

# (why they are internal, the whole name)
_PATTERNS: tuple[tuple[str, str], ...] = (
    ("handler of one instruction in a build with tail calls: Python/ceval_macros.h (v3.14.0)", r"_TAIL_CALL_\w+"),
    ("passes a call to C on, by calling convention: Objects/methodobject.c", r"cfunction_vectorcall_[A-Z_]+"),
    ("the same for methods: Objects/descrobject.c", r"method_vectorcall_[A-Z_]+"),
    ("leads from a slot to the method written in Python: Objects/typeobject.c", r"slot_(?:tp|nb|sq|mp|am|bf)_\w+"),
    ("the six comparisons, the other way: RICHCMP_WRAPPER, Objects/typeobject.c", r"richcmp_(?:lt|le|eq|ne|gt|ge)"),
    (
        "finds the slot of a binary operator: Objects/abstract.c",
        r"PyNumber_(?:InPlace)?(?:Add|Subtract|Multiply|MatrixMultiply|TrueDivide|FloorDivide|Remainder|Power"
        r"|Lshift|Rshift|And|Or|Xor)",
    ),
    ("starts the program: Modules/main.c", r"pymain_\w+"),
    ("runs a file, a string or a prompt: Python/pythonrun.c", r"_?PyRun_(?:Any|File|Interactive|Simple|String)\w*"),
)

_EXACT = frozenset(name for _, names in _NAMES for name in names.split())
_PATTERN = re.compile("|".join(pattern for _, pattern in _PATTERNS))


@lru_cache(maxsize=1 << 14)
def is_internal(function: str) -> bool:
    """Only for functions of the interpreter's own object: other libraries may have the same names."""
    name = _SUFFIX.sub("", function)
    return name in _EXACT or _PATTERN.fullmatch(name) is not None
