# SPDX-License-Identifier: Apache-2.0
"""Each test of remote objects has a folder of its own, whose fetcher ends soon after its last reader."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import pytest
from headrace import _core
from remote_runs import end_fetchers

ACCOUNTS = ("AWS_", "AZURE_", "GOOGLE_", "GCE_", "CLOUDSDK_", "HF_", "HUGGING_FACE_")  # of variables for accounts

NO_SERVICE = "127.0.0.1:9"


@pytest.fixture(autouse=True)
def remote_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    folder = tmp_path / "remote"
    monkeypatch.setenv("HEADRACE_REMOTE", str(folder))
    monkeypatch.setenv("HEADRACE_REMOTE_IDLE_MS", "300")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    for name in list(os.environ):
        if name.startswith(ACCOUNTS) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name in ("HF_HOME", "HOME"):  # without a token and keys
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("GCE_METADATA_HOST", NO_SERVICE)
    monkeypatch.setenv("AZURE_MSI_ENDPOINT", f"http://{NO_SERVICE}")
    _core.remote_close()
    yield folder / "v1" / "remote"
    _core.remote_close()
    end_fetchers(folder)
