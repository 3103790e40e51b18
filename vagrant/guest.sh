#!/bin/sh
# Runs the tests marked `kernel` as root in the checkout, on the machine it is on, or the tests that are named; what they
# report goes into the folder $BPFPROF_REPORTS. With --prepare only the virtual environment is made that they run in,
# which takes the network.
set -eu
cd "$(dirname "$0")/.."
environment=/opt/bpfprof

if [ ! -x $environment/bin/pytest ]; then
    python3 -m venv --system-site-packages $environment
    # Not the checkout itself: it is on the path, and what it needs is asked for by name.
    $environment/bin/python -m pip install --quiet --upgrade pip
    $environment/bin/python -m pip install --quiet numpy click pyelftools pytest pytest-timeout pyinstaller \
        "demangle; python_version >= '3.11'"
    $environment/bin/python -m PyInstaller --onefile --log-level ERROR --distpath $environment --workpath /tmp/build \
        --specpath /tmp/build tests/programs/known.py
fi
[ "${1:-}" = --prepare ] && exit

reports=${BPFPROF_REPORTS:?the folder for reports}
export PYTHONPATH="$PWD" PYTHONDONTWRITEBYTECODE=1
[ $# -gt 0 ] || set -- tests/kernel
exec $environment/bin/python -m pytest -v -p no:cacheprovider -m kernel --junitxml="$reports/junit.xml" "$@"
