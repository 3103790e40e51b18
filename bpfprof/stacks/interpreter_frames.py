"""What a native function of CPython is to a Python user: its name in; hidden, garbage collection, or shown, out.

A function is internal when it only finds what to run and runs it: the evaluation function, the glue of calls, the
dispatch of operators and attributes, the way in at start-up. Left visible is what a Python user calls by name
(`builtin_sorted`, `list_sort`, `time_sleep`, `map_next`, `partial_call`), what takes time by itself (allocation,
`take_gil`), and what tells why Python code runs that no line calls (`subtype_dealloc`, `handle_callback` of a weak
reference, `_PyErr_CheckSignalsTstate`, `trace_trampoline`), and `_start`, the root. One frame, `<GC>`, stands for the
functions of a collection of garbage; what it runs (finalizers, callbacks, `subtype_dealloc`) follows.

The names are those seen between Python frames in stacks of CPython 3.6 to 3.15, and their like in the same sources.
"""

from __future__ import annotations

import re
from functools import lru_cache

# What compilers and linkers put behind a name (gcc, clang, BOLT), and what is said of a stub for a function.
_SUFFIX = re.compile(r"(?:\.(?:cold|constprop|isra|part|lto_priv|localalias|llvm|warm|org)(?:\.\d+)*|@plt)+$")

# (why they are internal, patterns of whole names)
_NAMES: tuple[tuple[str, str], ...] = (
    (
        "evaluates the Python frames that stand in its place: Python/ceval.c, Python/perf_trampoline.c",
        """_PyEval_EvalFrameDefault _PyEval_EvalFrame PyEval_EvalFrame PyEval_EvalFrameEx _PyEval_Vector PyEval_EvalCode
        PyEval_EvalCodeEx _PyEval_EvalCode _PyEval_EvalCodeWithName py_trampoline_evaluator""",
    ),
    ("handles one instruction in a build with tail calls: Python/ceval_macros.h (v3.14.0)", r"_TAIL_CALL_\w+"),
    (
        "makes or clears the frame of a Python call: Python/ceval.c, Python/frame.c, Objects/frameobject.c",
        """_PyEvalFramePushAndInit _PyEvalFrameClearAndPop _PyEval_FrameClearAndPop _PyFrame_Clear
        _PyFrame_ClearExceptCode _PyFrame_ClearLocals _PyFrame_Push _PyFrame_New_NoTrack frame_dealloc""",
    ),
    (
        "does what was asked for between two instructions: Python/ceval_gil.c",
        "_Py_HandlePending",
    ),
    (
        "passes a call on: Objects/call.c, Objects/methodobject.c, Objects/descrobject.c, Objects/classobject.c",
        r"""_?PyObject_(?:Fast)?Call(?!oc)\w* _?PyObject_Vectorcall\w* _PyObject_MakeTpCall _PyFunction_Vectorcall
        _?PyVectorcall_Call PyVectorcall_Function PyEval_Call(?:Function|Method|ObjectWithKeywords)
        _PyFunction_FastCall(?:Dict|Keywords)? _PyCFunction_FastCall(?:Dict|Keywords) function_call
        _PyMethodDe(?:f_Raw|scr_)FastCall(?:Dict|Keywords) method_call
        function_code_fastcall object_vacall call_function do_call_core cfunction_call method_vectorcall
        (?:cfunction|method)_vectorcall_[A-Z_]+ classmethoddescr_call wrapper_call wrapperdescr_call
        _Py_?(?:Builtin)?Call\w+_StackRef _Py_VectorCall\w*_StackRefSteal
        instancemethod_call vectorcall_method vectorcall_maybe type_call _Py_CheckFunctionResult""",
    ),
    (
        "leads from a slot of a type to the method written in Python, or back: Objects/typeobject.c, descrobject.c",
        r"""slot_(?:tp|nb|sq|mp|am|bf)_\w+ richcmp_(?:lt|le|eq|ne|gt|ge)
        _Py_slot_tp_getattr_hook _Py_slot_tp_getattro tp_new_wrapper wrap_binaryfunc wrap_binaryfunc_l
        wrap_binaryfunc_r wrap_buffer wrap_call wrap_del wrap_delattr wrap_delitem wrap_descr_delete wrap_descr_get
        wrap_descr_set wrap_hashfunc wrap_indexargfunc wrap_init wrap_inquirypred wrap_lenfunc wrap_next
        wrap_objobjargproc wrap_objobjproc wrap_releasebuffer wrap_setattr wrap_sq_delitem wrap_sq_item wrap_sq_setitem
        wrap_ternaryfunc wrap_ternaryfunc_r wrap_unaryfunc property_descr_get property_descr_set""",
    ),
    (
        "finds the slot for an operation that the line spells, and calls it: Objects/abstract.c, Objects/object.c",
        r"""PyNumber_(?:InPlace)?(?:Add|Subtract|Multiply|MatrixMultiply|TrueDivide|FloorDivide|Remainder|Power)
        PyNumber_(?:InPlace)?(?:Lshift|Rshift|And|Or|Xor) PyNumber_(?:Divmod|Absolute|Invert|Negative|Positive)
        _?PyNumber_Index PyNumber_AsSsize_t PyNumber_Long PyNumber_Float binary_op1 binary_iop1 ternary_op
        _PyLong_FromNbInt PyObject_GetItem PyObject_SetItem PyObject_DelItem PyObject_Size PyObject_Length
        PyObject_IsTrue PyObject_Hash PyObject_Repr PyObject_Str PyObject_Format PyObject_RichCompare
        PyObject_RichCompareBool PyObject_GetIter PyObject_GetAIter PyIter_Next PyObject_GetAttr PyObject_SetAttr
        PyObject_GetOptionalAttr _PyObject_LookupAttr PyObject_GenericGetAttr PyObject_GenericSetAttr
        _PyObject_GenericGetAttrWithDict _PyObject_GenericSetAttrWithDict PyObject_IsInstance PyObject_IsSubclass""",
    ),
    (
        "resumes a generator or a coroutine, whose Python frame follows: Objects/genobject.c",
        r"""gen_send_ex gen_send_ex2 gen_send gen_iternext gen_throw _gen_throw gen_close gen_close_iter PyGen_am_send
        _PyGen_Send _?PyIter_Send _PyAsyncGenASend_Send coro_wrapper_(?:iternext|send|throw|close)
        async_gen_a(?:send|throw)_(?:iternext|send|throw|close)""",
    ),
    (
        "carries out `import` and `class` statements, whose Python frames follow: Python/import.c, bltinmodule.c",
        "PyImport_ImportModuleLevelObject import_find_and_load import_name builtin___build_class__",
    ),
    (
        "starts the program: Programs/python.c, Modules/main.c, Python/pythonrun.c",
        r"""pymain_\w+ _Py_UnixMain _?PyRun_(?:Any|File|Interactive|Simple|String)\w*
        Py_BytesMain Py_Main Py_FrozenMain Py_RunMain run_mod run_eval_code_obj run_pyc_file pyrun_file
        pyrun_simple_file""",
    ),
    (
        "starts a thread: Modules/_threadmodule.c, Python/thread_pthread.h",
        "thread_run t_bootstrap pythread_wrapper",
    ),
)

