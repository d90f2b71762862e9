"""A hub on loopback: what the HuggingFace library asks of one when it pushes and when it loads, without Xet.

It follows what the library of version 2.4 sends and reads. Large objects go to an address with a signature, as to a
store beside the hub, which gets no token.
"""

import hashlib
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from flask import Flask, Response, jsonify, request, send_file
from werkzeug.serving import WSGIRequestHandler, make_server

from support.hub.contents import Blob, HubRepository, Refusal
from support.hub.faults import Fault, Faulty

SIGNATURE = "c2lnbmVk"
"""A part of the addresses to which large objects go, and that nobody else may read."""


@dataclass
class Hub:
    """A hub and what it was asked."""

    token: str
    """The one that it accepts."""
    user: str = "lab"
    repositories: dict[str, HubRepository] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)
    """SHA-256 of each large object that arrived whole, in order."""
    url: str = ""
    faulty: Faulty = field(init=False)
    _active: int = 0
    _idle: threading.Condition = field(default_factory=threading.Condition)

    def begin(self, fault: Fault | None = None) -> None:
        """Count requests and large objects from 0, with this fault or none, once all that came before have ended."""
        with self._idle:
            assert self._idle.wait_for(lambda: self._active == 0, 20)
        self.sent.clear()
        self.faulty.begin(fault)

    def count(self, change: int) -> None:
        """A connection has begun or ended."""
        with self._idle:
            self._active += change
            self._idle.notify_all()

    def repository(self, name: str, *, writes: bool = False) -> HubRepository:
        """One that the client may see, and write to."""
        known = request.headers.get("Authorization") == f"Bearer {self.token}"
        if "Authorization" in request.headers and not known:
            raise Refusal(401, "Invalid credentials in Authorization header")
        if writes and not known:
            raise Refusal(401, "Invalid username or password.")
        found = self.repositories.get(name)
        if found is None or (found.private and not known):
            raise Refusal(404, "Repository not found", "RepoNotFound")
        return found


