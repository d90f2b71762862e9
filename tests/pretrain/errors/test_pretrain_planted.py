"""No secret of a URL, of the environment or of the command line is in any byte that a run writes, prints or sends."""

import gzip
import json
import re
import shutil
import subprocess
import sys
import tomllib
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from data.settings import CorpusSettings, IngestSettings
from data.store.growing import GrowingStore, start_builder
from data.transport.byte_stream import ByteStream
from pretrain.__main__ import main
from pretrain.evaluate.__main__ import main as evaluate
from pretrain.inspect.__main__ import main as inspect
from pretrain.proposal.recipe_text import toml_value
from pretrain.recipe import Recipe
from pretrain.report.page import write_report
from support.inputs.faulty_server import Fault, Site, serving
from support.launching import LIMIT_S, environment, lines
from support.places import ROOT
from support.planted import (
    ALLOWED,
    ENVIRONMENT,
    SECRET,
    SIGNED,
    SIGNED_AGAIN,
    URLS,
    path_settings,
    planted,
    secrets_in,
)
from zymogen.command_line.parser import CommandParser
from zymogen.console.safe_text import WHOLE, unredacted
from zymogen.processes.launcher import command_line

SETTINGS = dict(path_settings(Recipe))
QUICK = {"user", "signed", "unknown parameter"}


@pytest.fixture(autouse=True)
def secrets_around(monkeypatch: pytest.MonkeyPatch) -> None:
    WHOLE.clear()
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def site(families_files: tuple[Path, Path]) -> Iterator[Site]:
    with serving(Site(gzip.decompress(families_files[0].read_bytes()))) as served:
        yield served


def test_the_settings_that_take_a_path_are_known() -> None:
    assert {"data.sources", "data.clusters", "data.exclude", "data.mixture.sources", "model.init"} <= SETTINGS.keys()
    assert {"run.directory", "run.checkpoint_url", "data.store_dir"} <= SETTINGS.keys()


