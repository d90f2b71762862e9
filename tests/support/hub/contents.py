"""Repositories of a local hub: commits on commits, large objects beside them, names for commits."""

import base64
import fnmatch
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

ATTRIBUTES = "".join(
    f"{pattern} filter=lfs diff=lfs merge=lfs -text\n"
    for pattern in ("*.bin", "*.h5", "*.npz", "*.onnx", "*.parquet", "*.pt", "*.safetensors", "*.zip", "*tfevents*")
).encode()
"""The .gitattributes with which a repository begins, abridged."""
LARGE = 10 * 1024 * 1024
"""Bytes from which a file is a large object, whatever its name."""


class Refusal(Exception):
    """A request that the hub does not carry out."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


def git_blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass(frozen=True)
class Blob:
    """The content of a file."""

    content: bytes
    is_large: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def oid(self) -> str:
        """Git's name: of a large object that of the pointer."""
        return git_blob(self.pointer if self.is_large else self.content)

    @property
    def pointer(self) -> bytes:
        text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.content)}\n"
        return text.encode()

    @property
    def large(self) -> dict[str, Any]:
        return {"oid": self.sha256, "size": len(self.content), "pointerSize": len(self.pointer)}

    def entry(self, path: str) -> dict[str, Any]:
        """A line of a tree."""
        said = {"type": "file", "path": path, "size": len(self.content), "oid": self.oid}
        return said | ({"lfs": self.large} if self.is_large else {})

    def sibling(self, path: str, *, blobs: bool) -> dict[str, Any]:
        """A line of a repository's description."""
        if not blobs:
            return {"rfilename": path}
        said: dict[str, Any] = {"rfilename": path, "size": len(self.content), "blobId": self.oid}
        return said | ({"lfs": self.large | {"sha256": self.sha256}} if self.is_large else {})


@dataclass(frozen=True)
class Commit:
    oid: str
    summary: str
    files: dict[str, Blob]


@dataclass
class HubRepository:
    """One repository."""

    name: str
    private: bool = False
    commits: list[Commit] = field(default_factory=list)
    """The oldest first."""
    tags: dict[str, str] = field(default_factory=dict)
    """tag -> commit."""
    objects: dict[str, bytes] = field(default_factory=dict)
    """SHA-256 -> large object, whether in a commit or not."""

    def __post_init__(self) -> None:
        self.add("initial commit", {".gitattributes": Blob(ATTRIBUTES, False)})

    @property
    def head(self) -> Commit:
        return self.commits[-1]

    @property
    def files(self) -> dict[str, bytes]:
        """Of the newest commit, without what a repository begins with."""
        return {path: blob.content for path, blob in self.head.files.items() if path != ".gitattributes"}

    def add(self, summary: str, files: dict[str, Blob]) -> Commit:
        named = [self.name, len(self.commits), summary, sorted((path, blob.oid) for path, blob in files.items())]
        commit = Commit(hashlib.sha1(json.dumps(named).encode()).hexdigest(), summary, files)
        self.commits.append(commit)
        return commit

    def somebody_adds(self, path: str, content: bytes) -> Commit:
        """A commit of somebody else."""
        return self.add(f"Add {path}", self.head.files | {path: Blob(content, False)})

    def at(self, revision: str) -> Commit:
        if revision == "main":
            return self.head
        oid = self.tags.get(revision, revision)
        for commit in self.commits:
            if commit.oid == oid:
                return commit
        raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def described(self, commit: Commit, *, blobs: bool) -> dict[str, Any]:
        siblings = [blob.sibling(path, blobs=blobs) for path, blob in sorted(commit.files.items())]
        said = {"id": self.name, "modelId": self.name, "author": self.name.split("/")[0], "sha": commit.oid}
        return said | {"private": self.private, "tags": [], "downloads": 0, "siblings": siblings}

    def preupload(self, files: list[dict[str, Any]], ignored: str | None) -> list[dict[str, Any]]:
        """How each file is to be sent: by its name, its size and its first bytes."""
        here = self.head.files
        if ignored is None:
            ignored = here[".gitignore"].content.decode() if ".gitignore" in here else ""
        patterns = [line.split()[0] for line in here[".gitattributes"].content.decode().splitlines() if "lfs" in line]
        answer = []
        for file in files:
            path, sample = file["path"], base64.b64decode(file["sample"])
            name = path.rsplit("/", 1)[-1]
            large = file["size"] > LARGE or b"\0" in sample or any(fnmatch.fnmatch(name, each) for each in patterns)
            known = here.get(path)
            answer.append(
                {
                    "path": path,
                    "uploadMode": "lfs" if large else "regular",
                    "shouldIgnore": any(fnmatch.fnmatch(path, line) for line in ignored.splitlines() if line),
                    "oid": None if known is None else known.sha256 if known.is_large else known.oid,
                }
            )
        return answer

    def commit(self, lines: list[dict[str, Any]]) -> Commit:
        """One commit of the lines of a request; all or nothing."""
        header = lines[0]["value"]
        if header.get("parentCommit") not in (None, self.head.oid):
            raise Refusal(412, "A commit has happened since. Please refresh and try again.")
        files = dict(self.head.files)
        for line in lines[1:]:
            value, path = line["value"], line["value"]["path"]
            if line["key"] == "file":
                files[path] = Blob(base64.b64decode(value["content"]), False)
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.objects:
                    raise Refusal(400, f"LFS pointer to an object that is not there: {value['oid']}")
                files[path] = Blob(self.objects[value["oid"]], True)
            elif line["key"] == "deletedFile":
                if files.pop(path, None) is None:
                    raise Refusal(404, "A file with this name doesn't exist", "EntryNotFound")
            else:
                raise Refusal(400, f"unknown operation {line['key']}")
        return self.add(header["summary"], files)

    def tag(self, name: str, revision: str) -> None:
        if name in self.tags:
            raise Refusal(409, f"Tag reference exists already: refs/tags/{name}")
        self.tags[name] = self.at(revision).oid
