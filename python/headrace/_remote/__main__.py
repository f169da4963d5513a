# SPDX-License-Identifier: Apache-2.0
"""Runs the fetcher: python -m headrace._remote FOLDER, as the C library does for programs without Python."""

import sys

from headrace._remote.fetcher import main

sys.exit(main(sys.argv[1:]))
