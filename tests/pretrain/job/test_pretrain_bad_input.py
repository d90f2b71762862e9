"""Bad input: one error that names file, record and what to do; and the corrected command works at once."""

import fcntl
import gzip
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from data.alphabet import STANDARD_RESIDUES
from pretrain.__main__ import main
from support.launching import end_of, launch, lines
from zymogen.trainer.engine.engine import Engine


def proteins(count: int = 60, seed: int = 0) -> str:
    rng = np.random.default_rng(seed)
    each = ("".join(rng.choice(list(STANDARD_RESIDUES), rng.integers(20, 60))) for _ in range(count))
    return "".join(f">p{i} protein\n{letters}\n" for i, letters in enumerate(each))


GOOD = proteins()


class Command:
    """A recipe on one FASTA file, and what the program says about it."""

    def __init__(self, recipe: Path, capsys: pytest.CaptureFixture) -> None:
        self.folder = recipe.parent
        self.fasta = self.folder / "my.fasta"
        self.run = self.folder / "run"
        self.words = [str(recipe), f"data.sources=['{self.fasta}']", "data.clusters=none", "schedule.total_tokens=900"]
        self.capsys = capsys

    def works(self, *more: str) -> None:
        status = main([*self.words, *more])
        assert (status, self.errors()) == (0, [])
        assert (self.run / "export/model.safetensors").exists()

    def refused(self, *more: str) -> str:
        """The one error of a command that fails."""
        assert main([*self.words, *more]) == 78
        (error,) = self.errors()
        return error.removeprefix("error: ")

    def errors(self) -> list[str]:
        said = self.capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        of_this_start = [line for line in said.err.splitlines() if not line.startswith("the last start (attempt ")]
        return [line for line in of_this_start if "error" in line.lower()]

    def attempts(self) -> list[dict]:
        return lines(self.run / "attempts.jsonl")


@pytest.fixture
def command(recipe_in, tmp_path: Path, capsys: pytest.CaptureFixture) -> Command:
    command = Command(recipe_in(tmp_path), capsys)
    command.fasta.write_text(GOOD)
    return command


def cut_gzip() -> bytes:
    packed = gzip.compress(proteins(400).encode())
    return packed[: len(packed) // 2]


BAD_FASTA: dict[str, tuple[bytes, list[str]]] = {
    "empty": (b"", ["no FASTA record in it (empty file)", "remove it from data.sources or fill it"]),
    "not FASTA": (b"HEADER  HYDROLASE\n", ["not FASTA", "'HEADER  HYDROLASE'", "starts with '>'"]),
    "no sequence": (b">p1\nMKT\n>p2 lost\n>p3\nGG\n", ["record 2 ('p2 lost') has no sequence", "remove the record"]),
    "cut gzip": (cut_gzip(), ["gzip stream ends early", "record", "copy or download it again"]),
    "letter": (
        b">p1\nMKT\n>p2\nGG1G\n",
        ["record 2 ('p2') has '1' at residue 3", "correct the record", "data.unknown_letters = 'count'"],
    ),
}


REST = [pytest.param(case, marks=pytest.mark.slow) for case in ("empty", "not FASTA", "no sequence")]


@pytest.mark.parametrize("case", ["letter", "cut gzip", *REST])
def test_bad_fasta(case: str, command: Command) -> None:
    content, words = BAD_FASTA[case]
    command.fasta.write_bytes(content)
    error = command.refused()
    assert error.startswith(f"{command.fasta}: ")
    for word in words:
        assert word in error
    stores = command.folder / "stores"
    assert not stores.exists() or list(stores.iterdir()) == []
    assert not command.run.exists()  # as if that start had not been

    command.fasta.write_text(GOOD)
    command.works()
    assert end_of(command.run).tokens_seen >= 900
    command.fasta.unlink() if content is None else command.fasta.write_bytes(content)
    assert command.refused() == error
    command.fasta.write_text(GOOD)
    command.works()
    assert [line.get("exit", line.get("cause")) for line in command.attempts()] == [
        "fresh",
        "finished",
        "continued: attempt 1 ended as finished",
        "input",
        "continued: attempt 2 ended as input",
        "finished",
    ]


def test_a_file_that_does_not_exist_leaves_nothing(command: Command) -> None:
    command.fasta.unlink()
    error = command.refused()
    assert error.startswith(f"on the command line, {shlex.quote(command.words[1])[:60]}")
    assert f"{command.fasta}: No such file or directory; check data.sources" in error
    assert [path.name for path in command.folder.iterdir()] == ["recipe.toml"]

    command.fasta.write_text(GOOD)
    command.works()
    assert [line.get("exit", line.get("cause")) for line in command.attempts()] == ["fresh", "finished"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("run.sede=1", "there is no setting 'run.sede'; the nearest is 'run.seed'"),
        ("schedule.total_tokens=many", "schedule.total_tokens is 'many': Input should be a valid integer"),
        ("run.log_every=0", "run.log_every is 0; it must be at least 1"),
    ],
)
def test_a_mistake_in_the_recipe_touches_nothing(wrong: str, said: str, command: Command) -> None:
    error = command.refused(wrong)
    assert error.startswith(f"on the command line, {wrong}: {said}")
    assert not command.run.exists()


