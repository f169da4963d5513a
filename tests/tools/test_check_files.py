# SPDX-License-Identifier: Apache-2.0
"""The small rules for every file."""

import pytest

SPDX = "SPDX-License-Identifier: " + "Apache-2.0"
TREE = {
    "src/meson.build": f"# {SPDX}\nbase_sources = files('base/error.c')\n",
    "src/base/error.c": f"/* {SPDX} */\n",
    "include/headrace/meson.build": f"# {SPDX}\npublic_headers = files('cup.h', 'headrace.h')\n",
    "include/headrace/headrace.h": f"/* {SPDX} */\n",
    "tests/meson.build": f"# {SPDX}\nc_tests = {{\n  'unit': [\n    'base',\n  ],\n  'process': ['fork'],\n}}\n",
    "tests/c/unit/test_base.c": f"/* {SPDX} */\n",
    "tests/python/test_cup.py": f"# {SPDX}\n",
    "tools/run.sh": f"#!/bin/sh\n# {SPDX}\n",
    "README.md": "See docs/" + "work/notes and https://example.org/" + "home/page.\n",  # paths of no machine
    "image.png": "\ufffd",
}

BAD = [
    ("cli/main.c", "int main(void) { return 0; }\n", "no line 'SPDX"),
    ("tests/test_a.py", "\n" * 20 + f"# {SPDX}\n", "no line 'SPDX"),
    ("README.md", "cd /" + "root/checkout\n", "names a place of one machine"),
    ("README.md", "open '/" + "home/someone'\n", "names a place of one machine"),
    ("src/base/hash.c", f"/* {SPDX} */\n", "not listed in src/meson.build"),
    ("tests/c/unit/test_hash.c", f"/* {SPDX} */\n", "not listed in tests/meson.build"),
    ("fuzz/fuzz_hash.c", f"/* {SPDX} */\n", "not listed in fuzz/meson.build"),
    ("tests/soak/soak_water.c", f"/* {SPDX} */\n", "not listed in tests/meson.build"),
    ("tests/c/process/test_base.c", f"/* {SPDX} */\n", "not listed in tests/meson.build"),
    ("include/headrace/cup.h", f"/* {SPDX} */\n", "not listed in include/headrace/headrace.h"),
    ("include/headrace/face/cup.h", f"/* {SPDX} */\n", "not listed in include/headrace/face/face.h"),
    ("cli/cup.c", f"/* {SPDX} */\n", "not listed in cli/meson.build"),
    ("python/headrace/new.py", f"# {SPDX}\n", "not listed in python/meson.build"),
    ("tests/tools/test_cup.py", f"# {SPDX}\n", "a test of the same name as test_cup.py in python/"),
    ("notes|", "", "a name with other characters"),
    ("a.bin", "\0" * 100, "not text"),
    ("big.txt", "x" * 400_000, "400,000 bytes, but no file has more than"),
]


def test_a_good_tree_passes(run_tool, write_files):
    result = run_tool("check_files.py", write_files(TREE))
    assert (result.returncode, result.stdout.strip()) == (0, "")


@pytest.mark.parametrize(("name", "text", "complaint"), BAD)
def test_a_bad_file_is_named(run_tool, write_files, name, text, complaint):
    result = run_tool("check_files.py", write_files(TREE | {name: text}))
    assert result.returncode == 1
    assert result.stdout.startswith(f"{name}: {complaint}")
