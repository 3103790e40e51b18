"""Becomes a program of C that holds the Python which runs this: SOURCE LIBRARY ARGUMENTS...

Usage: embedded.py HOW FOLDER SOURCE ARGUMENTS...

HOW is `linked` (to the shared library), `late` (it loads the library itself), `static` (the archive is linked in, at
fixed addresses) or `static-pie`. LIBRARY is "" unless it is to be loaded. FOLDER gets
what is compiled, once. Needs a C compiler. On CPython 3.6 and newer.
"""

import glob
import os
import subprocess
import sys
import sysconfig


def variable(name):
    return sysconfig.get_config_var(name) or ""


def library():
    """Path of the shared library, or its name where the loader knows the folder."""
    path = os.path.join(variable("LIBDIR"), variable("INSTSONAME"))
    return path if os.path.exists(path) else variable("INSTSONAME")


def link_options(how):
    if how == "late":
        return ["-ldl"]
    if how == "linked":
        name, folder = os.path.basename(library()), variable("LIBDIR")
        return ["-Wl,--no-as-needed", "-L" + folder, "-Wl,-rpath," + folder, "-l:" + name, "-ldl"]
    # Debian has one more archive, of code that may lie anywhere.
    archives = glob.glob(variable("LIBPL") + "/libpython*-pic.a") if how == "static-pie" else []
    archive = archives[0] if archives else os.path.join(variable("LIBPL"), variable("LIBRARY"))
    libraries = [*variable("LIBS").split(), *variable("SYSLIBS").split(), *variable("MODLIBS").split()]
    whole = ["-Wl,--whole-archive", archive, "-Wl,--no-whole-archive", "-Wl,-E"]
    return ["-pie" if how == "static-pie" else "-no-pie", *whole, *libraries, "-ldl", "-lpthread", "-lm"]


def main():
    how, folder, source, *arguments = sys.argv[1:]
    program = os.path.join(folder, os.path.basename(source)[: -len(".c")])
    if not os.path.exists(program):
        os.makedirs(folder, exist_ok=True)
        subprocess.run(["cc", "-g", "-pthread", "-o", program, source, *link_options(how)], check=True)
    os.execv(program, [program, library() if how == "late" else "", *arguments])


if __name__ == "__main__":
    main()
