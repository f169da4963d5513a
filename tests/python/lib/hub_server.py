# SPDX-License-Identifier: Apache-2.0
"""A server that answers as the Hugging Face hub does: revisions, trees in pages, and redirects to signed URLs of
another host, which expire.

    with HubServer() as hub:
        commit = hub.commit("datasets/owner/name", {"data/a.jsonl": data})
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        sources.Jsonl("hf://datasets/owner/name/data/*.jsonl")

Large files are on "another host", which is this server under the name localhost: it refuses requests that have a token.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from remote_server import RemoteServer, _Handler

LARGE = 1000  # bytes of a file that is not in git itself
PAGE = 3  # files in a page of a tree


def git_oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class _HubHandler(_Handler):
    def do_GET(self) -> None:
        owner: Any = self.server.owner
        words = [unquote(word) for word in urlsplit(self.path).path.strip("/").split("/")]
        if words[0] == "signed":
            self._get_signed(owner, words[1])
            return
        owner.note(self)
        if self._is_refused(owner):
            return
        if words[0] == "api" and len(words) > 5:
            self._get_api(owner, "/".join(words[1:4]), words[4], words[5], "/".join(words[6:]))
        elif "resolve" in words:
            place = words.index("resolve")
            repo = "/".join(words[:place])
            repo = repo if place == 3 else f"models/{repo}"
            self._get_file(owner, repo, words[place + 1], "/".join(words[place + 2 :]))
        else:
            self._answer(404, b"")

    def _is_refused(self, owner: Any) -> bool:
        given = self.headers.get("Authorization", "")
        if owner.gate and given != f"Bearer {owner.token}":
            self._answer(401 if not given else 403, b"no", {"X-Error-Code": owner.gate})
            return True
        if owner.faults.draw(is_opening=False) == "503":
            self._answer(503, b"later", {"Retry-After": "0"})
            return True
        return False

    def _get_api(self, owner: Any, repo: str, what: str, revision: str, folder: str) -> None:
        commit = owner.find_commit(repo, revision)
        if commit is None:
            known = any(name == repo for name, _ in owner.commits)
            self._answer(404, b"", {"X-Error-Code": "RevisionNotFound" if known else "RepoNotFound"})
        elif what == "revision":
            self._send_json({"sha": commit, "id": repo})
        else:
            self._get_tree(owner, repo, commit, folder)

    def _get_tree(self, owner: Any, repo: str, commit: str, folder: str) -> None:
        owner.pages += 1
        query = parse_qs(urlsplit(self.path).query)
        files = owner.commits[repo, commit]
        inside = [path for path in sorted(files) if path.startswith(f"{folder}/" if folder else "")]
        if not inside:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        if "recursive" not in query:
            depth = len(folder) + 1 if folder else 0
            inside = [path for path in inside if "/" not in path[depth:]]
        first = int(query.get("cursor", ["0"])[0])
        entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": f"{folder}/sub"}] if first == 0 else []
        entries += [_entry_of(path, files[path]) for path in inside[first : first + PAGE]]
        link = {}
        if first + PAGE < len(inside):
            own = {name: values[0] for name, values in query.items() if name != "cursor"}
            words = "&".join(f"{name}={value}" for name, value in {**own, "cursor": first + PAGE}.items())
            link["Link"] = f'<{owner.link_host}{urlsplit(self.path).path}?{words}>; rel="next"'
        self._send_json(entries, link)

    def _get_file(self, owner: Any, repo: str, revision: str, path: str) -> None:
        commit = owner.find_commit(repo, revision)
        data = owner.commits.get((repo, commit), {}).get(path)
        if data is None:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        owner.resolved += 1
        headers = {"X-Repo-Commit": commit}
        if len(data) < LARGE:
            self._send_data(owner, data, git_oid(data), headers)
            return
        digest = "0" * 64 if owner.lies else sha256(data)
        owner.signed[sha256(data)] = data
        headers |= {"X-Linked-ETag": f'"{digest}"', "X-Linked-Size": str(len(data))}
        url = f"http://localhost:{owner.port}/signed/{sha256(data)}?X-Amz-Signature={owner.signature}"
        self._answer(302, b"Found", {**headers, "Location": url})

    def _get_signed(self, owner: Any, digest: str) -> None:
        owner.parts += 1
        given = parse_qs(urlsplit(self.path).query).get("X-Amz-Signature")
        if self.headers.get("Authorization") or not self.headers["Host"].startswith("localhost:"):
            owner.leaks += 1
        if given != [owner.signature] or owner.refuses_signed:
            self._answer(403, b"<Code>AccessDenied</Code>")
            return
        self._send_data(owner, owner.signed[digest], "of-another-host", {})

    def _send_data(self, owner: Any, data: bytes, etag: str, headers: dict[str, str]) -> None:
        first, last = self._range_of(len(data))
        headers = {**headers, "ETag": f'"{etag}"', "Content-Range": f"bytes {first}-{last}/{len(data)}"}
        self._answer(206, data[first : last + 1], headers)

    def _send_json(self, value: Any, headers: dict[str, str] | None = None) -> None:
        self._answer(200, json.dumps(value).encode(), headers)


def _entry_of(path: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "oid": git_oid(data), "size": len(data), "path": path}
    if len(data) >= LARGE:
        entry["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 130}
    return entry


class HubServer(RemoteServer):
    """commits: the files of each commit of a repository. gate: an error code with which requests without the token are
    refused. signature: of signed URLs; those of an earlier one have expired. lies: redirects name other contents."""

    handler = _HubHandler

    def __init__(self) -> None:
        self.commits: dict[tuple[str, str], dict[str, bytes]] = {}
        self.branches: dict[tuple[str, str], str] = {}
        self.signed: dict[str, bytes] = {}
        self.gate, self.token, self.signature = "", "", "one"
        self.link_host = "https://huggingface.invalid"  # the pages are asked for at the endpoint all the same
        self.lies = self.refuses_signed = False
        self.pages = self.resolved = self.parts = self.leaks = 0
        super().__init__({})

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def commit(self, repo: str, files: dict[str, bytes], branch: str = "main") -> str:
        """Adds a commit to a branch. repo: with its kind."""
        commit = hashlib.sha1(repr((repo, sorted(files.items()), len(self.commits))).encode()).hexdigest()
        self.commits[repo, commit] = dict(files)
        self.branches[repo, branch] = commit
        return commit

    def find_commit(self, repo: str, revision: str) -> str | None:
        return revision if (repo, revision) in self.commits else self.branches.get((repo, revision))
