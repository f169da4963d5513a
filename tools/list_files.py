# SPDX-License-Identifier: Apache-2.0
"""Prints the files of the product, each with the first sentence of its opening comment (`make files`).

`list_files.py WORD...` prints only lines that contain all of the words, in capitals or not.
"""

import sys

from common import ROOT
from opening import list_opened, read_opening


def main(words: list[str]) -> None:
    for path in list_opened(ROOT):
        line = f"{path.relative_to(ROOT).as_posix()}: {read_opening(path)}"
        if all(word.lower() in line.lower() for word in words):
            print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
