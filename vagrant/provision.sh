#!/usr/bin/env bash
# Installs the packages of a row into a machine of Vagrant, as root. Its kernel runs from the next boot on.
# Arguments: the row's suite, kernel_from and kernel_package, then the packages, as in matrix.yaml.
set -euo pipefail
suite=$1 kernel_from=$2 kernel_package=$3
shift 3
apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)

for source in "$suite" "$kernel_from"; do
    archive=debian
    [[ $source == *-security ]] && archive=debian-security
    echo "deb http://deb.debian.org/$archive $source main"
done >/etc/apt/sources.list.d/bpfprof.list
"${apt[@]}" update
"${apt[@]}" install -y --no-install-recommends "$@"

if ! kernel=$(apt-cache pkgnames linux-image- | grep -Px "$kernel_package" | sort -V | tail -n 1); then
    echo "no package $kernel_package in $kernel_from" >&2
    exit 1
fi
"${apt[@]}" install -y --no-install-recommends --target-release "$kernel_from" "$kernel"
# By itself GRUB starts the newest kernel, which may be the box's own.
mkdir -p /etc/default/grub.d
echo "GRUB_DEFAULT='Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux ${kernel#linux-image-}'" \
    >/etc/default/grub.d/bpfprof.cfg
update-grub
