# SPDX-License-Identifier: Apache-2.0
"""Makes the certificate of a server, with openssl."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")


def make_certificate(folder: pathlib.Path, host: str = "localhost") -> tuple[pathlib.Path, pathlib.Path]:
    """Returns the file of a server, with its key, and that of its clients."""
    server, client = folder / "server.pem", folder / "certificate.pem"
    texts = (
        f"subjectAltName=DNS:{host}",
        "basicConstraints=critical,CA:FALSE",
    )  # obstore refuses a CA's as a server's
    names = ["-subj", f"/CN={host}", *(word for text in texts for word in ("-addext", text))]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    subprocess.run([*command, "-keyout", str(server), "-out", str(client)], check=True, capture_output=True)
    server.write_text(server.read_text() + client.read_text())
    return server, client


def make_key() -> str:
    """Returns a private key, as the file of a service account has it."""
    command = ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
