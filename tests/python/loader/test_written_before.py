# SPDX-License-Identifier: Apache-2.0
"""States and files of frozen data that an earlier version has written are read as they were meant."""

from __future__ import annotations

import base64
import collections
import datetime
import pathlib
import zlib

import headrace
import numpy as np
import torch
from headrace.torch import DataLoader

# Of torch.manual_seed(0); DataLoader(range(20), 3, shuffle=True), after 3 batches.
TORCH_STATE = (
    '{"algorithm":1,"by":0,"epoch":0,"format":1,"holes":[],"is_end":false,"last":370159907,"order":{"kind":"Ra'
    'ndomSampler","n":20,"num_samples":-1,"replacement":false},"rank":-1,"samples":9,"seeds":{"base":900450186'
    '894289455,"past":[1526501399],"seed":3969543146641149120},"segments":[{"batch":3,"drop_last":false,"steps'
    '":3,"tail":"pad","world":1}],"steps":3,"workers":[],"checksum":2635800309}'
)
TORCH_REST = [[8, 5, 12], [18, 3, 19], [10, 14, 4], [7, 0]]

# Of headrace.Loader(np.arange(20), 3, shuffle=True, seed=5), after 2 batches.
NUMPY_STATE = (
    '{"algorithm":1,"by":0,"epoch":0,"format":1,"holes":[],"is_end":false,"last":1074421229,"order":{"epoch":0'
    ',"kind":"shuffle=True","n":20,"seed":5},"rank":-1,"samples":6,"seeds":{"loader":5},"segments":[{"batch":3'
    ',"drop_last":false,"steps":2,"tail":"pad","world":1}],"steps":2,"workers":[],"checksum":2838048703}'
)
NUMPY_REST = [[19, 13, 11], [2, 4, 17], [10, 12, 6], [15, 0, 5], [14, 8]]

# The bytes of a file that headrace.freeze(FROZEN_VALUE, path) has made, compressed.
FROZEN_FILE = (
    "eNrzCAoO8Q9y5WJmAAJGBoYMFgYwCIDSBgwMCiBatMarfmel+TyYOBOEYkiA8hkZYEAATKbUf8vhuPrrfmDQ8bYHu0TfW7OF2s94YKoRY"
    "7H95sE/GdsZBhjEW7E+t/D32sMJ5TOysDSBaDMGBm0obQilzaG0LZT2gtIBUDoGSmdB6SJweOUl5qYWAwOPmUEXzE/UyypIB9JJEJqLFR"
    "S0DAyH9+QdXg+kWZgh7tBgYTAG0SzQAGUHkywOsPCFKmMQKc9IzQPSpgwMlmB+SmJJKpDWZGawBvFfsUPiBBZPoolFRYmVDAwmDAz2IL6"
    "wTaYRLN6YkNQ5QBk8DKjxzIwzJBmBapgZWBhYwTzh4tQSEA0MPB9k/TD3w/zFApUQzS9KSS0C+yMExPcHcVNTXDKTwcYwcHMzBIHDhYkh"
    "DNkcYCBFw/iMSOKCiaj2iBelJgOtKFZlYEhC9i9cfQWUrkT1J9y9MHUGqOYKGqL6Q9AIGi8FiSUZkHjJAfMDIHyg+/PA/uFlKACHU4U+2"
    "MaA0qLUgPzizAqoOrGS1Lzi/CJQPIEDQDwtJz+xxNiIGeoWeD5jQY0nZopyQwMoTTggiwATkZs+AwMfUq5W8mRgaAexZYBymsB0F8jAcA"
    "HEF4PmES4Ghi8HoOHxAUrHzbJneBVq9QMAHVdh6Q=="
)
FROZEN_VALUE = {
    "names": ["a.jpg", "b.jpg", "\u00fcn\u00ef"],
    3: (1, 2.5, None, True),
    "when": datetime.date(2026, 1, 2),
    "set": {1, 2},
    "order": collections.OrderedDict(a=1),
    "records": [{"x": i, "y": str(i)} for i in range(3)],
    "path": pathlib.PurePosixPath("x/y"),
}


def test_state_of_torchs_loader_is_continued() -> None:
    loader = DataLoader(list(range(20)), 3, shuffle=True)  # type: ignore[arg-type]
    loader.load_state_dict({"headrace": TORCH_STATE})
    assert [batch.tolist() for batch in loader] == TORCH_REST


def test_state_of_headraces_loader_is_continued() -> None:
    loader = headrace.Loader(np.arange(20), 3, shuffle=True, seed=5)
    loader.load_state_dict({"headrace": NUMPY_STATE})
    assert [batch.tolist() for batch in loader] == NUMPY_REST


def test_frozen_file_is_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "data.frozen"
    path.write_bytes(zlib.decompress(base64.b64decode(FROZEN_FILE)))
    found = headrace.thaw(headrace.open(path))
    assert np.array_equal(found.pop("array"), np.arange(6, dtype=np.int16).reshape(2, 3))
    assert torch.equal(found.pop("tensor"), torch.arange(3.0))
    assert found == FROZEN_VALUE