# What begins a collection, in the order of calls: Modules/gcmodule.c (v3.6.15 to v3.12.1), Python/gc.c (v3.13.0 to
# v3.15.2), Python/gc_free_threading.c (v3.13.5). `gc_collect` is what a program calls as gc.collect().
_COLLECTION = r"""_Py_RunGC _?PyGC_Collect(?:NoFail|IfEnabled)? gc_collect_generations gc_collect_with_callback
    gc_collect_main gc_collect_internal gc_collect_young gc_collect_increment gc_collect_full gc_collect_region
    collect_generations collect_with_callback collect"""
# What it calls to find garbage and to clear it: the same files, tp_traverse of types, visits of mimalloc's heaps.
_OF_COLLECTION = r"""\w*traverse visit_\w+ mark_\w+ PyObject_VisitManagedDict _PyGC_Visit\w+ _?mi_heap_\w*visit\w*
    gc_visit_\w+ gc_restore_\w+ update_refs subtract_refs deduce_unreachable\w* \w+_unreachable untrack_\w+
    _Py(?:Dict|Tuple)_MaybeUntrack handle_weakref\w* handle_legacy_finalizers handle_resurrected_objects
    move_legacy_finalizers move_legacy_finalizer_reachable finalize_garbage check_garbage delete_garbage
    invoke_gc_callback scan_heap_visitor"""

_PATTERN, _BEGINS, _COLLECTS = (
    re.compile("|".join(names.split()))
    for names in (" ".join(patterns for _, patterns in _NAMES), _COLLECTION, f"{_COLLECTION} {_OF_COLLECTION}")
)


@lru_cache(maxsize=1 << 14)
def is_internal(function: str) -> bool:
    """Only for functions of the interpreter's own object: other libraries may have the same names."""
    return _PATTERN.fullmatch(_SUFFIX.sub("", function)) is not None


@lru_cache(maxsize=1 << 14)
def begins_collection(function: str) -> bool:
    """Of the interpreter's own functions: whether a collection of garbage begins with it."""
    return _BEGINS.fullmatch(_SUFFIX.sub("", function)) is not None


@lru_cache(maxsize=1 << 14)
def collects(function: str) -> bool:
    """Of its functions that a collection calls: whether they are part of it, and not something that it runs."""
    return _COLLECTS.fullmatch(_SUFFIX.sub("", function)) is not None
