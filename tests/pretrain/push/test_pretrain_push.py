"""A push to a hub on loopback, when all goes well or fails for a while, and what is refused before anything is sent."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, constants, snapshot_download

from pretrain.push.__main__ import main
from pretrain.push.commit import push
from pretrain.push.errors import HubRefusedError, HubUnavailableError, TagExistsError, wait_s
from support.hub.client import TOKEN, api, local_hub
from support.hub.faults import RESET_S, Fault
from support.hub.folders import contents, write_adapter, write_bundle, write_export
from support.hub.server import SIGNATURE, Hub
from support.inputs.written_runs import WrittenRun
from zymogen.console.safe_text import redacted

NAME = "lab/model"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with local_hub(tmp_path) as running:
        yield running


def held(hub: Hub) -> dict[str, bytes]:
    """The files of the repository."""
    return hub.repositories[NAME].files


def test_one_commit_holds_the_folder_and_repeating_it_sends_nothing(hub: Hub, tmp_path: Path) -> None:
    folder = write_export(tmp_path / "export")
    hub.begin()
    done = push(folder, NAME, private=True, tag="v1", api=api(hub))
    repository = hub.repositories[NAME]
    assert held(hub) == contents(folder)
    assert [commit.summary for commit in repository.commits] == ["initial commit", "Push of export"]
    assert (repository.private, repository.tags) == (True, {"v1": done.commit})
    assert (done.commit, done.num_added, done.num_deleted) == (repository.head.oid, 6, 0)
    kinds = [kind for _, kind in hub.faulty.requests]
    assert kinds.count("commit") == kinds.count("preupload") == kinds.count("batch") == kinds.count("create") == 1
    assert kinds.count("put") == kinds.count("verify") == len(hub.sent) == 2

    hub.begin()
    again = push(folder, NAME, private=True, tag="v1", api=api(hub))
    assert (again.commit, again.num_added) == (done.commit, 0)
    assert [method for method, _ in hub.faulty.requests] == ["GET", "GET"]


def test_only_what_changed_is_sent_and_only_weights_are_deleted(hub: Hub, tmp_path: Path) -> None:
    folder = write_export(tmp_path / "export")
    push(folder, NAME, api=api(hub))
    repository = hub.repositories[NAME]
    theirs = {"notes.md": b"of somebody else", "adapters/model.safetensors": b"x", "vectors.safetensors": b"y"}
    for name, content in theirs.items():
        repository.somebody_adds(name, content)
    write_export(tmp_path / "other", seed=1)
    changed = "model-00002-of-00002.safetensors"
    (folder / changed).write_bytes((tmp_path / "other" / changed).read_bytes())
    hub.begin()
    done = push(folder, NAME, api=api(hub))
    assert held(hub) == contents(folder) | theirs
    assert (done.num_added, done.num_deleted, len(hub.sent)) == (1, 0, 1)
    assert len(repository.commits) == 6
    other = write_export(tmp_path / "fewer", shards=1)
    (other / "pictures/loss.svg").unlink()
    done = push(other, NAME, api=api(hub))
    assert done.num_deleted == 2  # both shards
    assert held(hub) == contents(other) | theirs | {"pictures/loss.svg": b"<svg/>"}


def test_a_commit_of_somebody_else_in_between(hub: Hub, tmp_path: Path) -> None:
    """The hub answers 412; the push reads again, keeps the other's file, and makes one commit on top."""
    folder = write_export(tmp_path / "export")
    push(folder, NAME, api=api(hub))
    (folder / "config.json").write_text("{}")
    repository = hub.repositories[NAME]
    commit, seen = repository.commit, []

    def late(lines: list[dict]) -> object:
        if not seen:
            seen.append(repository.somebody_adds("theirs.txt", b"first"))
            seen.append(repository.somebody_adds("README.md", b"a card of theirs"))
        return commit(lines)

    repository.commit = late  # type: ignore[method-assign]
    waits: list[float] = []
    done = push(folder, NAME, api=api(hub), sleep=waits.append)
    assert waits == [2.0]
    assert held(hub) == contents(folder) | {"theirs.txt": b"first"}
    assert [each.summary for each in repository.commits[2:]] == ["Add theirs.txt", "Add README.md", "Push of export"]
    assert done.commit == repository.head.oid


@pytest.mark.parametrize("write", [write_export, write_bundle, write_adapter])
def test_what_is_pushed_is_what_is_downloaded(hub: Hub, tmp_path: Path, write) -> None:
    folder = write(tmp_path / "folder")
    done = push(folder, NAME, api=api(hub))
    where = snapshot_download(NAME, cache_dir=tmp_path / "cache", endpoint=hub.url)
    assert Path(where).name == done.commit
    here = contents(Path(where))
    assert {path: content for path, content in here.items() if path != ".gitattributes"} == contents(folder)


