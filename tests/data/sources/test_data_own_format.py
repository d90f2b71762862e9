"""A source format of the user's: stores built, killed and resumed, trained from, and read without its class."""

import gzip
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from data.__main__ import main as data_main
from data.settings import CorpusSettings, DataSettings, MixedCorpus
from data.store.token_store import TokenStore
from pretrain.__main__ import main
from pretrain.evaluate.__main__ import main as evaluate
from support.inputs.seeded_source import contents
from support.kept_runs import STEPS_16, config
from support.launching import bit_equal, end_of, lines
from support.places import ROOT
from support.rank_pool import RankPool
from zymogen.settings import extension
from zymogen.trainer.run.directory import RunDirectory

A3M = ("data.format=a3m:A3M", "data.clusters=none")
SHORT = "schedule.total_tokens=2_000"


def aligned(fasta: Path, path: Path) -> Path:
    """The records of a FASTA file as rows of an alignment, with gaps, insertions and ColabFold's first line."""
    rows = ["#60\t1"]
    for record in gzip.decompress(fasta.read_bytes()).decode().split(">")[1:]:
        header, _, letters = record.partition("\n")
        letters = letters.replace("\n", "")
        rows += [f">{header}", f"--{letters[:9]}-{letters[9:20].lower()}..", f"{letters[20:]}-"]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture
