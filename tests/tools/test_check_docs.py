# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/check_docs.py, which checks the table of files in docs/architecture.md."""

import pytest

TREE = {"src/os/clock.c": "", "src/os/os.h": "", "python/headrace/__init__.py": "", "python/headrace/py.typed": ""}
NAMES = sorted(set(TREE) - {"python/headrace/py.typed"})


def page(*names, text="One sentence."):
    rows = "\n".join(f"| `{name}` | {text} |" for name in names)
    return {"docs/architecture.md": f"# Files\n\n| file | what |\n|---|---|\n{rows}\n\n| `next` | no file |\n"}


def test_docs_complete_table(run_tool, write_files):
    result = run_tool("check_docs.py", write_files(TREE | page(*NAMES)))
    assert (result.returncode, result.stdout.strip()) == (0, "")


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        (page(*NAMES[1:]), f"{NAMES[0]}: has no row"),
        (page(*NAMES, "src/os/watch.c"), "src/os/watch.c: the row has no file"),
        (page(*NAMES, NAMES[-1]), f"{NAMES[-1]}: has more than one row"),
        (page(*NAMES, text=""), f"{NAMES[0]}: the row has no sentence"),
        (page(*reversed(NAMES)), f"{NAMES[-1]}: the rows are not sorted"),
    ],
)
def test_docs_wrong_table(run_tool, write_files, table, complaint):
    result = run_tool("check_docs.py", write_files(TREE | table))
    assert result.returncode == 1
    assert result.stdout.startswith(f"docs/architecture.md: {complaint}")
