# SPDX-License-Identifier: Apache-2.0
"""A server that gives keys and tokens as the services of clouds do to their instances, containers and pods."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Any

from remote_server import RemoteServer, _Handler


class _IdentityHandler(_Handler):
    def do_PUT(self) -> None:
        self._answer(200 if self.path == "/latest/api/token" else 404, b"session")

    def do_POST(self) -> None:
        """Answers as AWS's STS does, whose request is a query, and Azure's login, whose request is a form."""
        owner: Any = self.server.owner
        owner.note(self)
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if owner.status != 200:
            self._answer(owner.status, b"{}")
        elif "AssumeRoleWithWebIdentity" in self.path:
            keys = owner.next_answer("sts")
            names = {"AccessKeyId": "AccessKeyId", "SecretAccessKey": "SecretAccessKey", "Token": "SessionToken"}
            names["Expiration"] = "Expiration"
            found = "".join(f"<{names[key]}>{value}</{names[key]}>" for key, value in keys.items())
            result = f"<AssumeRoleWithWebIdentityResult><Credentials>{found}</Credentials>"
            body = f"{result}</AssumeRoleWithWebIdentityResult>"
            answer = f"<AssumeRoleWithWebIdentityResponse>{body}</AssumeRoleWithWebIdentityResponse>"
            self._answer(200, answer.encode())
        else:
            found = owner.next_answer("oauth2")
            self._answer(200, json.dumps({**found, "expires_in": int(found["expires_in"])}).encode())

    def do_GET(self) -> None:
        owner: Any = self.server.owner
        path = self.path.partition("?")[0]
        owner.note(self)
        needed = {
            "/latest/meta-data/iam/security-credentials/": ("X-aws-ec2-metadata-token", "session"),
            "/latest/meta-data/iam/security-credentials/a-role": ("X-aws-ec2-metadata-token", "session"),
            "/container": ("Authorization", owner.token),
            "/computeMetadata/v1/instance/service-accounts/default/token": ("Metadata-Flavor", "Google"),
            "/metadata/identity/oauth2/token": ("Metadata", "true"),
        }.get(path)
        if owner.status != 200 or needed is None or self.headers.get(needed[0]) != needed[1]:
            self._answer(owner.status if owner.status != 200 else 404, b"{}")
        elif path.endswith("security-credentials/"):
            self._answer(200, b"a-role")
        else:
            self._answer(200, json.dumps(owner.next_answer(path)).encode())


class IdentityServer(RemoteServer):
    """names: keys or tokens that it gives, one after the other; the last one again and again."""

    handler = _IdentityHandler

    def __init__(self, *names: str, certificate: str = "") -> None:
        self.names = list(names)
        self.lifetime_s = 3600.0
        self.status = 200
        self.token = "word-of-the-pod"
        self.asked: Counter[str] = Counter()
        super().__init__({}, certificate)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def next_answer(self, path: str) -> dict[str, Any]:
        name = self.names[min(sum(self.asked.values()), len(self.names) - 1)]
        self.asked[path] += 1
        if "oauth2" in path or "computeMetadata" in path:
            return {"access_token": name, "expires_in": str(int(self.lifetime_s)), "token_type": "Bearer"}
        ends = datetime.now(timezone.utc) + timedelta(seconds=self.lifetime_s)
        ends_text = ends.strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"AccessKeyId": name, "SecretAccessKey": "sEcReT9", "Token": "tOkEn9", "Expiration": ends_text}
