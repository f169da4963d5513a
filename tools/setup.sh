#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes this machine ready:
#   tools/setup.sh packages demo|test|check|wheels   the system's packages: asks the system, installs only what it lacks
#   tools/setup.sh venv                       the virtual environment in .venv
#   tools/setup.sh slurm                      Slurm in build/slurm, from Debian's packages, which are not installed
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
missing=()

# need PACKAGE COMMAND...: without the package, the command fails.
need() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}

compiles() { echo "#include <$1>" | cc -E -; }

python_fits() { "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))'; }

python_has_headers() {
    "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
}

has_sanitizers() {
    echo 'int main(void) { return 0; }' | clang -x c -fsanitize=address,undefined -o /dev/null -
}

find_missing() {
    missing=()
    need gcc command -v cc
    need libc6-dev compiles stdio.h
    need zlib1g-dev compiles zlib.h
    need python3 command -v "$python"
    need python3-venv python_fits
    need python3-dev python_has_headers
    if [ "$1" = wheels ]; then
        need git command -v git
        need nasm command -v nasm
        return
    fi
    need pkg-config command -v pkg-config
    need libjpeg-dev pkg-config --exists libjpeg
    [ "$1" = demo ] && return
    need libcmocka-dev pkg-config --exists cmocka
    [ "$1" = test ] && return
    need git command -v git
    need binutils command -v nm
    need g++ command -v g++
    need ccache command -v ccache
    need clang command -v clang
    need clang-format command -v clang-format
    need clang-tidy command -v clang-tidy
    need libclang-rt-dev has_sanitizers
}

# Older releases have the sanitizers in a package that clang itself brings.
drop_unknown() {
    local known=() package
    for package in "${missing[@]}"; do
        if apt-cache show "$package" >/dev/null 2>&1; then known+=("$package"); fi
    done
    missing=("${known[@]}")
}

advise_on_python() {
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
        echo "$python is not Python 3.11 or newer, which development needs; PYTHON=python3.12 make ... takes another" >&2
}

install_packages() {
    find_missing "$1"
    [ ${#missing[@]} -eq 0 ] && return
    if ! command -v apt-get >/dev/null; then
        echo "headrace needs these packages (Debian's names): ${missing[*]}" >&2
        exit 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        echo "headrace needs packages; run this, then make again: sudo apt-get install -y ${missing[*]}" >&2
        advise_on_python
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q || true # what is known already may do
    drop_unknown
    apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}"
    find_missing "$1"
    [ ${#missing[@]} -eq 0 ] && return
    echo "still missing after apt-get: ${missing[*]}" >&2
    advise_on_python
    exit 1
}

pin() { grep -E "^$1==" requirements-dev.txt; }

make_venv() {
    .venv/bin/python -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear .venv
    .venv/bin/python -m pip install -q --disable-pip-version-check "$(pin torch)"
    .venv/bin/python -m pip install -q --disable-pip-version-check "$(pin uv)"
    .venv/bin/uv pip install -q --python .venv/bin/python -r requirements-dev.txt
}

unpack_slurm() {
    local packages=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libmunge2 libhwloc15 liblua5.1-0) file
    mkdir -p build/slurm/packages
    (cd build/slurm/packages && apt-get download -q "${packages[@]}")
    for file in build/slurm/packages/*.deb; do dpkg -x "$file" build/slurm; done
}

case "${1:-} ${2:-}" in
"packages demo" | "packages test" | "packages check" | "packages wheels") install_packages "$2" ;;
"venv ") make_venv ;;
"slurm ") unpack_slurm ;;
*)
    echo "usage: tools/setup.sh packages demo|test|check|wheels, tools/setup.sh venv, or tools/setup.sh slurm" >&2
    exit 2
    ;;
esac
