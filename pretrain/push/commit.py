"""The push: a finished folder into a repository, in one commit, however often it was stopped before.

In: a folder, the name of a repository. Out: the commit that holds exactly the folder's bytes beside others' files.
Kept: that commit, its tag, and in it the list of the files that are ours.

A push compares, commits what differs on top of what it compared with, and compares again. So it may be stopped between
any two requests, and be repeated: what is there already is not sent, and where nothing differs nothing is committed.
"""

import logging
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub.utils.tqdm import disable_progress_bars

from data.safe_text import remembered
from pretrain.push.failure import Backoff, Unavailable
from pretrain.push.folder import LocalFile, finished_files
from pretrain.push.repository import Held, Repository

ATTEMPTS = 5
"""How many attempts in a row a push makes."""
_ROUNDS = 6
"""How often one attempt compares: others may commit between two requests."""
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"{_PART}/{_PART}")
_TAG = re.compile(_PART)


class TagTaken(ValueError):
    """A tag is at a commit that holds something else."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """A push that has succeeded."""

    commit: str
    """Newest commit of the repository, which holds the folder's bytes."""
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
    backoff: Backoff | None = None,
    attempts: int = ATTEMPTS,
) -> Pushed:
    """Push a finished folder.

    Args:
        folder: with a finished model, as `finished_files` says.
        repository: organisation/name; it is made if it is not there.
        private: whether a new repository is private. One that is public is refused.
        tag: name to give the commit. A tag that is there stays, and must hold the same bytes.
        message: of the commit; None for the folder's name.
        api: the hub; None for the one that HF_ENDPOINT names, with the token of the environment or of a login.
        backoff: waits between attempts.
        attempts: how many, at most.

    Raises:
        ValueError: the folder, a name or the model card is wrong, there is no token, or the repository is public.
        TagTaken: the tag is there, with other bytes; nothing is committed.
        Unavailable: the last attempt failed as well.
        Refused: the hub refuses it.
    """
    target = _target(repository, tag, api)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its warnings quote addresses that are signed
    if not sys.stderr.isatty():
        disable_progress_bars()
    files = finished_files(folder)
    backoff = backoff or Backoff()
    while True:
        try:
            return _attempt(target, files, private, tag, message or f"Push of {folder.name}")
        except Unavailable as error:
            attempts -= 1
            if attempts < 1:
                raise
            backoff.wait(error.asked_s)


def _target(repository: str, tag: str | None, api: HfApi | None) -> Repository:
    require_name(repository)
    if tag is not None and not _TAG.fullmatch(tag):
        raise ValueError("a tag begins with a letter or digit, and has letters, digits, '.', '_' and '-' alone")
    api = api or HfApi(token=True, library_name="zymogen")
    remembered(api.endpoint, "HF_ENDPOINT")
    if not get_token():
        raise ValueError("there is no token: log in with `hf auth login`, or set HF_TOKEN")
    return Repository(repository, api)


def require_name(repository: str) -> None:
    """Raise ValueError if this is no name of a repository."""
    forbidden = ".." in repository or "--" in repository or repository.endswith(".git")
    if not _NAME.fullmatch(repository) or len(repository) > 96 or forbidden:
        # It is not shown: it may be an address with a token in it.
        raise ValueError("a repository is named organisation/name, such as lab/esm2-small, and not by an address")


def _attempt(target: Repository, files: list[LocalFile], private: bool, tag: str | None, message: str) -> Pushed:
    held = target.held()
    if held is None:
        target.create(private=private)
        held = _there(target)
    if private and not held.is_private:
        raise ValueError(
            f"{target.name} is public, and --private was asked for, which is for new repositories; make it private in "
            "its settings, or leave --private out"
        )
    is_tagged = tag is not None and _is_tagged(target, files, tag)
    num_added = num_deleted = 0
    for _ in range(_ROUNDS):
        adds, deletes = target.operations(files, held)
        if not adds and not deletes:
            break
        if target.commit(adds, deletes, message, held.commit):
            num_added, num_deleted = len(adds), len(deletes)
        held = _there(target)
    else:
        raise Unavailable(f"{target.name}: it changed, or the folder did, at each of {_ROUNDS} commits in a row")
    if tag is not None and not is_tagged and not target.tag(tag, held.commit) and not _is_tagged(target, files, tag):
        raise Unavailable(f"{target.name}: the tag {tag} could not be made")
    return Pushed(held.commit, num_added, num_deleted)


def _there(target: Repository) -> Held:
    held = target.held()
    if held is None:
        raise Unavailable(f"{target.name}: the hub does not find it, although it was made")
    return held


def _is_tagged(target: Repository, files: list[LocalFile], tag: str) -> bool:
    """Whether the tag is there.

    Raises:
        TagTaken: it holds something else.
    """
    held = target.held(tag)
    if held is not None and not all(held.holds(file) for file in files):
        raise TagTaken(
            f"{target.name}: the tag {tag} is at commit {held.commit}, with other bytes; choose another, or delete it"
        )
    return held is not None
