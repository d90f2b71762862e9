"""Sequences in place of a recipe: what is proposed is written, said, trained and continued, on one process and two."""

import re
import shutil
import tomllib
from pathlib import Path

import pytest

from pretrain.proposal.options import ProposalOptions
from pretrain.recipe import Recipe
from support.kept_runs import config
from support.launching import bit_equal, end_of, lines
from support.rank_pool import Ended, RankPool
from zymogen.settings.toml_file import read

LONG = ("--minutes", "0.03")
SHORT = ("schedule.total_tokens=8_000", *LONG)


def words(folder: Path, fasta: Path, clusters: Path, *more: str) -> list[str]:
    given = [f"run.directory={folder / 'run'}", f"data.store_dir={folder / 'stores'}", f"data.clusters={clusters}"]
    return [str(fasta), *given, *more]


@pytest.fixture
def started(pool: RankPool, families_files: tuple[Path, Path], tmp_path: Path):
    """Starts the program on the small corpus, with `more` words."""

    def start(processes: int, *more: str, folder: Path = tmp_path) -> Ended:
        engine = "single" if processes == 1 else "ddp"
        return pool.run(processes, config(engine), words(folder, *families_files, *more))

    return start


@pytest.mark.launch
@pytest.mark.canary
def test_a_run_from_sequences_alone(started, pool: RankPool, tmp_path: Path) -> None:
    ended = started(1, *SHORT)
    assert ended.status == 0, ended.output
    assert "modern_60k, 0.065 million parameters" in ended.output
    assert "tokens a second (timed here)" in ended.output
    assert re.search(r"^about \d+ seconds for \d+ steps, of which validation \d+ seconds", ended.output, re.M)
    run = tmp_path / "run"
    assert str(run / "recipe.toml") in ended.output
    assert (run / "export/model.safetensors").is_file()
    end = end_of(run)
    assert end.tokens_seen >= 8_000

    # What is written is what was trained: the timed steps left nothing that the weights depend on.
    again = tmp_path / "again"
    ended = pool.run(1, config("single"), [str(run / "recipe.toml"), f"run.directory={again}"])
    assert ended.status == 0, ended.output
    assert bit_equal(end_of(again), end)


@pytest.mark.launch
def test_two_processes_agree_and_continue(started, tmp_path: Path) -> None:
    ended = started(2, *SHORT)
    assert ended.status == 0, ended.output
    assert not ended.outputs[1]  # one process speaks
    run = tmp_path / "run"
    first = end_of(run)
    text = (run / "recipe.toml").read_text()
    assert tomllib.loads(text)["data"]["bins_per_step"] % 2 == 0

    ended = started(2, "schedule.total_tokens=16_000", "--allow-schedule-change", *LONG)
    assert ended.status == 0, ended.output
    assert f"continuing {run} by {run / 'recipe.toml'}" in ended.output
    assert "proposed for" not in ended.output
    assert end_of(run).step > first.step
    assert (run / "recipe.toml").read_text() == text
    assert [line["base_step"] for line in lines(run / "attempts.jsonl") if "cause" in line] == [0, first.step]

    ended = started(2, *LONG)  # no length is given: it is that of the last start, not that of recipe.toml
    assert ended.status == 0, ended.output
    assert f"{run} has finished at step {end_of(run).step}: nothing is left to train\n" in ended.output


@pytest.mark.launch
def test_a_plan_writes_no_run(started, tmp_path: Path) -> None:
    ended = started(2, "--plan", *SHORT)
    assert ended.status == 0, ended.output
    assert "timed here" in ended.output
    assert f"  recipe    would be written to {tmp_path / 'run/recipe.toml'}\n" in ended.output
    assert not (tmp_path / "run").exists()


@pytest.mark.launch
@pytest.mark.parametrize("copies", [1, 30])
def test_equal_sequences_train_and_claim_nothing(pool: RankPool, tmp_path: Path, copies: int) -> None:
    fasta = tmp_path / "same.fasta"
    fasta.write_text("".join(f">p{n}\nMKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEK\n" for n in range(copies)))
    given = [f"run.directory={tmp_path / 'run'}", f"data.store_dir={tmp_path / 'stores'}"]
    ended = pool.run(1, config("single"), [fasta, *given, *SHORT])
    assert ended.status == 0, ended.output
    assert "all sequences are equal" in ended.output
    assert "that says how well it fits them, and nothing about others" in ended.output
    assert "beats residue frequencies" not in ended.output