def test_a_validation_without_a_target_is_found_before_the_first_step(command: Command) -> None:
    command.fasta.write_text("".join(f">p{n}\n{'X' * n}\n" for n in range(1, 60)))  # X is no target
    said = command.refused("run.validation_sequences=1")
    assert said.startswith("no residue of the 1 validation protein is a target that is scored, so the run ")
    assert said.endswith(": raise data.validation_fraction, or set it to 0, which holds out none")
    assert not command.run.exists()


@pytest.mark.parametrize(
    ("wrong", "right", "said"),
    [
        ("model.preset=esm2_9m", "model.preset=esm2_60k", "model.preset is 'esm2_9m'; the nearest is 'esm2_8m'"),
        (
            "data.validation_fraction=1e-6",
            "data.validation_fraction=0.1",
            "of 60 clusters (60 records) leaves 0 records for validation and 60 for training; change the fraction",
        ),
        ("data.sources=['absent/*.fasta']", "run.log_every=1", "absent/*.fasta: no file matches this pattern; check"),
        ("data.sources=['synthetic:x']", "run.log_every=1", "'synthetic:x' needs a whole number as seed"),
    ],
)
def test_a_mistake_found_after_the_start_does_not_block_its_correction(
    wrong: str, right: str, said: str, command: Command
) -> None:
    assert said in command.refused(wrong)
    command.works(right)


@pytest.mark.slow
def test_the_directory_of_another_run(command: Command) -> None:
    command.works()
    end = end_of(command.run)
    error = command.refused("run.seed=1", "optimizer.betas=[0.9,0.95]")
    assert error.startswith(f"{command.run} is the output directory of another run: run.seed was 0, is 1; ")
    assert "optimizer.betas was [0.9, 0.98], is [0.9, 0.95]" in error
    assert "Choose another run.directory, or restore these settings" in error
    assert "optimizer.weight_decay was 0.01, is 0.0" in command.refused("optimizer.weight_decay=0.0")
    assert len(command.attempts()) == 2
    command.works("run.log_every=3", "data.bins_per_forward=2")  # operational
    assert (end_of(command.run).chain, end_of(command.run).step) == (end.chain, end.step)


@pytest.mark.slow
def test_another_schedule_is_asked_for_by_name(command: Command) -> None:
    command.works()
    step = end_of(command.run).step
    error = command.refused("schedule.total_tokens=3_000")
    assert "schedule.total_tokens was 900, is 3000" in error
    assert "--allow-schedule-change" in error
    command.works("schedule.total_tokens=3_000", "--allow-schedule-change")
    assert end_of(command.run).step > step
    assert "run.seed was 0, is 1" in command.refused("run.seed=1", "--allow-schedule-change")
    assert "schedule.total_tokens was 3000, is 900" in command.refused()


