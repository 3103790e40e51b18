"""numpy, which takes longest of what is imported: not before it is known that the command is well formed."""

from __future__ import annotations

import os

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"  # numpy's own builds have OpenBLAS


def import_numpy() -> None:
    """Without the threads of its linear algebra, which is not used here: they take 0.1 s of CPU time.

    numpy.ma comes with it, 7 ms, before there are threads. numpy.unique() imports it when it is first called (2.3 and
    later); in another thread it is an unbounded recursion between the end of that import and the moment in which it
    becomes an attribute of numpy: its `__getattr__` imports what is imported, and asks for it again.
    """
    given = os.environ.get(_BLAS_THREADS)
    os.environ[_BLAS_THREADS] = "1"
    import numpy.ma  # noqa: F401

    del os.environ[_BLAS_THREADS]  # a program that is launched gets what the caller has
    if given is not None:
        os.environ[_BLAS_THREADS] = given
