"""A run of fine-tuning is killed and continued to the same bytes, in any world; and only with what it began with."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.assays.small_run import Rows, changed, write
from support.jobs import fine_tuning_job
from support.kept_runs import STEP_1, Trained, config
from support.launching import bit_equal, end_of, largest_difference, lines
from support.rank_pool import RankPool
from zymogen.trainer.checkpoint.best import best_valid

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("finetune")]

PROGRAM = fine_tuning_job.__name__
LORA = ("adaptation.kind=lora",)


@pytest.fixture(scope="module")
def tuned(pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(pool, write, tmp_path_factory, program=PROGRAM)


def best_of(run: Path) -> tuple[str, dict[str, bytes]]:
    """Name and files of the best checkpoint."""
    found = best_valid(run / "checkpoints")
    assert found is not None
    weights = found.path / "model"
    return found.path.name, {path.name: path.read_bytes() for path in sorted(weights.iterdir())}


def validations(run: Path) -> dict[int, object]:
    return {line["step"]: line["validation"] for line in lines(run / "metrics.jsonl") if "validation" in line}


@pytest.mark.parametrize(
    ("engine", "processes", "words"),
    [
        ("single", 1, ()),
        *(pytest.param(engine, 2, (), marks=pytest.mark.prove) for engine in ("fsdp2", "zero3")),
        *(pytest.param(engine, 3, LORA, marks=pytest.mark.prove) for engine in ("ddp", "fsdp2")),
        pytest.param("zero2", 2, ("adaptation.kind=full",), marks=pytest.mark.prove),
    ],
)
def test_killed_and_continued_it_ends_at_the_same_bytes_with_the_same_best(
    pool: RankPool, tuned: Trained, tmp_path: Path, engine: str, processes: int, words: tuple[str, ...]
) -> None:
    whole = tuned(engine, processes, words, ())
    run, all_words = tmp_path / "run", [write(tmp_path), *words]

    def is_in_the_middle() -> bool:
        taken = [line for line in lines(run / "metrics.jsonl") if "loss" in line]
        return len(taken) >= 11 and any(run.glob("checkpoints/step-*"))

    pool.run_and_kill(processes, config(engine), all_words, is_in_the_middle, program=PROGRAM)
    assert end_of(run).step in (8, 10, 12)
    resumed = pool.run(processes, config(engine), all_words, program=PROGRAM)
    assert resumed.status == 0, resumed.output
    assert f"continuing {run} at step " in resumed.outputs[0]
    assert bit_equal(end_of(run), whole.end)
    assert best_of(run) == best_of(whole.folder / "run")
    assert validations(run) == validations(whole.folder / "run")


@pytest.fixture(scope="module")
def in_the_middle(tuned: Trained) -> Callable[[Path, tuple[str, ...]], list[object]]:
    """Copies a run that was stopped after 5 steps, and gives the words that continue it."""

    def copy(folder: Path, words: tuple[str, ...]) -> list[object]:
        stopped = tuned("single", 1, words, ("schedule.total_tokens=3_500",))
        shutil.copytree(stopped.folder, folder, dirs_exist_ok=True)
        return [write(folder), *words, "--allow-schedule-change"]

    return copy


def refused(pool: RankPool, words: list[object]) -> str:
    """The one error of a start that is refused."""
    done = pool.run(1, config("single"), words, program=PROGRAM)
    assert done.status == 78, done.output
    (error,) = [line for line in done.output.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in done.output
    return error


@pytest.mark.parametrize("kind", ["frozen", pytest.param("lora", marks=pytest.mark.prove)])
def test_other_base_weights_are_refused_with_both_hashes(
    pool: RankPool, trained: Trained, in_the_middle: Callable, tmp_path: Path, kind: str
) -> None:
    """Features of a frozen encoder that were cached are those of its weights."""
    base, other = (trained("single", 1, (f"run.seed={seed}",), STEP_1).folder / "run/export" for seed in (1, 2))
    shutil.copytree(base, tmp_path / "base")
    words = in_the_middle(
        tmp_path / "tuned", (f"model.init={tmp_path}/base", "model.preset=none", f"adaptation.kind={kind}")
    )
    shutil.rmtree(tmp_path / "base")
    shutil.copytree(other, tmp_path / "base")
    error = refused(pool, words)
    assert "was trained on other frozen parameters, which it does not hold" in error
    assert len(set(re.findall("[0-9a-f]{64}", error))) == 2


def without_the_first_label(rows: Rows) -> Rows:
    first = next(number for number, row in enumerate(rows) if row["binds"])
    return changed(first, {"binds": ""})(rows)


def with_another_sequence(rows: Rows) -> Rows:
    without = next(number for number, row in enumerate(rows) if not row["state"])
    return changed(without, {"sequence": "MKTAYIAKQRQISFVKSHFSRQ"})(rows)


OTHER = {
    "a label": (changed(1, {"binds": "yes"}), (), "its fingerprint was"),
    "a label less": (without_the_first_label, (), "its fingerprint was"),
    "a residue": (with_another_sequence, (), "its fingerprint was"),
    "the split": (lambda rows: rows, ("split.seed=1",), "split.seed was 0, is 1"),
}


@pytest.mark.parametrize("what", OTHER)
def test_other_data_are_refused(pool: RankPool, in_the_middle: Callable, tmp_path: Path, what: str) -> None:
    change, words, said = OTHER[what]
    continues = in_the_middle(tmp_path, ())
    write(tmp_path, change)
    error = refused(pool, [*continues, *words])
    assert error.startswith(f"error: {tmp_path / 'run'} ")
    assert said in error
    assert error.endswith("or choose another run.directory") or "Choose another run.directory" in error
    write(tmp_path)
    assert pool.run(1, config("single"), continues, program=PROGRAM).status == 0
    assert end_of(tmp_path / "run").step > 10


def test_a_run_continues_in_another_world(
    pool: RankPool, tuned: Trained, in_the_middle: Callable, tmp_path: Path
) -> None:
    """And ends where the others end."""
    words = in_the_middle(tmp_path, LORA)
    done = pool.run(2, config("zero3"), words, program=PROGRAM)
    assert done.status == 0, done.output
    whole = tuned("single", 1, LORA, ())
    assert end_of(tmp_path / "run").chain == whole.end.chain
    assert largest_difference(end_of(tmp_path / "run"), whole.end) < 5e-6


def test_a_run_continues_on_the_same_rows_in_another_order(
    pool: RankPool, tuned: Trained, in_the_middle: Callable, tmp_path: Path
) -> None:
    words = in_the_middle(tmp_path, ())
    write(tmp_path, lambda rows: rows[::-1])
    done = pool.run(1, config("single"), words, program=PROGRAM)
    assert done.status == 0, done.output
    assert bit_equal(end_of(tmp_path / "run"), tuned("single", 1, (), ()).end)
