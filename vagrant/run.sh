#!/usr/bin/env bash
# Runs the tests marked `kernel` in machines of the matrix; see usage().
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
    cat <<END
Usage: vagrant/run.sh [ROW...]           with Vagrant and libvirt
       vagrant/run.sh --qemu [ROW...]    with qemu alone, also where there is no KVM

Runs the tests marked "kernel" in a machine of each ROW of vagrant/matrix.yaml, by default of all, one after another.
What a machine reports goes to vagrant/reports/ROW/. The exit status is 1 if a row failed.
END
}

case ${1:-} in
-h | --help)
    usage
    exit
    ;;
--qemu)
    shift
    python=$here/../.venv/bin/python # it has the module yaml
    [[ -x $python ]] || python=python3
    exec "$python" "$here/qemu.py" "$@"
    ;;
esac

if ! command -v vagrant >/dev/null; then
    echo "There is no vagrant. Install it (Debian: vagrant-libvirt), or use: vagrant/run.sh --qemu" >&2
    exit 1
fi
export VAGRANT_CWD=$here VAGRANT_CHECKPOINT_DISABLE=1
if ! status=$(vagrant status --machine-readable); then
    echo "$status" >&2
    exit 1
fi
mapfile -t known < <(awk -F, '$3 == "metadata" && $4 == "provider" { print $2 }' <<<"$status")
rows=("$@")
(($#)) || rows=("${known[@]}")
for row in "${rows[@]}"; do
    if [[ " ${known[*]} " != *" $row "* ]]; then
        echo "There is no row $row in vagrant/matrix.yaml, only: ${known[*]}" >&2
        exit 2
    fi
done

# Without a terminal, which would change the bytes of the reports.
in_machine() {
    vagrant ssh "$running" -c "$1" -- -T </dev/null
}

# The reports are fetched also when the tests failed.
run_row() {
    local status=0
    vagrant up --provision "$running" || return
    in_machine "sudo rm -rf /tmp/reports && sudo mkdir /tmp/reports"
    in_machine "cd /vagrant && sudo BPFPROF_REPORTS=/tmp/reports timeout 1h sh vagrant/guest.sh" || status=$?
    in_machine "sudo tar -c -C /tmp/reports ." | tar -x -C "$here/reports/$running" || status=1
    return "$status"
}

running=
halt() {
    [[ -z $running ]] || vagrant halt "$running" || true
    running=
}
trap halt EXIT

summary=() failed=0
for row in "${rows[@]}"; do
    running=$row outcome=passed
    rm -rf "$here/reports/$row"
    mkdir -p "$here/reports/$row"
    if ! run_row 2>&1 | tee "$here/reports/$row/console.log"; then
        outcome=FAILED failed=1
    fi
    halt
    summary+=("$(printf '%-16s %s %5d s' "$row" "$outcome" "$SECONDS")")
    SECONDS=0
done
printf '%s\n' "${summary[@]}"
exit "$failed"
