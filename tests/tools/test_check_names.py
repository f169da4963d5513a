# SPDX-License-Identifier: Apache-2.0
"""The check of names finds private names of torch outside of the table and of the room with the functions."""

import pytest

TREE = {
    "headrace/_tensors/torch_names.py": (
        "from typing import NamedTuple\n"
        "class Name(NamedTuple):\n    path: str\n"
        'NAMES = (Name("torch.utils.data.dataloader.DataLoader._index_sampler"), Name("torch.x.Base._timeout"),)\n'
    ),
    "headrace/torch/_own/loaders.py": (
        "import torch\nBase = torch.x.Base\ndef index_sampler(loader):\n    return loader._index_sampler\n"
    ),
    "headrace/torch/_loader/workers.py": (
        "from headrace.torch._own import classes\n"
        "class Iterator(classes.Base):\n"
        "    def __init__(self):\n        self._own = self._timeout\n        self._own\n"
    ),
    "headrace/torch/_other.py": "import torch\n\ndef look(value):\n    return value._own, torch.__version__\n",
}
OTHER, FUNCTIONS, DERIVED = (
    "headrace/torch/_other.py",
    "headrace/torch/_own/loaders.py",
    "headrace/torch/_loader/workers.py",
)

BAD = [
    (OTHER, "from torch._utils import ExceptionWrapper\n", "torch._utils.ExceptionWrapper is private"),
    (OTHER, "from torch.utils.data import _utils\n", "torch.utils.data._utils is private"),
    (OTHER, "import torch\ntorch._C._hidden()\n", "torch._C._hidden is private"),
    (OTHER, "from torch.utils import data\ndata._utils.worker\n", "torch.utils.data._utils is private"),
    (OTHER, "def look(loader):\n    return loader._index_sampler\n", "_index_sampler is private"),
    (OTHER, 'def look(loader):\n    return getattr(loader, "_index_sampler", None)\n', "_index_sampler is private"),
    (OTHER, 'def look(loader):\n    return lookup.attribute(loader, "_timeout")\n', "_timeout is private"),
    (FUNCTIONS, "def look(loader):\n    return loader._unknown\n", "_unknown is not in the table"),
    (FUNCTIONS, "import torch\ntorch._C._hidden()\n", "torch._C._hidden is private"),
    (
        DERIVED,
        "from headrace.torch._own import classes\nclass Iterator(classes.Base):\n"
        "    def wait(self):\n        return self._pin_memory\n",
        "self._pin_memory is torch's",
    ),
]


def test_names_of_the_table_in_their_room_pass(run_tool, write_files):
    result = run_tool("check_names.py", write_files(TREE))
    assert (result.returncode, result.stdout.strip()) == (0, "")


@pytest.mark.parametrize(("name", "text", "complaint"), BAD)
def test_private_name_of_torch_is_named_with_its_line(run_tool, write_files, name, text, complaint):
    result = run_tool("check_names.py", write_files(TREE | {name: text}))
    assert result.returncode == 1
    assert f"{name}:" in result.stdout
    assert complaint in result.stdout
