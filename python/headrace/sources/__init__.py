# SPDX-License-Identifier: Apache-2.0
"""headrace.sources: map-style datasets over the files and tables that you have, read below Python.

`Tokens` reads the token files of nanoGPT, llm.c, NumPy and Megatron. `Arrays` has the rows of arrays and tensors,
`Arrow` those of tables and of Hugging Face's datasets, `Parquet` those of Parquet files, `Lines` and
`Jsonl` those of text files, `Tar` those of tar files. `Objects` has whole files. Files may be
remote: in a bucket, or behind https. See docs/sources.md.
"""

from __future__ import annotations

from headrace.sources._arrays import Arrays
from headrace.sources._arrow import Arrow
from headrace.sources._lines import Jsonl, Lines
from headrace.sources._objects import Objects
from headrace.sources._parquet import Parquet
from headrace.sources._source import Source
from headrace.sources._tar import Tar
from headrace.sources._tokens import Tokens

__all__ = ["Arrays", "Arrow", "Jsonl", "Lines", "Objects", "Parquet", "Source", "Tar", "Tokens"]
