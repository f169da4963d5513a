# SPDX-License-Identifier: Apache-2.0
"""headrace.sources: map-style datasets over the files that you have, read below Python.

`Tokens` reads the token files of nanoGPT, llm.c, NumPy and Megatron. See docs/sources.md.
"""

from __future__ import annotations

from headrace.sources._source import Source
from headrace.sources._tokens import Tokens

__all__ = ["Source", "Tokens"]