def test_a_tag_stays_where_it_is(hub: Hub, tmp_path: Path) -> None:
    folder = write_export(tmp_path / "export")
    first = push(folder, NAME, tag="v1", api=api(hub))
    (folder / "config.json").write_text("{}")
    with pytest.raises(TagExistsError, match=f"v1 is at commit {first.commit}, with other bytes"):
        push(folder, NAME, tag="v1", api=api(hub))
    assert hub.repositories[NAME].head.oid == first.commit
    second = push(folder, NAME, tag="v2", api=api(hub))
    assert hub.repositories[NAME].tags == {"v1": first.commit, "v2": second.commit}


@pytest.mark.parametrize("name", ["429", "503", "412", "cut"])
def test_a_fault_that_passes_is_waited_for(hub: Hub, tmp_path: Path, name: str) -> None:
    folder = write_export(tmp_path / "export")
    waits: list[float] = []
    hub.begin(Fault(name, times=1))  # of the first request
    push(folder, NAME, api=api(hub), sleep=waits.append)
    assert held(hub) == contents(folder)
    assert waits == [RESET_S + 1.0 if name == "429" else 2.0]


def test_a_repository_that_is_made_and_not_shown_yet(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, waits, real = write_export(tmp_path / "export"), list[float](), HfApi.model_info
    answers = iter([404, 404])

    def late(self: HfApi, name: str, **how: Any) -> Any:
        return real(self, "lab/nothing" if next(answers, None) else name, **how)

    monkeypatch.setattr(HfApi, "model_info", late)
    push(folder, NAME, api=api(hub), sleep=waits.append)
    assert held(hub) == contents(folder)
    assert waits == [2.0]


def test_waits_grow_and_the_last_failure_is_raised(hub: Hub, tmp_path: Path) -> None:
    folder = write_export(tmp_path / "export")
    waits: list[float] = []
    hub.begin(Fault("503"))
    with pytest.raises(HubUnavailableError, match="lab/model: the hub answers 503, fault 503"):
        push(folder, NAME, api=api(hub), sleep=waits.append)
    assert waits == [2.0, 4.0, 8.0, 16.0]
    assert [wait_s(failed, 0) for failed in (8, 9, 10**6)] == [256.0, 300.0, 300.0]
    assert (wait_s(10, 1e3), wait_s(10, 1e9)) == (1e3, 3600.0)


def test_a_hub_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    folder = write_export(tmp_path / "export")
    with local_hub(tmp_path / "home") as hub:
        pass
    with local_hub(tmp_path / "home"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", hub.url)
        with pytest.raises(HubUnavailableError) as refused:
            push(folder, NAME, api=api(hub), sleep=lambda _: None)
    assert str(refused.value) == f"{NAME}: no whole answer from the hub ({hub.url}: [Errno 111] Connection refused)"


@pytest.mark.parametrize(("status", "words"), [("401", "hf auth login"), ("403", "may not write there")])
def test_a_refusal_is_not_repeated(hub: Hub, tmp_path: Path, status: str, words: str) -> None:
    folder = write_export(tmp_path / "export")
    hub.begin(Fault(status))
    with pytest.raises(HubRefusedError, match=words):
        push(folder, NAME, api=api(hub))
    assert len(hub.faulty.requests) == 1


def test_a_card_that_the_hub_does_not_read(hub: Hub, tmp_path: Path) -> None:
    folder = write_export(tmp_path / "export")
    (folder / "README.md").write_text("---\nwithout end\n")
    with pytest.raises(ValueError, match=r"Invalid metadata in README.md. - the metadata have no end"):
        push(folder, NAME, api=api(hub))
    assert len(hub.repositories[NAME].commits) == 1


def test_private_is_for_new_repositories(hub: Hub, tmp_path: Path) -> None:
    folder = write_export(tmp_path / "export")
    push(folder, NAME, api=api(hub))
    with pytest.raises(ValueError, match="lab/model: the repository is public, and --private was asked for"):
        push(folder, NAME, private=True, api=api(hub))


def test_what_a_repository_ignores_is_sent_nevertheless(hub: Hub, tmp_path: Path) -> None:
    folder = write_export(tmp_path / "export")
    push(folder, NAME, api=api(hub))
    hub.repositories[NAME].somebody_adds(".gitignore", b"*.json\n")
    (folder / "config.json").write_text("{}")
    push(folder, NAME, api=api(hub))
    assert held(hub)["config.json"] == b"{}"


def a_link(folder: Path) -> None:
    (folder / "link").symlink_to(folder / "config.json")


def a_missing_shard(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()


def half_a_shard(folder: Path) -> None:
    path = folder / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:2000])


def no_weights(folder: Path) -> None:
    for path in folder.glob("model*"):
        path.unlink()


def nothing(folder: Path) -> None:
    (folder / "config.json").unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (a_link, "is no regular file; push a copy without links"),
        (a_missing_shard, "it has model.safetensors.index.json, and no model-00002-of-00002.safetensors"),
        (half_a_shard, "is no whole safetensors file"),
        (no_weights, "it has config.json, and no model.safetensors"),
        (nothing, "holds no finished model: it has none of bundle.json, adapter_config.json, config.json"),
    ],
)
def test_a_folder_that_is_not_finished(hub: Hub, tmp_path: Path, damage, words: str) -> None:
    folder = write_export(tmp_path / "export")
    damage(folder)
    with pytest.raises(ValueError, match=words):
        push(folder, NAME, api=api(hub))
    assert hub.faulty.requests == []


