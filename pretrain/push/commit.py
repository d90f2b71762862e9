"""The push: a finished folder into a repository, in one commit, however often it was stopped before.

In: a folder, the name of a repository. Out: the commit that holds the folder's files beside others'. Weights that the
folder does not have are deleted, as those of a model in other shards would be loaded with the new ones.
Kept: that commit, its tag.

A push compares, and commits what differs on top of the commit that it compared with. So it may be stopped between any
two requests, and be repeated: what is there already is not sent, and where nothing differs nothing is committed.
"""

import logging
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    ModelInfo,
    get_token,
)
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils.sha import git_hash
from huggingface_hub.utils.tqdm import disable_progress_bars

from pretrain.push.errors import SILENCE_S, HubUnavailableError, TagExistsError, classify_error, wait_s
from pretrain.push.folder import finished_files
from zymogen.console.safe_text import redact_later

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"{_PART}/{_PART}")
_TAG = re.compile(_PART)
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")
"""Files of weights that a loader would read beside or in place of ours; all others may be somebody's."""


class Pushed(NamedTuple):
    """A push that has succeeded."""

    commit: str
    """The commit that holds the folder's bytes."""
    num_added: int
    """Files that were committed; 0 if the repository held everything."""
    num_deleted: int


def push(
    folder: Path,
    repository: str,
    *,
    private: bool = False,
    tag: str | None = None,
    message: str | None = None,
    api: HfApi | None = None,
    attempts: int = 5,
    sleep: Callable[[float], None] = time.sleep,
) -> Pushed:
    """Push a finished folder.

    Args:
        folder: with a finished model, as `finished_files` says.
        repository: organisation/name; it is made if it is not there.
        private: whether a new repository is private. One that is public is refused.
        tag: name to give the commit. A tag that is there stays, and must hold the same bytes.
        message: of the commit; None for the folder's name.
        api: the hub; None for the one that HF_ENDPOINT names, with the token of the environment or of a login.
        attempts: how many in a row, at most.
        sleep: waits between attempts.

    Raises:
        ValueError: the folder, a name or the model card is wrong, there is no token, or the repository is public.
        TagExistsError: the tag is there, with other bytes; nothing is committed.
        HubUnavailableError: the last attempt failed as well.
        HubRefusedError: the hub refuses it.
    """
    require_name(repository)
    if tag is not None and not _TAG.fullmatch(tag):
        raise ValueError("a tag begins with a letter or digit, and has letters, digits, '.', '_' and '-' alone")
    api = api or HfApi(token=True, library_name="zymogen")
    redact_later(api.endpoint, "HF_ENDPOINT")
    if not get_token():
        raise ValueError("there is no token: log in with `hf auth login`, or set HF_TOKEN")
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its warnings quote addresses that are signed
    if not sys.stderr.isatty():
        disable_progress_bars()
    files = finished_files(folder)
    failed = 0
    while True:
        try:
            with classify_error(repository):
                return _attempt(api, repository, files, private, tag, message or f"Push of {folder.name}")
        except HubUnavailableError as error:
            failed += 1
            if failed >= attempts:
                raise
            sleep(wait_s(failed, error.asked_s))


def require_name(repository: str) -> None:
    """Raise ValueError if this is no name of a repository."""
    forbidden = ".." in repository or "--" in repository or repository.endswith(".git")
    if not _NAME.fullmatch(repository) or len(repository) > 96 or forbidden:
        # It is not shown: it may be an address with a token in it.
        raise ValueError("a repository is named organisation/name, such as lab/esm2-small, and not by an address")


def _attempt(
    api: HfApi, repository: str, files: Mapping[str, Path], private: bool, tag: str | None, message: str
) -> Pushed:
    try:
        info = _info(api, repository)
    except RepositoryNotFoundError:
        api.create_repo(repository, private=private or None)
        try:
            info = _info(api, repository)
        except RepositoryNotFoundError as error:
            raise HubUnavailableError(f"{repository}: the hub has made it, and does not show it yet") from error
    if private and not info.private:
        raise ValueError(
            "the repository is public, and --private was asked for, which is for new repositories; make it private in "
            "its settings, or leave --private out"
        )
    operations = [CommitOperationAdd(name, path) for name, path in files.items()]
    is_tagged = tag is not None and _is_tagged(api, repository, operations, tag)
    held = _held(info)
    adds = [file for file in operations if not _is_same(held.get(file.path_in_repo), file)]
    gone = sorted(name for name in held.keys() - files.keys() if _WEIGHTS.fullmatch(name))
    commit = str(info.sha)
    if adds or gone:
        # An empty list in place of the repository's .gitignore, which would leave files out.
        api.preupload_lfs_files(repository, adds, gitignore_content="", free_memory=False)
        deletes = [CommitOperationDelete(name, is_folder=False) for name in gone]
        made = api.create_commit(repository, [*adds, *deletes], commit_message=message, parent_commit=commit)
        commit = made.oid
    if tag is not None and not is_tagged:
        api.create_tag(repository, tag=tag, revision=commit)
    return Pushed(commit, len(adds), len(gone))


def _info(api: HfApi, repository: str, revision: str | None = None) -> ModelInfo:
    return api.model_info(repository, revision=revision, files_metadata=True, timeout=SILENCE_S)


def _held(info: ModelInfo) -> dict[str, RepoSibling]:
    return {each.rfilename: each for each in info.siblings or ()}


def _is_same(held: RepoSibling | None, file: CommitOperationAdd) -> bool:
    """Whether a file of a repository has the bytes of one of ours."""
    if held is None:
        return False
    if held.lfs is not None:
        return bool(held.lfs.sha256 == file.upload_info.sha256.hex())
    with file.as_file() as opened:
        return held.blob_id == git_hash(opened.read())


def _is_tagged(api: HfApi, repository: str, files: list[CommitOperationAdd], tag: str) -> bool:
    """Whether the tag is there.

    Raises:
        TagExistsError: it holds something else.
    """
    try:
        info = _info(api, repository, tag)
    except RevisionNotFoundError:
        return False
    held = _held(info)
    if not all(_is_same(held.get(file.path_in_repo), file) for file in files):
        raise TagExistsError(
            f"{repository}: the tag {tag} is at commit {info.sha}, with other bytes; choose another, or delete it"
        )
    return True
