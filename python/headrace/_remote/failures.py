# SPDX-License-Identifier: Apache-2.0
"""Errors of the fetcher. Their texts are made from addresses without secrets, ranges and statuses only: the texts of
clients have signatures in them."""

from __future__ import annotations

import errno

from headrace._base.help_key import help_on

# What happened to a connection.
UNKNOWN_HOST = "the name of the host is not known"
SILENT = "the server sent nothing in time"
CUT = "the connection was cut"


class Failed(Exception):
    """A request that would fail again. code: errno."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Passing(Exception):
    """A failure that may pass: a status such as 503, or a connection that was cut. what: in a few words. wait_s: the
    server's wish for the wait before the next try."""

    def __init__(self, what: str, wait_s: float = 0.0) -> None:
        super().__init__(what)
        self.what = what
        self.wait_s = wait_s


def is_absent(shown: str, status: int, why: str = "") -> Failed:
    more = f"{why}; status {status}" if why else f"status {status}"
    return Failed(errno.ENOENT, f"remote: {shown} does not exist ({more})" + help_on("remote-absent"))


def is_refused(shown: str, status: int, credentials: str) -> Failed:
    return Failed(
        errno.EACCES,
        f"remote: the server does not give {shown} (status {status}); the request had {credentials}"
        + help_on("remote-refused"),
    )


def is_untrusted(host: str, why: str) -> Failed:
    text = f"remote: the certificate of {host} is not valid: {why}; SSL_CERT_FILE names a file of certificates to trust"
    return Failed(errno.EACCES, text + help_on("remote-refused"))


def is_not_encrypted(host: str) -> Failed:
    return Failed(errno.EBADMSG, f"remote: {host} does not speak https at this port" + help_on("remote-answer"))


def is_replaced(shown: str, found: str) -> Failed:
    return Failed(
        errno.ESTALE,
        f"remote: {shown} was replaced since it was opened: {found}. Open the source again, and give new data a new "
        "name" + help_on("source-changed"),
    )


def is_unusable(shown: str, why: str) -> Failed:
    return Failed(errno.EBADMSG, f"remote: {shown} cannot be read in parts: {why}" + help_on("remote-answer"))


def gave_up(shown: str, tries: int, seconds: float, last: str) -> Failed:
    return Failed(
        errno.ETIMEDOUT,
        f"remote: {shown} could not be read in {seconds:.0f} s and {tries} tries; the last one: {last}"
        + help_on("remote-slow"),
    )
