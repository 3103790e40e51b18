/*
 * A program of C that embeds CPython and runs a program of Python in it.
 *
 *     runs_script LIBRARY PROGRAM ARGUMENTS...   LIBRARY is loaded late; "" when Python is linked.
 */
#include <dlfcn.h>
#include <stdio.h>

static const char run_it[] = "import os, runpy, sys\n"
                             "with open('/proc/self/cmdline') as file:\n"
                             "    sys.argv = file.read().split('\\0')[2:-1]\n"
                             "sys.path.insert(0, os.path.dirname(sys.argv[0]))\n"
                             "runpy.run_path(sys.argv[0], run_name='__main__')\n";

int main(int count, char **words)
{
    void *library = dlopen(count > 1 && words[1][0] ? words[1] : NULL, RTLD_NOW | RTLD_GLOBAL);

    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    void (*initialize)(void) = dlsym(library, "Py_Initialize");
    int (*run)(const char *) = dlsym(library, "PyRun_SimpleString");

    if (!initialize || !run) {
        fprintf(stderr, "no Python\n");
        return 1;
    }
    initialize();
    return run(run_it) ? 1 : 0;
}
