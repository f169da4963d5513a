# SPDX-License-Identifier: Apache-2.0
"""The layer check accepts what the architecture allows, and names what it does not."""

import pytest

TREE = {
    "include/headrace/error.h": "",
    "include/headrace/loader.h": "#include <headrace/error.h>\n",
    "include/headrace/headrace.h": "#include <headrace/loader.h>\n",
    "include/headrace/face/error.h": "#include <headrace/error.h>\n",
    "include/headrace/face/face.h": "#include <headrace/face/error.h>\n",
    "src/base/error.h": "#include <headrace/error.h>\n",
    "src/os/os.h": "",
    "src/os/memory.c": '#include "os.h"\n#include "base/error.h"\n#include <sys/mman.h>\n',
    "src/batch/tree.h": "",
    "src/crew/crew.h": "",
    "src/loader/loader.c": '#include "batch/tree.h"\n#include "../os/os.h"\n#include <headrace/loader.h>\n',
    "cli/main.c": '#include "own.h"\n#include <headrace/headrace.h>\n#include <unistd.h>\n',
    "cli/error.c": "#include <headrace/face/error.h>\n",
    "cli/own.h": "",
}

BAD = [
    ("src/base/a.c", '#include "os/os.h"', "upwards from base"),
    ("src/os/a.c", '#include "../batch/tree.h"', "upwards from os"),
    ("src/crew/a.c", '#include "batch/tree.h"', "sideways from crew"),
    ("src/os/a.c", "#include <headrace/loader.h>", "upwards from os"),
    ("src/loader/a.c", "#include <headrace/headrace.h>", "which no layer owns"),
    ("src/loader/a.c", "  #  include <sys/mman.h>", "system calls are in src/os only"),
    ("src/arena/a.c", "#include <unistd.h>", "system calls are in src/os only"),
    ("src/arena/a.c", '#include "gone.h"', "does not exist"),
    ("src/novel/a.c", "#include <stdio.h>", "in no folder that the table of layers has"),
    ("src/a.c", "#include <stdio.h>", "in no folder that the table of layers has"),
    ("include/headrace/error.h", "#include <headrace/loader.h>", "upwards from base"),
    ("include/headrace/error.h", "#include <headrace/face/error.h>", "which is not installed"),
    ("include/headrace/headrace.h", "#include <headrace/face/error.h>", "which is not installed"),
    ("examples/c/a.c", "#include <headrace/face/error.h>", "which is not installed"),
    ("cli/a.c", '#include "../src/base/error.h"', "its own folder only"),
    ("python/headrace/_core/a.c", '#include "base/error.h"', "its own folder only"),
    ("examples/c/a.c", "#include <headrace/gone.h>", "does not exist"),
]


def test_allowed_includes_pass(run_tool, write_files):
    result = run_tool("check_layers.py", write_files(TREE))
    assert (result.returncode, result.stdout.strip()) == (0, "")


@pytest.mark.parametrize(("name", "text", "complaint"), BAD)
def test_forbidden_include_is_named(run_tool, write_files, name, text, complaint):
    result = run_tool("check_layers.py", write_files(TREE | {name: text + "\n"}))
    assert result.returncode == 1
    assert result.stdout.startswith(f"{name}: ")
    assert complaint in result.stdout
    assert len(result.stdout.splitlines()) == 1
