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

TREE |= {
    "headrace/torch/__init__.py": "from headrace.torch._loader import load\n",
    "headrace/torch/_own/__init__.py": "",
    "headrace/torch/_own/names.py": '"""Names."""\nTRUSTED = ("headrace.torch._loader.", "headrace.engine.")\n',
    "headrace/torch/_loader/__init__.py": "",
    "headrace/torch/_loader/load.py": 'from headrace.torch._own import names\nWHO = "headrace.torch.DataLoader"\n',
    "headrace/sources/__init__.py": "",
    "headrace/sources/deep/__init__.py": "",
    "headrace/sources/deep/rows.py": "from headrace import engine\n",
    "headrace/sources/words.py": "",
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


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        # headrace.sources.deep -> headrace.engine -> headrace.sources: a circle of rooms, but not of packages
        ("headrace/engine/report.py", "from headrace.sources import words\n", "headrace.sources needs headrace.engine"),
        ("headrace/torch/_own/names.py", "from headrace.torch._loader import load\n", "needs headrace.torch._loader"),
        (
            "headrace/torch/_own/new.py",
            'TRUSTED = ("headrace._loader.samples.",)\n',
            "no module has a name that begins",
        ),
    ],
)
def test_circle_of_rooms_and_unknown_beginning_are_named(run_tool, write_files, name, text, complaint):
    result = run_tool("check_imports.py", write_files(TREE | {name: text}))
    assert result.returncode == 1
    assert complaint in result.stdout


def test_room_of_torch_that_imports_a_later_one_is_named(run_tool, write_files):
    change = {
        "headrace/torch/_loader/load.py": "",
        "headrace/torch/_own/names.py": "from headrace.torch import _loader\n",
    }
    result = run_tool("check_imports.py", write_files(TREE | change))
    assert result.returncode == 1
    assert "headrace.torch._loader comes after headrace.torch._own" in result.stdout
