"""The HTTP calls of `huggingface_hub` 1.x and 2.x, answered from the loopback Hub's repos.

One method a route; the table at the end says which request reaches which. Knows nothing of how the server is started.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit

from .loopback_store import URL_PREFIX, Commit, Repo, blob_id


class _Refused(Exception):
    def __init__(self, status: int, code: str, message: str):
        self.status, self.code, self.message = status, code, message


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Requests are kept in `LoopbackHub.requests` instead of on stderr."""

    def _handle(self) -> None:
        self.hub = self.server.hub  # type: ignore[attr-defined]
        url = urlsplit(self.path)
        path = unquote(url.path)
        self.query = parse_qs(url.query)
        with self.hub.lock:
            self.hub.requests.append(f"{self.command} {path}")
        fault = self.hub.take_fault(self.command, path)
        if fault and fault.action == "drop":
            self.rfile.read(min(64, int(self.headers.get("Content-Length") or 0)))
            return self._hang_up()
        self.body = self._read_body()
        if fault and fault.action == "slow":
            time.sleep(fault.seconds)
        if fault and fault.action == "status":
            return self.reply({"error": f"injected {fault.status}"}, fault.status, fault.headers)
        self.silent = fault is not None and fault.action == "lose_reply"
        self.race = fault is not None and fault.action == "race"
        try:
            for methods, pattern, route in ROUTES:
                if self.command in methods and (match := re.fullmatch(pattern, url.path)):
                    with self.hub.lock:
                        route(self, **{k: unquote(v) for k, v in match.groupdict().items() if v is not None})
                    break
            else:
                raise _Refused(404, "", f"no route {self.command} {url.path}")
        except _Refused as refused:
            headers = {"X-Error-Message": refused.message} | ({"X-Error-Code": refused.code} if refused.code else {})
            self.reply({"error": refused.message}, refused.status, headers)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _handle

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().strip() or b"0", 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()

    def reply(self, payload: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        raw = isinstance(payload, bytes)
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        if status < 400 and getattr(self, "silent", False):
            return self._hang_up()
        self.send_response(status)
        self.send_header("Content-Type", "application/octet-stream" if raw else "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        # One write for head and body: two small packets would wait 40 ms for the peer's delayed acknowledgement.
        self._headers_buffer.append(b"\r\n" + (b"" if self.command == "HEAD" else data))  # type: ignore[attr-defined]
        self.flush_headers()

    def account(self, *, required: bool = True) -> bool:
        """Whether the request carries a valid token; refuses an expired one, and none where one is needed."""
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token in self.hub.revoked:
            raise _Refused(401, "", "Invalid credentials in Authorization header")
        if required and not token:
            raise _Refused(401, "", "Invalid username or password.")
        return bool(token)

    def namespace(self, name: str) -> None:
        self.account()
        if name not in (self.hub.user, *self.hub.orgs):
            raise _Refused(403, "", f"You don't have the rights to create or change a repo under the namespace {name}")

    def find(self, kind: str, repo: str, revision: str = "main") -> tuple[Repo, Commit]:
        known = self.account(required=False)
        entry = self.hub.repos.get(URL_PREFIX[kind] + repo)
        if entry is None or (entry.private and not known):
            raise _Refused(404 if known else 401, "RepoNotFound", "Repository not found")
        commit = entry.resolve(revision)
        if commit is None:
            raise _Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return entry, commit

    # --- account and repos

    def whoami(self) -> None:
        self.account()
        access = {"type": "access_token", "accessToken": {"displayName": "loopback", "role": "write"}}
        orgs = [{"name": name} for name in self.hub.orgs]
        self.reply({"type": "user", "name": self.hub.user, "fullname": self.hub.user, "orgs": orgs, "auth": access})

    def make_repo(self) -> None:
        wanted = json.loads(self.body)
        owner = wanted.get("organization") or self.hub.user
        self.namespace(owner)
        kind, repo = wanted.get("type", "model") + "s", f"{owner}/{wanted['name']}"
        key = URL_PREFIX[kind] + repo
        url = f"{self.hub.endpoint}/{key}"
        if key in self.hub.repos:
            return self.reply({"error": "You already created this repo", "url": url}, 409)
        default = "private" if self.hub.private_by_default else "public"
        entry = Repo(repo, kind, private=wanted.get("visibility", default) == "private")
        entry.add_commit("main", "initial commit", {".gitattributes": b"*.safetensors filter=lfs -text\n"})
        self.hub.repos[key] = entry
        self.reply({"url": url, "name": repo, "id": repo})

    def drop_repo(self) -> None:
        wanted = json.loads(self.body)
        owner = wanted.get("organization") or self.hub.user
        self.namespace(owner)
        self.hub.repos.pop(f"{URL_PREFIX[wanted.get('type', 'model') + 's']}{owner}/{wanted['name']}", None)
        self.reply({})

    def settings(self, kind: str, repo: str) -> None:
        self.namespace(repo.split("/")[0])
        entry, _ = self.find(kind, repo)
        entry.private = json.loads(self.body).get("visibility") == "private"
        self.reply({"private": entry.private})

    def validate_yaml(self) -> None:
        self.reply({"errors": [], "warnings": []})

    # --- writing

    def preupload(self, kind: str, repo: str, rev: str) -> None:
        self.account()
        _, commit = self.find(kind, repo, rev)
        answers = []
        for wanted in json.loads(self.body)["files"]:
            path, data = wanted["path"], commit.files.get(wanted["path"])
            mode = "lfs" if path.endswith(self.hub.lfs_suffixes or ("\0",)) else "regular"
            oid = None if data is None else hashlib.sha256(data).hexdigest() if mode == "lfs" else blob_id(data)
            answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self.reply({"files": answers})

    def lfs_batch(self, repo: str, kind: str = "models") -> None:
        self.account()
        objects = []
        for wanted in json.loads(self.body)["objects"]:
            answer = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.hub.blobs:
                answer["actions"] = {"upload": {"href": f"{self.hub.endpoint}/lfs/{wanted['oid']}"}}
            objects.append(answer)
        self.reply({"transfer": "basic", "objects": objects})

    def lfs_put(self, oid: str) -> None:
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise _Refused(400, "", "the bytes sent do not have the announced sha256")
        self.hub.blobs[oid] = self.body
        self.reply({})

    def commit(self, kind: str, repo: str, rev: str) -> None:
        self.namespace(repo.split("/")[0])
        entry, parent = self.find(kind, repo, rev)
        if self.race:
            other = dict(parent.files) | {f"race-{len(entry.commits)}.txt": b"somebody else was here\n"}
            parent = entry.add_commit(rev, "commit of another author", other, parent.lfs)
        files, lfs, title = dict(parent.files), set(parent.lfs), ""
        for item in map(json.loads, self.body.splitlines()):
            key, value = item["key"], item["value"]
            if key == "header":
                title = value["summary"]
                if value.get("parentCommit") not in (None, parent.oid):
                    raise _Refused(412, "", "A commit has happened since. Please refresh and try again.")
            elif key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
                lfs.discard(value["path"])
            elif key == "lfsFile":
                if value["oid"] not in self.hub.blobs:
                    raise _Refused(400, "", f"LFS object {value['oid']} was never uploaded")
                files[value["path"]] = self.hub.blobs[value["oid"]]
                lfs.add(value["path"])
            elif key == "deletedFile":
                files.pop(value["path"], None)
            elif key == "deletedFolder":
                folder = value["path"].rstrip("/") + "/"
                files = {path: data for path, data in files.items() if not path.startswith(folder)}
        url = f"{self.hub.endpoint}/{URL_PREFIX[kind]}{repo}"
        pull_request = None
        if self.query.get("create_pr") == ["1"]:
            number = 1 + sum(ref.startswith("refs/pr/") for ref in entry.refs)
            rev, pull_request = f"refs/pr/{number}", f"{url}/discussions/{number}"
            entry.refs[rev] = parent.oid
        made = entry.add_commit(rev, title, files, frozenset(lfs & files.keys()))
        commit_url = f"{url}/commit/{made.oid}"
        self.reply({"success": True, "commitOid": made.oid, "commitUrl": commit_url, "pullRequestUrl": pull_request})

    def create_ref(self, kind: str, repo: str, rev: str) -> None:
        self.namespace(repo.split("/")[0])
        entry, _ = self.find(kind, repo)
        if rev in entry.refs:
            raise _Refused(409, "", f"Reference already exists: {rev}")
        start = entry.resolve(json.loads(self.body or b"{}").get("startingPoint") or "main")
        if start is None:
            raise _Refused(404, "RevisionNotFound", "startingPoint does not exist")
        entry.refs[rev] = start.oid
        self.reply({})

    # --- reading

    def info(self, kind: str, repo: str, rev: str = "main") -> None:
        entry, commit = self.find(kind, repo, rev)
        siblings = [{"rfilename": path} for path in sorted(commit.files)]
        head = {"_id": "0", "id": repo, "modelId": repo, "sha": commit.oid, "private": entry.private, "tags": []}
        self.reply(head | {"downloads": 0, "likes": 0, "gated": False, "disabled": False, "siblings": siblings})

    def list_refs(self, kind: str, repo: str) -> None:
        entry, _ = self.find(kind, repo)
        names = {ref: oid for ref, oid in entry.refs.items() if not ref.startswith("refs/")}
        pulls = [{"name": r, "ref": r, "targetCommit": o} for r, o in entry.refs.items() if r.startswith("refs/pr/")]
        branches = [{"name": name, "ref": f"refs/heads/{name}", "targetCommit": oid} for name, oid in names.items()]
        self.reply({"branches": branches, "tags": [], "converts": [], "pullRequests": pulls})

    def _row(self, commit: Commit, path: str) -> dict[str, object]:
        data = commit.files[path]
        row: dict[str, object] = {"type": "file", "path": path, "size": len(data), "oid": blob_id(data)}
        if path in commit.lfs:
            row["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
        return row

    def tree(self, kind: str, repo: str, rev: str, path: str = "") -> None:
        _, commit = self.find(kind, repo, rev)
        prefix = f"{path.strip('/')}/" if path else ""
        inside = sorted(name for name in commit.files if name.startswith(prefix))
        if prefix and not inside:
            raise _Refused(404, "EntryNotFound", f"{path} does not exist")
        if self.query.get("recursive", ["false"])[0].lower() in ("true", "1"):
            return self.reply([self._row(commit, name) for name in inside])
        heads = sorted({name[len(prefix) :].split("/")[0] for name in inside})
        rows = [
            self._row(commit, prefix + head)
            if prefix + head in commit.files
            else {"type": "directory", "path": prefix + head, "oid": blob_id(head.encode()), "size": 0}
            for head in heads
        ]
        self.reply(rows)

    def paths_info(self, kind: str, repo: str, rev: str) -> None:
        _, commit = self.find(kind, repo, rev)
        text = self.body.decode()
        wanted = json.loads(text)["paths"] if text.startswith("{") else parse_qs(text).get("paths", [])
        self.reply([self._row(commit, path) for path in wanted if path in commit.files])

    def resolve(self, repo: str, rev: str, path: str, kind: str = "models") -> None:
        _, commit = self.find(kind, repo, rev)
        data = commit.files.get(path)
        if data is None:
            raise _Refused(404, "EntryNotFound", f"{path} does not exist")
        name = hashlib.sha256(data).hexdigest() if path in commit.lfs else blob_id(data)
        headers = {"X-Repo-Commit": commit.oid, "ETag": f'"{name}"', "Accept-Ranges": "bytes"}
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if span is None:
            return self.reply(data, 200, headers)
        first, last = int(span[1]), min(int(span[2] or len(data) - 1), len(data) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        self.reply(data[first : last + 1], 206, headers)


_KIND = r"(?P<kind>models|datasets|spaces|kernels)"
_WEB = r"(?:(?P<kind>datasets|spaces|kernels)/)?(?P<repo>[\w.-]+/[\w.-]+)"
_API = rf"/api/{_KIND}/(?P<repo>[\w.-]+/[\w.-]+)"
_REV = r"(?P<rev>[^/]+)"
ROUTES: list[tuple[tuple[str, ...], str, Callable[..., None]]] = [
    (("GET",), "/api/whoami-v2", Handler.whoami),
    (("POST",), "/api/repos/create", Handler.make_repo),
    (("DELETE",), "/api/repos/delete", Handler.drop_repo),
    (("POST",), "/api/validate-yaml", Handler.validate_yaml),
    (("PUT",), rf"{_API}/settings", Handler.settings),
    (("POST",), rf"{_API}/preupload/{_REV}", Handler.preupload),
    (("POST",), rf"{_API}/commit/{_REV}", Handler.commit),
    (("POST",), rf"{_API}/(?:branch|tag)/{_REV}", Handler.create_ref),
    (("GET",), rf"{_API}/refs", Handler.list_refs),
    (("GET",), rf"{_API}/tree/{_REV}(?:/(?P<path>.+))?", Handler.tree),
    (("POST",), rf"{_API}/paths-info/{_REV}", Handler.paths_info),
    (("GET",), rf"{_API}/revision/{_REV}", Handler.info),
    (("GET",), _API, Handler.info),
    (("POST",), rf"/{_WEB}\.git/info/lfs/objects/batch", Handler.lfs_batch),
    (("PUT",), r"/lfs/(?P<oid>[0-9a-f]{64})", Handler.lfs_put),
    (("GET", "HEAD"), rf"/{_WEB}/resolve/{_REV}/(?P<path>.+)", Handler.resolve),
]
