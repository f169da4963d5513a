# SPDX-License-Identifier: Apache-2.0
"""The symbol check, on libraries that are compiled for it."""

import subprocess

import pytest

HEADER = "#define HR_API\nHR_API int\nhr_pour(int cups);\nHR_API const char *hr_name(void);\n"
LIBRARY = """
int hr_pour(int cups) { return cups; }
const char *hr_name(void) { return 0; }
int hr_fill(void) { return 0; }
int hr__inner;
"""
FACE = "HR_API int hr_fill(void);\n"
USER = "int main(void) { return hr_pour(hr_fill()) + !hr_name(); }\n"
UNUSED = "int hr_unused(void) { return 0; }\n"
EXTENSION = "void *PyInit__core(void) { return 0; }\n"


@pytest.fixture
def check(run_tool, write_files):
    def run(library: str = LIBRARY, extension: str = EXTENSION, header: str = HEADER, face: str = FACE):
        files = {"include/headrace/a.h": header, "include/headrace/face/f.h": face, "cli/a.c": USER}
        folder = write_files(files | {"a.c": library, "e.c": extension})
        subprocess.run(["cc", "-c", "a.c"], cwd=folder, check=True)
        subprocess.run(["ar", "rcs", "liba.a", "a.o"], cwd=folder, check=True)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", "e.so", "e.c"], cwd=folder, check=True)
        return run_tool("check_symbols.py", folder / "liba.a", folder / "e.so", folder / "include")

    return run


def test_good_names_pass(check):
    result = check()
    assert (result.returncode, result.stdout.strip()) == (0, "")


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"library": LIBRARY + "int helper;\n"}, "helper: a global symbol starts with hr_"),
        ({"library": LIBRARY + "int hr_secret;\n"}, "hr_secret: not in a public header"),
        ({"header": HEADER + "HR_API int hr_gone(void);\n"}, "hr_gone: declared in a public header, defined nowhere"),
        (
            {"library": LIBRARY + UNUSED, "header": HEADER + "HR_API int hr_unused(void);\n"},
            "hr_unused: public, and nothing",
        ),
        (
            {"library": LIBRARY + UNUSED, "face": FACE + "HR_API int hr_unused(void);\n"},
            "hr_unused: declared for the faces",
        ),
        ({"extension": EXTENSION + "int helper;\n"}, "helper: exported by the extension"),
        ({"extension": "int hidden;\n"}, "PyInit__core: not exported by the extension"),
    ],
)
def test_a_bad_name_is_named(check, changed, complaint):
    result = check(**changed)
    assert result.returncode == 1
    assert complaint in result.stdout