def test_a_schedule_binds_from_the_first_step_on(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command.works()
    changed = ["schedule.total_tokens=3_000", "--allow-schedule-change"]
    command.fasta.write_text("")
    assert "no FASTA record in it" in command.refused(*changed)
    command.fasta.write_text(GOOD)
    monkeypatch.setattr(Engine, "warm_up", _no_memory)  # later: corpus, model and checkpoint are at hand
    assert main([*command.words, *changed]) == 70
    assert "out of memory" in command.capsys.readouterr().err
    assert json.loads((command.run / "run.json").read_text())["recipe"]["schedule"]["total_tokens"] == 900
    command.works()  # the recipe that was trained is the run's still


def _no_memory(*_: object) -> None:
    raise RuntimeError("out of memory")


def test_a_folder_that_is_no_run(command: Command) -> None:
    thesis = command.run / "thesis.txt"
    command.run.mkdir()
    thesis.write_text("years of work")
    assert command.refused().startswith(f"{command.run} exists and is not a run directory (it has no run.json); choose")
    assert [path.name for path in command.run.iterdir()] == ["thesis.txt"]
    thesis.unlink()
    command.works()


def test_a_file_in_place_of_the_folder(command: Command) -> None:
    command.run.write_text("years of work")
    assert command.refused() == f"{command.run} is a file; choose another run.directory"
    assert command.run.read_text() == "years of work"


def test_a_run_json_of_another_program(command: Command) -> None:
    command.run.mkdir()
    (command.run / "run.json").write_text('{"format": "other/3"}')
    assert "run.json has the format 'other/3'; 'zymogen.run/2' is read" in command.refused()
    (command.run / "run.json").write_text("{")
    assert f"{command.run / 'run.json'} is no record of a run: JSONDecodeError" in command.refused()


def test_files_of_names_like_ours_in_a_folder_that_is_no_run(command: Command) -> None:
    command.run.mkdir()
    theirs = {"run.lock": "held by me", "run.tmp": "years of work"}
    for name, content in theirs.items():
        (command.run / name).write_text(content)
        assert "exists and is not a run directory" in command.refused()
        assert {path.name: path.read_text() for path in command.run.iterdir()} == {name: content}
        (command.run / name).unlink()
    (command.run / "run.lock").write_text(theirs["run.lock"])
    (command.run / "run.json").write_text('{"format": "other/3"}')
    assert "'zymogen.run/2' is read" in command.refused()
    assert (command.run / "run.lock").read_text() == theirs["run.lock"]


@pytest.fixture
def lock_held() -> Iterator[Callable[[Path], Callable[[], None]]]:
    files = []

    def hold(folder: Path) -> Callable[[], None]:
        folder.mkdir(exist_ok=True)
        files.append((folder / "run.lock").open("w"))
        fcntl.flock(files[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        return files[-1].close

    yield hold
    for file in files:
        file.close()


@pytest.mark.slow
@pytest.mark.parametrize("fresh", [True, False])
def test_another_process_trains_here(fresh: bool, command: Command, lock_held: Callable) -> None:
    if not fresh:
        command.works()
    release = lock_held(command.run)
    error = command.refused()
    assert error.startswith(f"{command.run}: another process trains in this directory; wait for it")
    assert len(command.attempts()) == (0 if fresh else 2)
    release()
    command.works()


def test_the_lock_ends_with_the_run(command: Command, lock_held: Callable) -> None:
    command.works()
    lock_held(command.run)()
    command.fasta.write_text("")
    command.refused()
    lock_held(command.run)()


@pytest.mark.slow
def test_the_corpus_changed_under_a_run(command: Command) -> None:
    command.works()
    end = end_of(command.run)
    command.fasta.write_text(GOOD + ">new\nMKTAYIAK\n")
    error = command.refused("schedule.total_tokens=3_000", "--allow-schedule-change")
    assert f"{command.run} was started on other data: its fingerprint was " in error
    assert "restore the files and what divides them (MMseqs2 too, or its absence), or choose another" in error
    assert end_of(command.run).step == end.step
    command.fasta.write_text(GOOD.replace("\n", "\r\n"))  # the same proteins
    command.works("schedule.total_tokens=3_000", "--allow-schedule-change")
    assert end_of(command.run).step > end.step


def test_another_split_under_a_run(command: Command) -> None:
    command.works()
    table = command.folder / "clusters.tsv"
    table.write_text("".join(f"c{i // 3}\tp{i}\n" for i in range(60)))
    assert "on other data: its split was " in command.refused(f"data.clusters={table}")


@pytest.mark.launch
def test_two_processes_say_it_once(command: Command) -> None:
    command.works()  # once it has trained, each start is recorded
    command.fasta.write_text(">p1\nMKT\n>p2\nGG1G\n")
    done = launch(command.words, 2)
    assert done.status != 0
    (error,) = done.errors()
    assert f"{command.fasta}: record 2 ('p2') has '1' at residue 3" in error
    assert "PeerError" not in done.output
    assert done.output.splitlines()[-2] == error  # which torchrun repeats, as the other rank waits for rank 0 to end
    assert done.output.count("Traceback (most recent call last)") == 1  # the launcher's
    assert not re.search(r"^rank \d", done.output, re.MULTILINE)

    (said,) = lines(command.run / "ranks/rank-00000.jsonl")
    assert (said["rank"], said["attempt"], said["phase"], said["class"]) == (0, 2, "start", "input")
    assert (said["error"], said["message"]) == ("ValueError", error.removeprefix("error: "))
    assert said["traceback"].startswith("Traceback")
    assert "data/store/build.py" in said["traceback"]
    (peer,) = lines(command.run / "ranks/rank-00001.jsonl")
    assert (peer["rank"], peer["class"], peer["error"]) == (1, "peer", "PeerError")
    assert said["message"] in peer["message"]
    assert [line.get("exit") for line in command.attempts()] == [None, "finished", None, "input"]
    command.fasta.write_text(GOOD)
    command.works()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("run.directory={file}/run", ["my.fasta/run", "choose another run.directory"]),
        ("data.store_dir={file}/stores", ["my.fasta/stores", "choose another data.store_dir"]),
        ("data.clusters={folder}", ["is no file", "data.clusters"]),
        ("data.sources=['{folder}']", ["is a folder, and no finished token store"]),
    ],
)
def test_paths_that_cannot_be_used(setting: str, words: list[str], command: Command) -> None:
    command.fasta.write_text(GOOD)
    error = command.refused(setting.format(file=command.fasta, folder=command.folder))
    assert [w for w in words if w not in error] == []


def test_a_start_that_died_while_it_described_itself_is_no_obstacle(command: Command) -> None:
    command.run.mkdir()
    (command.run / "run.lock").touch()
    (command.run / ".run.json.zymogen-new").write_text("{")
    command.works()


@pytest.mark.slow
def test_a_checkpoint_of_another_run_is_not_continued(command: Command) -> None:
    other = f"run.directory={command.folder}/other"
    command.works()
    command.works(other, "run.seed=1")
    for mine in (command.run / "checkpoints").iterdir():
        shutil.rmtree(mine)
    for theirs in (command.folder / "other/checkpoints").iterdir():
        theirs.rename(command.run / "checkpoints" / theirs.name)
    error = command.refused()
    assert "was written by another run: its identity is" in error
    assert "remove it, or choose another run.directory" in error