def test_a_bundle_that_was_changed(hub: Hub, tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "bundle")
    (folder / "split.csv").write_text("id,part\na,test\n")
    with pytest.raises(ValueError, match=r"split.csv is not as it was written: its SHA-256 is "):
        push(folder, NAME, api=api(hub))


@pytest.mark.parametrize(
    "words",
    [
        ["FOLDER", "https://me:{}@huggingface.co/lab/model"],
        ["FOLDER", "lab/model", "--token", "{}"],
        ["FOLDER", "lab/model", "--token={}"],
        ["FOLDER", "lab/model", "{}"],
        ["FOLDER", "lab/model", "--every", "{}"],
        ["FOLDER", "lab/model", "--tag", "{}!"],
        ["FOLDER-{}", "lab/model"],
    ],
)
def test_a_token_on_the_command_line_is_refused_and_not_shown(
    hub: Hub, tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    folder = write_export(tmp_path / "export")
    secret = "hf_anotherTokenThatIsSecret"
    assert main([word.format(secret).replace("FOLDER", str(folder)) for word in words]) == 78
    printed = "".join(capfd.readouterr())
    assert printed.count("\n") == 1
    assert printed.startswith("error: ")
    assert secret not in printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--watch"], "is no run directory; --watch follows a run, once its directory is there"),
        (["--watch", "--tag", "v1"], "--tag is for one push; --watch names each commit step-N"),
        (["--every", "0"], "--every is 1 or more, --patience 0 or more, and --poll more than 0"),
        (["--tag", "v 1"], "a tag begins with a letter or digit, and has letters, digits, '.', '_' and '-' alone"),
    ],
)
def test_words_that_do_not_go_together(hub: Hub, tmp_path: Path, capfd, words: list[str], said: str) -> None:
    assert main([str(write_export(tmp_path / "export")), NAME, *words]) == 78
    printed = capfd.readouterr().err
    assert printed.startswith("error: ")
    assert printed.endswith(f"{said}\n")
    assert hub.faulty.requests == []


def test_a_token_in_the_hubs_address_is_refused_and_not_shown(
    hub: Hub, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", f"http://me:{TOKEN}@{hub.url.removeprefix('http://')}")
    assert main([str(write_export(tmp_path / "export")), NAME]) == 78
    said = capfd.readouterr()
    assert said.err.startswith("error: HF_ENDPOINT: a URL has a user or a password in it, http://(hidden)@127.0.0.1:")
    assert TOKEN not in said.err + said.out
    assert hub.faulty.requests == []


def test_no_token(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    folder = write_export(tmp_path / "export")
    monkeypatch.delenv("HF_TOKEN")
    assert main([str(folder), NAME]) == 78
    assert capfd.readouterr().err == "error: there is no token: log in with `hf auth login`, or set HF_TOKEN\n"
    (tmp_path / "token").write_text(TOKEN)  # that of a login
    assert main([str(folder), NAME]) == 0
    assert held(hub) == contents(folder)


def test_secrets_are_in_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "not-like-a-token")
    text = f"PUT https://me:word@store.example/a?X-Amz-Signature={SIGNATURE} by Bearer abc, not-like-a-token, {TOKEN}"
    shown = redacted(text)
    assert not any(secret in shown for secret in ("word@", SIGNATURE, "abc", "not-like-a-token", TOKEN))
    assert shown == "PUT https://(hidden)@store.example/a?hidden=1271cf25 by Bearer (hidden), (hidden), (hidden)"


def test_no_secret_is_left_by_a_push_that_fails(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog
) -> None:
    """The address that large objects go to is signed; the hub fails there."""
    root = WrittenRun().write(tmp_path / "run")
    folder = write_export(root / "export")
    before = contents(folder)
    monkeypatch.setattr("pretrain.push.commit.wait_s", lambda *_: 0)
    hub.begin(Fault("503", kind=("PUT", "put")))
    assert main([str(root), NAME]) == 70
    said = capfd.readouterr()
    assert said.err == "error: lab/model: the hub answers 503, fault 503\n"
    (line,) = [json.loads(line) for line in (root / "alerts.jsonl").read_text().splitlines()]
    assert (line["alert"], line["repository"]) == ("push", NAME)
    assert line["message"] == "lab/model: the hub answers 503, fault 503"
    assert contents(folder) == before
    for text in (said.out, said.err, caplog.text, *(content.decode("latin-1") for content in contents(root).values())):
        assert TOKEN not in text
        assert SIGNATURE not in text
