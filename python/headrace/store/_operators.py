# SPDX-License-Identifier: Apache-2.0
"""Is an operator one in place?

`items += view` must change the list that `items` is, `items + view` must not, and Python asks a view for both in the
same way (nb_add: a list has no slot of this name itself). What tells them apart is the instruction that runs.
"""

from __future__ import annotations

import opcode
import sys
from typing import Any

_BINARY_OP = opcode.opmap.get("BINARY_OP")  # CPython 3.11 and newer: its argument says which operator
_NAMES: list[Any] = getattr(opcode, "_nb_ops", [])
_ARGUMENTS = {number for number, (name, _) in enumerate(_NAMES) if name.startswith("NB_INPLACE_")}
_INSTRUCTIONS = {number for name, number in opcode.opmap.items() if name.startswith("INPLACE_")}  # 3.10


def is_in_place() -> bool:
    """Does the frame that called (C has none) run an operator such as `+=`? No where a function such as
    `operator.iadd` stands between."""
    frame = sys._getframe(1)
    code, at = frame.f_code.co_code, frame.f_lasti
    return code[at] in _INSTRUCTIONS or (code[at] == _BINARY_OP and code[at + 1] in _ARGUMENTS)
