# SPDX-License-Identifier: Apache-2.0
"""The check of imports finds a circle between packages, however it is tied."""

import pytest

TREE = {
    "headrace/__init__.py": '_LATE = {"Loader": "headrace.loader.load"}\n',
    "headrace/_core.pyi": "",
    "headrace/_options.py": "from headrace import _core\n",
    "headrace/engine/__init__.py": "",
    "headrace/engine/crew.py": "from headrace import _core, _options\nfrom headrace.engine import report\n",
    "headrace/engine/report.py": '"""It words what headrace.loader sees."""\n',
    "headrace/loader/__init__.py": "",
    "headrace/loader/load.py": "def start():\n    from headrace.engine import crew\n",
}

BAD = [
    ("headrace/engine/report.py", "import headrace.loader.load\n"),
    ("headrace/engine/report.py", "def word():\n    from headrace.loader import load\n"),
    ("headrace/engine/report.py", 'def word():\n    return import_module("headrace.loader.load")\n'),
    ("headrace/engine/report.py", 'TABLE = {"load": "headrace.loader"}\n'),
    ("headrace/_options.py", "import headrace.engine.report\n"),
]


def test_packages_without_a_circle_pass(run_tool, write_files):
    result = run_tool("check_imports.py", write_files(TREE))
    assert (result.returncode, result.stdout.strip()) == (0, "")


@pytest.mark.parametrize(("name", "text"), BAD)
def test_circle_is_named_at_each_of_its_imports(run_tool, write_files, name, text):
    result = run_tool("check_imports.py", write_files(TREE | {name: text}))
    assert result.returncode == 1
    assert f"{name}:" in result.stdout
    assert "which needs" in result.stdout