def application(hub: Hub) -> Flask:
    """The hub's requests, each named by its function."""
    app = Flask("hub", static_folder=None)

    @app.errorhandler(Refusal)
    def refused(error: Refusal) -> Response:
        answer = jsonify({"error": str(error)})
        answer.status_code = error.status
        answer.headers["X-Error-Message"] = str(error)
        if error.code:
            answer.headers["X-Error-Code"] = error.code
        return answer

    @app.post("/api/repos/create")
    def create() -> dict[str, Any]:
        asked = request.get_json()
        if request.headers.get("Authorization") != f"Bearer {hub.token}":
            raise Refusal(401, "Invalid username or password.")
        name = f"{asked.get('organization') or hub.user}/{asked['name']}"
        if name in hub.repositories:
            raise Refusal(409, "You already created this model repo")
        hub.repositories[name] = HubRepository(name, asked.get("visibility") == "private")
        return {"url": f"{hub.url}/{name}", "name": name}

    @app.get("/api/models/<owner>/<name>")
    @app.get("/api/models/<owner>/<name>/revision/<revision>")
    def info(owner: str, name: str, revision: str = "main") -> dict[str, Any]:
        repository = hub.repository(f"{owner}/{name}")
        return repository.described(repository.at(unquote(revision)), blobs="blobs" in request.args)

    @app.get("/api/models/<owner>/<name>/tree/<revision>")
    def tree(owner: str, name: str, revision: str) -> Response:
        files = hub.repository(f"{owner}/{name}").at(unquote(revision)).files
        return jsonify(_tree(files, recursive=request.args.get("recursive", "").lower() in ("1", "true")))

    @app.post("/api/validate-yaml")
    def validate_yaml() -> tuple[dict[str, Any], int]:
        content = request.get_json()["content"]
        if content.startswith("---") and "\n---" not in content[3:]:
            return {"errors": [{"message": "the metadata have no end"}], "warnings": []}, 400
        return {"errors": [], "warnings": []}, 200

    @app.post("/api/models/<owner>/<name>/preupload/<revision>")
    def preupload(owner: str, name: str, revision: str) -> dict[str, Any]:
        asked = request.get_json()
        repository = hub.repository(f"{owner}/{name}", writes=True)
        repository.at(unquote(revision))
        return {"files": repository.preupload(asked["files"], asked.get("gitIgnore"))}

    @app.post("/<owner>/<name>.git/info/lfs/objects/batch")
    def batch(owner: str, name: str) -> dict[str, Any]:
        repository = hub.repository(f"{owner}/{name}", writes=True)
        objects = []
        for each in request.get_json(force=True)["objects"]:
            said: dict[str, Any] = {"oid": each["oid"], "size": each["size"]}
            if each["oid"] not in repository.objects:
                upload = f"{hub.url}/store/{owner}/{name}/{each['oid']}?X-Amz-Signature={SIGNATURE}"
                verify = f"{hub.url}/{owner}/{name}.git/info/lfs/objects/verify"
                said |= {"actions": {"upload": {"href": upload}, "verify": {"href": verify}}}
            objects.append(said)
        return {"transfer": "basic", "objects": objects}

    @app.put("/store/<owner>/<name>/<oid>")
    def put(owner: str, name: str, oid: str) -> Response:
        if request.args.get("X-Amz-Signature") != SIGNATURE or "Authorization" in request.headers:
            raise Refusal(403, "signature")
        content = request.get_data()
        if hashlib.sha256(content).hexdigest() != oid:
            raise Refusal(400, "the content is not what its name says")
        hub.repositories[f"{owner}/{name}"].objects[oid] = content
        hub.sent.append(oid)
        return Response(headers={"ETag": f'"{hashlib.md5(content).hexdigest()}"'})

    @app.post("/<owner>/<name>.git/info/lfs/objects/verify")
    def verify(owner: str, name: str) -> dict[str, Any]:
        asked = request.get_json()
        repository = hub.repository(f"{owner}/{name}", writes=True)
        if len(repository.objects.get(asked["oid"], b"")) != asked["size"]:
            raise Refusal(404, "the object is not there")
        return {}

    @app.post("/api/models/<owner>/<name>/commit/<revision>")
    def commit(owner: str, name: str, revision: str) -> dict[str, Any]:
        repository = hub.repository(f"{owner}/{name}", writes=True)
        assert (unquote(revision), request.content_type) == ("main", "application/x-ndjson")
        made = repository.commit([json.loads(line) for line in request.get_data().splitlines()])
        url = f"{hub.url}/{repository.name}/commit/{made.oid}"
        return {"success": True, "commitOid": made.oid, "commitUrl": url, "hookOutput": ""}

    @app.post("/api/models/<owner>/<name>/tag/<revision>")
    def tag(owner: str, name: str, revision: str) -> dict[str, Any]:
        hub.repository(f"{owner}/{name}", writes=True).tag(request.get_json()["tag"], unquote(revision))
        return {}

    @app.get("/<owner>/<name>/resolve/<revision>/<path:path>")
    def resolve(owner: str, name: str, revision: str, path: str) -> Response:
        made = hub.repository(f"{owner}/{name}").at(unquote(revision))
        blob = made.files.get(path)
        if blob is None:
            answer = refused(Refusal(404, "Entry not found", "EntryNotFound"))
            answer.headers["X-Repo-Commit"] = made.oid
            return answer
        etag = blob.sha256 if blob.is_large else blob.oid
        answer = send_file(io.BytesIO(blob.content), "application/octet-stream", conditional=True, etag=etag)
        answer.headers["X-Repo-Commit"] = made.oid
        if blob.is_large:
            answer.headers.update({"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(blob.content))})
        return answer

    return app


def _tree(files: dict[str, Blob], *, recursive: bool) -> list[dict[str, Any]]:
    folders = {path.rsplit("/", n)[0] for path in files for n in range(1, path.count("/") + 1)}
    lines = [{"type": "directory", "path": path, "size": 0, "oid": "0" * 40} for path in sorted(folders)]
    lines += [blob.entry(path) for path, blob in sorted(files.items())]
    return [line for line in lines if recursive or "/" not in line["path"]]


class _Handler(WSGIRequestHandler):
    hub: Hub

    def setup(self) -> None:
        self.hub.count(1)
        super().setup()

    def finish(self) -> None:
        try:
            with suppress(OSError):
                super().finish()
        finally:
            self.hub.count(-1)

    def log(self, *_: object) -> None:
        pass


@contextmanager
def serving(token: str, user: str = "lab", port: int = 0) -> Iterator[Hub]:
    """A hub without repositories at ``hub.url``."""
    hub = Hub(token, user)
    app = application(hub)

    def kind_of(environ: dict[str, Any]) -> str:
        """The name of the function that a request is for."""
        try:
            endpoint, _ = app.url_map.bind_to_environ(environ).match()
        except Exception:
            return "nothing"
        return str(endpoint)

    hub.faulty = Faulty(app.wsgi_app, kind_of)
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = make_server("127.0.0.1", port, hub.faulty, threaded=True, request_handler=handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
