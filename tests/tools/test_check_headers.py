# SPDX-License-Identifier: Apache-2.0
"""The check that public headers compile alone."""

import shutil

import pytest

GOOD = "#ifndef A_H\n#define A_H\n#include <stdint.h>\nstruct cup { uint32_t grams; };\n#endif\n"

BAD = [
    "struct cup { uint32_t grams; };\n",  # leans on what another header includes
    "enum cup { SMALL };\n",  # no guard
    "#ifndef A_H\n#define A_H\nstruct cup { int class; };\n#endif\n",  # no C++
    "#ifndef A_H\n#define A_H\nstatic int f(void) { return ({ 1; }); }\n#endif\n",  # no ISO C
]

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++ (make check installs it)")


def test_header_that_compiles_alone_passes(run_tool, write_files):
    assert run_tool("check_headers.py", write_files({"headrace/a.h": GOOD})).returncode == 0


@pytest.mark.parametrize("text", BAD)
def test_header_that_does_not_compile_alone_is_named(run_tool, write_files, text):
    result = run_tool("check_headers.py", write_files({"headrace/a.h": GOOD, "headrace/b.h": text}))
    assert result.returncode == 1
    assert "b.h does not compile alone" in result.stdout
    assert "a.h does not compile alone" not in result.stdout


def test_header_that_needs_one_that_is_not_installed_is_named(run_tool, write_files):
    files = {"headrace/a.h": GOOD, "headrace/face/c.h": GOOD, "headrace/b.h": "#include <headrace/face/c.h>\n"}
    result = run_tool("check_headers.py", write_files(files))
    assert result.returncode == 1
    assert "b.h does not compile alone" in result.stdout


def test_folder_without_headers_is_no_success(run_tool, tmp_path):
    assert run_tool("check_headers.py", tmp_path).returncode == 1