def folder(families_files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the example and an alignment; what is imported from there is forgotten."""
    shutil.copy(ROOT / "docs/examples/a3m.py", tmp_path)
    aligned(families_files[0], tmp_path / "x.a3m")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    sys.path.append(str(tmp_path))
    yield tmp_path
    sys.path[:] = before
    for name in ("a3m", "own"):
        sys.modules.pop(name, None)
    extension._hash.cache_clear()


def built(*words: object) -> TokenStore:
    """The store that a command builds in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "data", "build", *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return TokenStore(Path(done.stdout.splitlines()[0].split()[-1]))


def refused(capfd: pytest.CaptureFixture[str], run: Callable[[list[str]], int], *words: object) -> str:
    assert run([str(word) for word in words]) in (2, 78)
    (said,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    return said


def test_a_store_holds_what_that_of_fasta_holds(folder: Path, families_files: tuple[Path, Path]) -> None:
    fasta, own = built(families_files[0]), built("x.a3m", "--format", "a3m:A3M")
    assert (own.fingerprint, own.header(3)) == (fasta.fingerprint, fasta.header(3))
    subprocess.run(["gzip", "-k", "x.a3m"], check=True)
    assert built("x.a3m.gz", "--format", "a3m:A3M").fingerprint == own.fingerprint
    (folder / "a3m.py").write_text((folder / "a3m.py").read_text() + "\n# changed\n")
    assert built("x.a3m", "--format", "a3m:A3M").folder != own.folder


KILLED = """
import os, signal, time
from pathlib import Path
from data.sources.record_format import Entry, RecordFormat

class Own(RecordFormat):
    def records(self, file, name):
        with open("log", "a") as log:
            log.write("begun\\n")
        for number, line in enumerate(file):
            if number == 3000:
                time.sleep(1.1)  # so that the first block is committed
            if number == 6000 and not Path("killed").exists():
                Path("killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield Entry(b"p%d" % number, line)
"""


def test_a_killed_build_is_resumed_to_the_same_bytes(folder: Path) -> None:
    (folder / "own.py").write_text(KILLED)
    letters = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", np.uint8)
    rows = letters[np.random.default_rng(0).integers(0, 20, (9000, 60))]
    (folder / "x.rows").write_bytes(b"".join(row.tobytes() + b"\n" for row in rows))
    words = [sys.executable, "-m", "data", "build", "x.rows", "--format", "own:Own", "--output", "store"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(words, env=environment, capture_output=True).returncode == -signal.SIGKILL
    journal = (folder / "store/progress.json").read_text()
    assert '"num_read": 4096' in journal  # a block was committed
    resumed = built(*words[4:])
    assert (folder / "log").read_text().split() == ["begun", "begun"]
    assert contents(resumed.folder) == contents(built(*words[4:-1], "whole").folder)
    assert np.array_equal(resumed.num_residues(np.arange(9000)), np.full(9000, 60))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("MKT\n", "cannot be read as A3M, before the first record: line 1 is b'MKT', where the first row begins with"),
        ("", "no A3M record in it (empty file)"),
        (">a\nMK1T\n", "record 1 ('a') has '1' at residue 3, which is no amino acid letter"),
    ],
)
def test_a_broken_file_is_one_error(folder: Path, capfd: pytest.CaptureFixture[str], text: str, said: str) -> None:
    (folder / "y.a3m").write_text(text)
    assert f"error: y.a3m: {said}" in refused(capfd, data_main, "build", "y.a3m", "--format", "a3m:A3M")


OWN = """
from data.sources.record_format import Entry, RecordFormat

class Strings(RecordFormat):
    def records(self, file, name):
        yield Entry(b"p1", b"MKT")
        yield Entry("p2", "MKT")

class Broken(RecordFormat):
    def records(self, file, name):
        yield Entry(b"p1", b"MKT")
        raise KeyError("a key of record 2")

class NoFormat:
    pass
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("own:Strings", "x.a3m: cannot be read as Strings, after record 1 ('p1'): records() gave Entry(header='p2'"),
        ("own:Broken", "x.a3m: cannot be read as Broken, after record 1 ('p1'): a key of record 2; if it is of that"),
        ("own:NoFormat", "it must be a class derived from data.sources.record_format.RecordFormat"),
        ("own:Missing", "own.py has no Missing"),
        ("nowhere:A3M", "nowhere cannot be imported: ModuleNotFoundError"),
        ("a3m", "data.format is 'a3m'; allowed are 'auto', or package.module:Class for a class of your own"),
    ],
)
def test_a_wrong_class_is_refused(folder: Path, capfd: pytest.CaptureFixture[str], name: str, said: str) -> None:
    (folder / "own.py").write_text(OWN)
    assert said in refused(capfd, data_main, "build", "x.a3m", "--format", name)


def test_settings_that_need_each_other() -> None:
    own = {"sources": ("x.a3m",), "format": "a3m:A3M"}
    assert DataSettings(**own, streaming=True).format == MixedCorpus(**own).format == "a3m:A3M"
    with pytest.raises(ValueError, match=r"data\.format_options is .*only a class of your own reads it"):
        CorpusSettings(sources=("x.fasta",), format_options={"a": 1})
    with pytest.raises(ValueError, match=r"write format into the tables \[\[data\.mixture\]\]"):
        DataSettings(format="a3m:A3M", mixture=(MixedCorpus(sources=("x.fasta",)),))


def test_a_run_records_the_class_and_is_read_without_it(
    folder: Path, recipe_in: Callable[[Path], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    recipe = recipe_in(folder)
    sys.path.remove(str(folder))  # the folder of the recipe is searched without it
    words = [str(recipe), "data.sources=x.a3m", *A3M, SHORT]
    assert "there is no setting 'gaps'" in refused(capfd, main, *words, "data.format_options.gaps=1")
    said = refused(capfd, main, *words, "data.format_options.max_gap_fraction=0.0")
    assert "% gaps; raise data.format_options.max_gap_fraction" in said
    assert main([*words, "data.format_options.max_gap_fraction=0.5"]) == 0
    run = folder / "run"
    code = hashlib.sha256((folder / "a3m.py").read_bytes()).hexdigest()
    assert RunDirectory(run).read().code == {"data.format": code} == lines(run / "attempts.jsonl")[0]["code"]
    (folder / "a3m.py").unlink()
    sys.modules.pop("a3m")
    capfd.readouterr()
    assert evaluate([str(run), "--data", str(run)]) == 0
    for facts in list(folder.rglob("store.json")):
        shutil.rmtree(facts.parent)
    said = refused(capfd, evaluate, run, "--data", run)
    assert "x.a3m: not fetched, as the file of a run names it and its class" in said


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
@pytest.mark.parametrize("streaming", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_two_ranks_with_loader_workers_are_killed_and_resumed(
    pool: RankPool,
    recipe_in: Callable[[Path], Path],
    families_files: tuple[Path, Path],
    tmp_path: Path,
    streaming: str,
) -> None:
    ended = []
    for name in ("whole", "killed"):
        folder = tmp_path / name
        words = [recipe_in(folder), *A3M, *STEPS_16, "run.checkpoint_every=5", "data.workers=2"]
        words += [f"data.sources={aligned(families_files[0], folder / 'x.a3m')}", f"data.streaming={streaming}"]
        shutil.copy(ROOT / "docs/examples/a3m.py", folder)
        if name == "killed":
            metrics = folder / "run/metrics.jsonl"

            def past_a_checkpoint(folder: Path = folder, metrics: Path = metrics) -> bool:
                has_one = any(folder.glob("run/checkpoints/step-*"))
                return has_one and any(line["step"] >= 6 for line in lines(metrics))

            pool.run_and_kill(2, config("ddp"), [*words, "run.log_every=1"], past_a_checkpoint)
        done = pool.run(2, config("ddp"), words)
        assert done.status == 0, done.output
        ended.append(end_of(folder / "run"))
    assert bit_equal(*ended)