def test_mistakes_are_named_before_anything_is_read(pool: RankPool, tmp_path: Path) -> None:
    fasta, run = tmp_path / "a.fasta", tmp_path / "run"
    fasta.write_text(">a\nMKTAYIAK\n")
    at = f"run.directory={run}"
    for arguments, said in (
        ([fasta, at, "model.preset=esm2_9m"], "the nearest is 'esm2_8m'"),
        ([fasta, at, "--minutes", "-1"], "--minutes is -1.0; it must be above 0"),
        ([fasta, at, "data.sources=['b.fasta']"], "name all files one way"),
        (["recipes/quickstart.toml", "--minutes", "3"], "set schedule.total_tokens"),
        (["run.seed=3"], "before settings"),
        ([fasta, at, "peak_lr=1e-3"], "a setting is written with its section, such as schedule.peak_lr=1e-3"),
    ):
        ended = pool.run(1, config("single"), arguments)
        assert (ended.status, len(ended.errors())) == (78, 1), ended.output
        assert said in ended.output
    run.mkdir()
    (run / "run.json").touch()
    ended = pool.run(1, config("single"), [run])
    assert "is the directory of a run, not of sequences" in ended.output
    (run / "run.json").unlink()
    (run / "thesis.doc").touch()
    ended = pool.run(1, config("single"), [fasta, at])
    assert "is not a run directory" in ended.output
    assert [path.name for path in run.iterdir()] == ["thesis.doc"]


@pytest.mark.launch
def test_a_directory_of_other_sources_is_refused(started, pool: RankPool, tmp_path: Path) -> None:
    assert started(1, *SHORT).status == 0
    other = tmp_path / "other.fasta"
    other.write_text(">a\nMKTAYIAK\n")
    ended = pool.run(1, config("single"), [other, f"run.directory={tmp_path / 'run'}"])
    assert ended.status == 78
    assert "choose another for" in ended.output
    shutil.rmtree(tmp_path / "run/checkpoints")
    (tmp_path / "run/recipe.toml").unlink()
    ended = pool.run(1, config("single"), [other, f"run.directory={tmp_path / 'run'}"])
    assert "was started with a recipe" in ended.output


@pytest.mark.parametrize(
    ("sources", "name"),
    [
        (("your.fasta.gz",), "your"),
        (("a/b.c/Proteome_1.2.faa",), "Proteome_1.2"),
        (("proteomes/*.faa.gz",), "proteomes"),
        (("https://x.org/uniref50.fasta.gz?download=1", "b.fasta"), "uniref50_and_1_more"),
        (("synthetic:0",), "synthetic-0"),
        (("datasets://org/name",), "name"),
        (("stores/abc",), "abc"),
        (("....gz",), "run"),
        (("stores.fasta",), "stores_run"),
    ],
)
def test_a_run_is_named_after_its_source(sources: tuple[str, ...], name: str) -> None:
    assert ProposalOptions(sources, (), None).directory == f"runs/{name}"


@pytest.mark.slow
def test_the_written_recipe_is_read(started, tmp_path: Path) -> None:
    assert started(1, *SHORT, "run.seed=3").status == 0
    written = tmp_path / "run/recipe.toml"
    recipe = read(Recipe, written)
    assert recipe.run.seed == 3
    assert recipe.schedule.total_tokens == 8_000
    content = written.read_text()
    assert "# Given by you.\nseed = 3\n" in content
    values = [line for line in content.splitlines() if re.match(r"\w+ = ", line)]
    assert len(values) > 15
    assert all(len(line) <= 120 for line in content.splitlines() if line.startswith("#"))


@pytest.mark.launch
@pytest.mark.parametrize(("engine", "optimizer"), [("fsdp2", "muon"), ("zero3", "adamw")])
def test_engines_that_shard_time_and_train(
    pool: RankPool, families_files: tuple[Path, Path], tmp_path: Path, engine: str, optimizer: str
) -> None:
    ended = pool.run(2, config(engine), words(tmp_path, *families_files, *SHORT))
    assert ended.status == 0, ended.output
    assert "timed here" in ended.output
    assert read(Recipe, tmp_path / "run/recipe.toml").optimizer.name == optimizer
    assert end_of(tmp_path / "run").tokens_seen >= 8_000
