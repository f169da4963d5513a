# SPDX-License-Identifier: Apache-2.0
"""Makes files without a name, in memory: for arguments of workers, the fork server's setup, frozen data in pickles."""

from __future__ import annotations

import fcntl
import os
import tempfile
from typing import IO


def create(name: str) -> IO[bytes]:
    """Returns a new file without a name, in memory if the system allows that. Its descriptor is never that of stdin,
    stdout or stderr, which are free if the process was started without them. Raises OSError."""
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
    except (AttributeError, OSError):  # the kernel or a sandbox does not allow it
        return tempfile.TemporaryFile()
    try:
        return open(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3), "w+b")
    finally:
        os.close(fd)
