"""One repository on a hub: what it holds, and one commit on top of that.

In: a name, and the token of the environment or of a login. Out: `Held`; a commit; a tag. Kept: on the hub. Nothing is
kept here: every question is asked again, since others may commit at any time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    get_session,
    hf_hub_url,
    hf_raise_for_status,
)
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils._headers import build_hf_headers

from pretrain.push.failure import SILENCE_S, Unavailable, sorted_out
from pretrain.push.folder import LIST, LocalFile, listed


@dataclass(frozen=True, slots=True)
class Held:
    """A repository at one commit."""

    commit: str
    is_private: bool
    files: Mapping[str, RepoSibling]
    """path -> size and hashes."""

    def holds(self, file: LocalFile) -> bool:
        """Whether it holds these bytes under this name."""
        there = self.files.get(file.name)
        if there is None:
            return False
        if there.lfs is not None:
            return bool(there.lfs.sha256 == file.sha256)
        return there.blob_id == file.git_blob


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository of models, whether it exists or not.

    Each method raises what `failure.sorted_out` says.
    """

    name: str
    """organisation/name."""
    api: HfApi

    def held(self, revision: str | None = None) -> Held | None:
        """What it holds at a revision, or at the newest commit; None if there is no such revision or repository."""
        with sorted_out(self.name):
            try:
                info = self.api.model_info(self.name, revision=revision, files_metadata=True, timeout=SILENCE_S)
            except (RepositoryNotFoundError, RevisionNotFoundError):
                return None
            if info.sha is None or info.siblings is None:
                raise Unavailable(f"{self.name}: the hub does not report what it holds")
            return Held(info.sha, bool(info.private), {each.rfilename: each for each in info.siblings})

    def create(self, *, private: bool) -> None:
        """Make it, if it is not there; without `private`, as its organisation makes repositories."""
        with sorted_out(self.name):
            try:
                self.api.create_repo(self.name, private=private or None)
            except HfHubHTTPError as error:
                if error.response.status_code != 409:  # somebody was faster
                    raise

    def operations(
        self, files: Sequence[LocalFile], held: Held
    ) -> tuple[list[CommitOperationAdd], list[CommitOperationDelete]]:
        """What to add and what to delete, so that it holds these files and those of others; fresh for each commit."""
        with sorted_out(self.name):
            missing = [file for file in files if not held.holds(file)]
            adds = [CommitOperationAdd(file.name, file.source) for file in missing]
            # Where the list is the same, so are the names, and none of them is gone.
            if not any(file.name == LIST for file in missing):
                return adds, []
            gone = self._ours(held) - {file.name for file in files}
            return adds, [CommitOperationDelete(name, is_folder=False) for name in sorted(gone & held.files.keys())]

    def _ours(self, held: Held) -> set[str]:
        """The files that earlier pushes have put there, by the list that they left; none without a list."""
        if LIST not in held.files:
            return set()
        url = hf_hub_url(self.name, LIST, revision=held.commit, endpoint=self.api.endpoint)
        response = get_session().get(url, headers=build_hf_headers(token=True), timeout=SILENCE_S)
        hf_raise_for_status(response)
        return listed(response.content) or set()

    def commit(
        self,
        adds: Sequence[CommitOperationAdd],
        deletes: Sequence[CommitOperationDelete],
        message: str,
        parent: str,
    ) -> bool:
        """Upload the large files that the hub lacks, then commit everything at once.

        Args:
            adds: files, not used in a commit before.
            deletes: files that are there.
            message: of the commit.
            parent: the newest commit when the operations were made.

        Returns:
            Whether `parent` still was the newest commit; if not, nothing is changed.
        """
        with sorted_out(self.name):
            try:
                # A .gitignore of the repository would leave files out; an empty one takes its place.
                self.api.preupload_lfs_files(self.name, adds, gitignore_content="", free_memory=False)
                self.api.create_commit(self.name, [*adds, *deletes], commit_message=message, parent_commit=parent)
            except HfHubHTTPError as error:
                if error.response.status_code != 412:
                    raise
                return False
            return True

    def tag(self, name: str, commit: str) -> bool:
        """Give a commit a name; whether the name was free."""
        with sorted_out(self.name):
            try:
                self.api.create_tag(self.name, tag=name, revision=commit)
            except HfHubHTTPError as error:
                if error.response.status_code != 409:
                    raise
                return False
            return True