@pytest.mark.parametrize(
    "kind", [*sorted(QUICK), *(pytest.param(each, marks=pytest.mark.slow) for each in sorted(URLS.keys() - QUICK))]
)
def test_no_setting_keeps_a_secret(
    kind: str, recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each setting that may be a path, in a recipe file and on the command line; most starts fail."""
    (tmp_path / "given").mkdir()
    (tmp_path / "made").mkdir()
    monkeypatch.chdir(tmp_path / "made")
    content = recipe_in(tmp_path / "given").read_text().replace(str(tmp_path / "given"), str(tmp_path / "made"))
    recipe = tmp_path / "given/recipe.toml"
    for name, is_list in SETTINGS.items():
        if name in ("run.directory", "data.store_dir") and "@" not in URLS[kind]:
            continue  # a folder may have any name, so that a run of it is below
        tables = planted(tomllib.loads(content), name, [URLS[kind]] if is_list else URLS[kind])
        recipe.write_text("\n".join(f"{section} = {toml_value(table)}" for section, table in tables.items()))
        more = [] if name == "run.directory" else [f"run.directory=runs/{name}"]
        status = main([str(recipe), "schedule.total_tokens=450", *more])
        said = capfd.readouterr()
        assert secrets_in(tmp_path / "made", text=said.out + said.err) == [], name
        assert status != 0, name
        if "@" in URLS[kind]:
            assert status == 78, name
            assert re.search(rf"{name.replace('mixture.', '(mixture.)?')}: a URL has a user or a password", said.err), (
                name
            )
    status = main([str(recipe_in(tmp_path / "given")), f"model.init={URLS[kind]}", "model.preset=none"])
    said = capfd.readouterr()
    assert status == 78
    assert secrets_in(tmp_path / "made", text=said.out + said.err) == []


@pytest.mark.slow
def test_no_byte_of_a_run_holds_a_secret(
    recipe_in, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of a run and of all that is made of it; continued by a URL that was signed again, and read without the server."""
    made = tmp_path / "made"
    made.mkdir()
    monkeypatch.chdir(made)
    words = [str(recipe_in(tmp_path / "given")), "data.clusters=none", "data.store_dir=stores"]
    words += [f"run.directory=https://host/run?{SIGNED}", 'run.trackers=["tensorboard"]']
    url = site.url
    assert main([*words, f"data.sources={url}?{SIGNED}", "schedule.total_tokens=900"]) == 0
    assert f"/proteins.fasta?{SIGNED}" in site.paths
    (run,) = made.glob("https:/host/*")
    write_report(run)
    asked = len(site.paths)
    more = ["schedule.total_tokens=1800", "--allow-schedule-change"]
    assert main([*words, f"data.sources={url}?{SIGNED_AGAIN}", *more]) == 0
    assert len(site.paths) == asked  # the store is that of the same source, and its stamp is unchanged
    assert len({line["attempt"] for line in lines(run / "attempts.jsonl")}) == 2
    WHOLE.clear()  # another command, to which nobody gave the URL
    described = json.loads((run / "run.json").read_text())["recipe"]["data"]["sources"]
    assert main([*words, f"data.sources={described[0]}", *more]) == 0  # finished, from its store
    assert evaluate([str(run), "--sequences", "4", "-o", str(run / "evaluation.json")]) == 0
    assert len(site.paths) == asked
    write_report(run)
    said = capfd.readouterr()
    text = said.out + said.err
    assert secrets_in(made, text=text) == []
    found = {Path(place).name.split(".")[0] for place in secrets_in(made, text=text, mark=ALLOWED)}
    assert {"run", "store", "report", "evaluation", "events"} <= found  # what finds this would find a secret
    assert any(ALLOWED in line for line in text.splitlines())

    shutil.rmtree(made / "stores")  # without it the source is needed again
    assert evaluate([str(run)]) == 78
    assert "stores: no such folder of token stores; name one with --store-dir" in capfd.readouterr().err
    (made / "stores").mkdir()
    for command in (lambda: evaluate([str(run)]), lambda: inspect(["audit", str(run)])):
        assert command() == 78
        assert "not fetched, as the file of a run names it, which may be somebody else's" in capfd.readouterr().err
    assert main([*words, f"data.sources={described[0]}", *more]) == 78
    assert "was not written down: give the whole URL again" in capfd.readouterr().err
    assert len(site.paths) == asked


@pytest.mark.parametrize("fault", ["403", "500", "change"])
def test_no_error_of_a_server_shows_a_secret(
    fault: str,
    recipe_in,
    site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("data.transport.retries.sleep", lambda _: None)
    site.after = site.content[::-1]
    site.faults += ([Fault("drop", 100)] if fault == "change" else []) + [Fault(fault)] * 40
    site.head_faults += [Fault(fault)] * (20 if fault == "403" else 0)
    words = [str(recipe_in(tmp_path / "given")), "data.clusters=none", f"data.sources={site.url}?{SIGNED}"]
    made = tmp_path / "made"
    for more in ([], *([["data.streaming=true"]] if fault != "500" else [])):  # whose builder would wait
        assert main([*words, f"run.directory={made / 'run'}", f"data.store_dir={made / 'stores'}", *more]) != 0
    said = capfd.readouterr()
    assert secrets_in(made, text=said.out + said.err) == []
    assert ALLOWED in said.err


def test_a_traceback_in_a_record_holds_no_secret(
    recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    """As one of a library, which quotes what it was given."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(f"GET https://me:{SECRET}@host/x?sig={SECRET} with {ENVIRONMENT['HF_TOKEN']}")

    monkeypatch.setattr("zymogen.trainer.loop.train_step", fail)
    assert main([str(recipe_in(tmp_path)), "schedule.total_tokens=900"]) == 70
    said = capfd.readouterr()
    assert "GET https://(hidden)@host/x?hidden=" in said.err
    (line,) = lines(tmp_path / "run/ranks/rank-00000.jsonl")
    assert "GET https://(hidden)@host/x?hidden=" in line["message"]
    assert "fail" in line["traceback"]
    assert secrets_in(tmp_path, text=said.out + said.err) == []


@pytest.mark.slow
def test_a_process_that_builds_gets_the_whole_url(site: Site, tmp_path: Path) -> None:
    corpus = CorpusSettings(sources=(f"{site.url}?{SIGNED}",))
    store = GrowingStore(start_builder(corpus, "refuse", IngestSettings(), tmp_path))
    assert store.wait(10) == 10
    assert {*site.paths} == {f"/proteins.fasta?{SIGNED}"}


def test_the_command_line_has_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["python", "-m", "pretrain", f"https://host/x.fasta?{SIGNED}", f"--token={ENVIRONMENT['HF_TOKEN']}"]
    monkeypatch.setattr(sys, "orig_argv", words)
    shown = f"python -m pretrain 'https://host/x.fasta?file={ALLOWED}&hidden=1271cf25' '--token=(hidden)'"
    assert command_line().replace("--token=(hidden)", "'--token=(hidden)'") == shown


def test_words_lose_their_secrets_before_trackers_send_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pretrain", f"data.sources=https://host/x.fasta?{SIGNED}"])
    parser = CommandParser()
    parser.add_argument("words", nargs="+")
    assert parser.parse_intermixed_args().words == sys.argv[1:]
    assert SECRET not in sys.argv[1]
    assert unredacted(sys.argv[1]) == f"data.sources=https://host/x.fasta?{SIGNED}"


def test_credentials_of_netrc_are_sent(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login me password {SECRET}\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert b"".join(ByteStream(site.url).chunks()) == site.content
    assert {*site.authorizations} == {f"Basic {b64encode(f'me:{SECRET}'.encode()).decode()}"}


@pytest.mark.slow
@pytest.mark.launch
def test_no_byte_of_the_program_holds_a_secret(site: Site, tmp_path: Path) -> None:
    """From sequences to a proposed recipe and a model, with the trackers, as it is typed; then stopped and refused."""
    words = [f"{site.url}?{SIGNED}", "--minutes", "0.02", 'run.trackers=["tensorboard", "wandb"]']
    made, home = tmp_path / "made", tmp_path / "home"
    for folder in (made, home):
        folder.mkdir()

    def typed(*words: str) -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in environment().items() if not name.startswith("WANDB_")}
        return subprocess.run(
            [sys.executable, "-m", *words],
            cwd=made,
            env={**variables, **ENVIRONMENT, "HOME": str(home), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    done = typed("pretrain", *words)
    assert done.returncode == 0, done.stderr
    again = typed("pretrain", f"{site.url}?{SIGNED_AGAIN}", *words[1:])
    (run,) = (made / "runs").glob("[!s]*")
    ended = [
        again,
        typed("pretrain", str(run / "recipe.toml"), "--allow-schedule-change"),
        typed("pretrain.report", str(run)),
        typed("data", "build", f"{site.url}?{SIGNED}", "--output", str(made / "again")),
        typed("data", "build", f"{site.url}/absent.fna?{SIGNED}&t={SECRET}"),
    ]
    assert [each.returncode for each in ended] == [0, 0, 0, 0, 2]
    text = "".join(each.stdout + each.stderr for each in (done, *ended))
    assert secrets_in(made, home, text=text) == []
    found = " ".join(secrets_in(made, mark=ALLOWED))
    assert all(name in found for name in ("run.json", "recipe.toml", "store.json", "report.html", "events.", ".wandb"))
