#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds a wheel for each interpreter and tests headrace.Loader, frozen data and the doctor with it, without torch, in a
# temporary folder.
#
#   tests/other_pythons.sh [INTERPRETER...]    without arguments: python3.10 to python3.15, those that are on PATH
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

try() { # INTERPRETER FOLDER
    "$1" -m venv "$2/venv" &&
        "$2/venv/bin/pip" install -q --disable-pip-version-check numpy pillow pytest pytest-timeout hypothesis &&
        "$2/venv/bin/pip" wheel -q --disable-pip-version-check --no-deps -w "$2" \
            --config-settings=build-dir="$2/build" --config-settings=setup-args=-Dwerror=true "$root" &&
        "$2/venv/bin/pip" install -q --disable-pip-version-check --no-deps "$2"/headrace-*.whl &&
        mkdir "$2/tests" && (cd "$root/tests/python" && cp conftest.py lib/{drawn,mishaps,unpicklable,processes,warm,warm_server,huge_pages,process_table,frozen_types,graphs}.py "$2/tests") &&
        (cd "$root/tests/python" && cp loader/test_{forkserver,gc_pause,imports,scans}.py doctor/test_doctor.py loader/test_loader_numpy.py images/test_value_flow.py frozen/test_{builder,freeze_attributes,freeze_instances,freeze_graphs}.py "$2/tests") &&
        (cd "$2/tests" && ../venv/bin/python -m pytest -q)
}

if [ $# -eq 0 ]; then
    for name in python3.{10..15}; do
        if "$name" -c '' 2>/dev/null; then set -- "$@" "$name"; fi
    done
fi
[ $# -gt 0 ] || { echo "no interpreter found: name some as arguments" >&2; exit 2; }

failed=()
for python in "$@"; do
    version=$("$python" -c 'import platform; print(platform.python_version())')
    echo "== $python ($version)"
    try "$python" "$(mktemp -d "$folder/$version-XXXX")" || failed+=("$python")
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
