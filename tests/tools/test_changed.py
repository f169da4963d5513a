# SPDX-License-Identifier: Apache-2.0
"""`make test CHANGED=1` finds the tests of a changed file."""

import changed
import pytest
from common import ROOT, list_files

TABLE = changed.read_table("""
### Where is ...?

| question | file | tests |
|---|---|---|
| Who tells? | `_loader/trainer/reports.py`: `tell`; `src/crew/tell.c` | `loader/test_reports.py`; `unit/test_tell.c` |
| Where is a type? | `frozen/types/` | `frozen/test_freeze.py` |

## Build
""")
TEXTS = {
    "tests/python/loader/test_reports.py": "",
    "tests/python/frozen/test_freeze.py": "",
    "tests/python/loader/test_crew.py": "from headrace._loader.trainer import crew, engine\n",
    "tests/python/loader/test_options.py": "import scripts\n",
    "tests/python/loader/test_demo.py": 'DEMO = ROOT / "examples/train.py"\n',
    "tests/python/frameworks/test_resume.py": "",
    "tests/python/lib/scripts.py": "import headrace._options as o\nSERVER = HERE / 'server.py'\n",
    "tests/cli/test_program.py": "",
    "tests/cli/run/test_run_signals.py": "",
}
PROGRAMS = ["tell", "ring", "ring_stop", "string", "run_plan"]


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("src/crew/tell.c", {"test_reports", "test_tell"}),
        ("python/headrace/frozen/types/tables.py", {"test_freeze"}),
        # By its neighbour, and by imports.
        ("python/headrace/_loader/trainer/crew.py", {"test_reports", "test_tell", "test_crew"}),
        ("python/headrace/_options/__init__.py", {"test_options"}),  # by a module that tests share
        ("src/arena/ring.h", {"test_ring", "test_ring_stop"}),
        ("tests/python/loader/test_options.py", {"test_options"}),
        ("python/headrace/frozen/_new.py", {"test_freeze"}),
        ("examples/train.py", {"test_demo"}),  # by its name
        ("tests/python/lib/server.py", {"test_options"}),
        ("tests/python/frozen/frameworks/new.py", {"test_freeze"}),  # not by a name of another folder
        ("tests/cli/run/conftest.py", {"test_run_signals"}),
        ("tests/cli/conftest.py", {"test_program", "test_run_signals"}),
        ("cli/run_values.c", {"test_program", "test_run_signals", "test_run_plan"}),
        ("LICENSE", set()),
    ],
)
def test_tests_of_a_changed_file_are_found(file, tests):
    assert changed.tests_of(file, TABLE, TEXTS, PROGRAMS) == tests


def test_table_names_files_and_tests_that_exist():
    files = [path.relative_to(ROOT).as_posix() for path in list_files(ROOT)]
    stems = {path.rpartition("/")[2].partition(".")[0] for path in files}
    _, *rows = changed.read_table((ROOT / "CONTRIBUTING.md").read_text())  # the first one has the titles
    assert len(rows) > 30
    for names, tests in rows:
        assert [name for name in names if not any(changed.names_file(name, file) for file in files)] == []
        assert tests != [] and {name.rpartition("/")[2].partition(".")[0] for name in tests} <= stems
