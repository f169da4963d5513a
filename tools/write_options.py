# SPDX-License-Identifier: Apache-2.0
"""Writes docs/options.md from the table in python/headrace/_options/table.py, or prints it with the argument "-".

tests/python/loader/test_options.py compares the file with the table.
"""

import sys
from pathlib import Path

from headrace._options import TABLE, Option

PAGE = Path(__file__).parent.parent / "docs" / "options.md"
HEAD = """\
# Options

`headrace.torch.DataLoader` and `headrace.Loader` have these options in addition to torch's arguments. Give them as
keywords. They are also attributes of the loader. `headrace.torch.install()` accepts them too, for torch's own loaders.
`num_workers` may be `"auto"`: see [guides/workers.md](guides/workers.md).

This page is made from the table in `python/headrace/_options/table.py` by `tools/write_options.py`.

| option | default | what it does |
|---|---|---|
"""


def describe(row: Option) -> str:
    """Returns the texts of an option in one line."""
    text = row.text
    text = f"{text[0].upper()}{text[1:]}"
    extra = [f"In `{package}`: {more}" for package, more in (("DataLoader", row.torch), ("Loader", row.numpy)) if more]
    return " ".join(" ".join([text, *extra]).split()).replace("|", "\\|")


def page() -> str:
    rows = (f"| `{name}` | `{row.default!r}` | {describe(row)} |\n" for name, row in TABLE.items())
    return HEAD + "".join(rows)


if __name__ == "__main__":
    if sys.argv[1:] == ["-"]:
        sys.stdout.write(page())
    else:
        PAGE.write_text(page())
