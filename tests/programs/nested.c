/* A CPython extension whose functions call each other 12 deep, without frame pointers when it is built so, and that also
 * has a thread of its own which never sees Python. Functions are kept out of line so that a profile can be asked for them
 * by name; mix() is the one to be inlined. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <time.h>

#define OUT_OF_LINE __attribute__((noinline, noclone))

static volatile unsigned long sink;

static inline __attribute__((always_inline)) unsigned long mix(unsigned long value)
{
    value ^= value << 13;
    value ^= value >> 7;
    return value ^ value << 17;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

OUT_OF_LINE void burn_in_c(double seconds)
{
    unsigned long value = 88172645463325252UL;
    for (double end = now() + seconds; now() < end;)
        for (int i = 0; i < 20000; i++)
            value = mix(value);
    sink = value;
}

/* What is at the bottom of the 12: Python, or C only. */
OUT_OF_LINE PyObject *at_the_bottom(PyObject *callable, double seconds)
{
    if (callable)
        return PyObject_CallObject(callable, 0);
    burn_in_c(seconds);
    Py_RETURN_NONE;
}

/* Each has a frame of another size, and something to do after the call: no tail calls. */
#define LEVEL(number, below, bytes)                                            \
    OUT_OF_LINE PyObject *c_level_##number(PyObject *callable, double seconds) \
    {                                                                          \
        volatile char room[bytes];                                             \
        room[0] = (char)seconds;                                               \
        PyObject *result = below(callable, seconds);                           \
        sink += (unsigned long)room[0];                                        \
        return result;                                                         \
    }
LEVEL(12, at_the_bottom, 8)
LEVEL(11, c_level_12, 24)
LEVEL(10, c_level_11, 40)
LEVEL(9, c_level_10, 5000)
LEVEL(8, c_level_9, 8)
LEVEL(7, c_level_8, 136)
LEVEL(6, c_level_7, 264)
LEVEL(5, c_level_6, 16)
LEVEL(4, c_level_5, 1032)
LEVEL(3, c_level_4, 8)
LEVEL(2, c_level_3, 72)
LEVEL(1, c_level_2, 520)

static PyObject *call_back(PyObject *module, PyObject *callable)
{
    PyObject *result = c_level_1(callable, 0);
    sink += (unsigned long)module;
    return result;
}

static PyObject *stay_in_c(PyObject *module, PyObject *seconds)
{
    PyObject *result = c_level_1(NULL, PyFloat_AsDouble(seconds));
    sink += (unsigned long)module;
    return result;
}

static PyObject *stay_in_c_without_gil(PyObject *module, PyObject *seconds)
{
    double duration = PyFloat_AsDouble(seconds);
    Py_BEGIN_ALLOW_THREADS burn_in_c(duration);
    Py_END_ALLOW_THREADS sink += (unsigned long)module;
    Py_RETURN_NONE;
}

OUT_OF_LINE void rest_in_c(void)
{
    struct timespec time = {0, 5000000};
    nanosleep(&time, NULL);
    sink++;
}

static void *native_worker(void *unused)
{
    prctl(PR_SET_NAME, "native");
    for (;;) {
        burn_in_c(0.005);
        rest_in_c();
    }
    return unused;
}

static PyObject *start_thread_of_c(PyObject *module, PyObject *unused)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, native_worker, unused))
        return PyErr_SetFromErrno(PyExc_OSError);
    sink += (unsigned long)module;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"call_back", call_back, METH_O, "Calls a function from 12 levels of C."},
    {"stay_in_c", stay_in_c, METH_O, "Burns so many seconds below 12 levels of C."},
    {"stay_in_c_without_gil", stay_in_c_without_gil, METH_O, "Burns so many seconds with the GIL given away."},
    {"start_thread_of_c", start_thread_of_c, METH_NOARGS, "Starts a thread that never sees Python."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "nested", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_nested(void)
{
    return PyModule_Create(&module);
}
