"""An optimizer of the user, named in a recipe: trained, resumed, refused where it cannot be saved or has changed."""

import hashlib
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pretrain.__main__ import main
from pretrain.recipe import Recipe
from support.kept_runs import STEPS_16, config
from support.launching import bit_equal, end_of, lines
from support.places import ROOT
from support.rank_pool import RankPool
from zymogen.settings import extension
from zymogen.settings.extension import require_same_code
from zymogen.settings.toml_file import read
from zymogen.trainer.run.directory import RunDirectory

EXAMPLES = ROOT / "docs/examples"
LION = ("optimizer.name=lion:Lion", "optimizer.options.beta2=0.95")
SHORT = "schedule.total_tokens=2_000"


@pytest.fixture
def recipe(recipe_in: Callable[[Path], Path], tmp_path: Path) -> Iterator[Path]:
    """A recipe, with the examples beside it; what is imported from there is forgotten."""
    path = recipe_in(tmp_path)
    for name in ("lion", "adafactor"):
        shutil.copy(EXAMPLES / f"{name}.py", tmp_path)
    before = list(sys.path)
    yield path
    sys.path[:] = before
    for name in ("lion", "adafactor"):
        sys.modules.pop(name, None)
    extension._hash.cache_clear()


def refusal(capfd: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(list(map(str, words))) == 78
    (said,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    return said


def test_one_moment_is_kept_and_the_file_is_part_of_the_run(
    recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([str(recipe), *LION, SHORT]) == 0
    run = tmp_path / "run"
    end = end_of(run)
    assert {name.partition("/")[0] for name in end.tensors if "/" in name} == {"exp_avg"}
    code = {"optimizer.name": hashlib.sha256((tmp_path / "lion.py").read_bytes()).hexdigest()}
    record = RunDirectory(run).read()
    assert record.code == code == lines(run / "attempts.jsonl")[0]["code"]
    elsewhere, other = RunDirectory(tmp_path / "new"), replace(record, code={"optimizer.name": 64 * "0"})
    recipe_read = read(Recipe, recipe, [*LION, SHORT])
    elsewhere.require_same(recipe_read, False, record)  # as on a machine that has the run from its object store
    with pytest.raises(ValueError, match=r"lion\.py, the file of optimizer\.name, has changed since the run began"):
        elsewhere.require_same(recipe_read, False, other)
    assert end.step > 2
    longer = (recipe, *LION, "schedule.total_tokens=3_000", "--allow-schedule-change")
    (tmp_path / "lion.py").write_text((tmp_path / "lion.py").read_text() + "\n# changed\n")
    extension._hash.cache_clear()  # as in a new process
    said = refusal(capfd, *longer)
    assert "lion.py, the file of optimizer.name, has changed since the run began: its SHA-256 was" in said
    assert "--allow-code-change" in said
    assert main([*map(str, longer), "--allow-code-change"]) == 0
    assert end_of(run).step > end.step
    trained_by = RunDirectory(run).read().code
    (tmp_path / "lion.py").write_text((tmp_path / "lion.py").read_text() + "\n# again\n")
    extension._hash.cache_clear()
    assert main([*map(str, longer), "--allow-code-change"]) == 0  # nothing is left to train
    assert RunDirectory(run).read().code == trained_by
    said = refusal(capfd, recipe, LION[0], "optimizer.options.beta2=0.9", "schedule.total_tokens=3_000")
    assert "optimizer.options.beta2 was 0.95, is 0.9" in said
    said = refusal(capfd, recipe, LION[0], "schedule.total_tokens=3_000")
    assert "optimizer.options.beta2 was 0.95, is None" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["optimizer.name=adamww"],
            "optimizer.name is 'adamww'; the nearest is 'adamw', allowed are 'adamw', 'muon', or",
        ),
        (["optimizer.name=nowhere:Lion"], "nowhere cannot be imported: ModuleNotFoundError: No module named"),
        (["optimizer.name=lion:Tiger"], "lion.py has no Tiger; correct the name, or write the class"),
        (
            ["optimizer.name=lion:_Lion"],
            "it must be a class derived from zymogen.trainer.optimizer.kinds.OptimizerKind",
        ),
        (
            [LION[0], "optimizer.options.gamma=1"],
            "on the command line, optimizer.options.gamma=1: there is no setting 'optimizer.options.gamma'; the ",
        ),
        (
            [LION[0], "optimizer.options.beta1=2"],
            "line, optimizer.options.beta1=2: optimizer.options.beta1 is 2.0; it must lie in [0, 1)",
        ),
        (["optimizer.options.beta1=0.5"], "only a class of your own reads it, and optimizer.name is 'adamw'"),
        (
            ["optimizer.name=adafactor:Adafactor"],
            "a checkpoint holds a step and tensors of the parameter's shape alone",
        ),
    ],
)
def test_what_is_refused(recipe: Path, capfd: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert said in refusal(capfd, recipe, *words, SHORT)


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
@pytest.mark.parametrize("engine", ["ddp", pytest.param("fsdp2", marks=pytest.mark.slow)])
def test_killed_and_resumed_it_ends_bit_equal(
    pool: RankPool, recipe_in: Callable[[Path], Path], tmp_path: Path, engine: str
) -> None:
    ended = []
    for name in ("whole", "killed"):
        folder = tmp_path / name
        words = [recipe_in(folder), *LION, *STEPS_16, "run.checkpoint_every=5", "data.workers=2"]
        shutil.copy(EXAMPLES / "lion.py", folder)
        if name == "killed":
            metrics = folder / "run/metrics.jsonl"

            def past_a_checkpoint(folder: Path = folder, metrics: Path = metrics) -> bool:
                has_one = any(folder.glob("run/checkpoints/step-*"))
                return has_one and any(line["step"] >= 6 for line in lines(metrics))

            pool.run_and_kill(2, config(engine), [*words, "run.log_every=1"], past_a_checkpoint)
        done = pool.run(2, config(engine), words)
        assert done.status == 0, done.output
        ended.append(end_of(folder / "run"))
    assert bit_equal(*ended)


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short(example: Path) -> None:
    assert len(example.read_text().splitlines()) <= (100 if example.stem in ("counts", "replaced") else 60)


COUNTS = '''
import torch
from zymogen.trainer.optimizer.kinds import MuonKind, OptimizerKind

class Counting(torch.optim.SGD):
    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            group["d"] += 1

class InAGroup(OptimizerKind):
    def build(self, groups):
        return Counting([{**group, "d": 0} for group in groups], lr=0.0)

class Own(MuonKind):
    """Ours, derived from."""
'''


@pytest.fixture
def counts(recipe: Path, tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "counts.py").write_text(COUNTS)
    yield recipe
    sys.modules.pop("counts", None)


def test_state_in_groups_is_refused_and_ours_may_be_derived_from(
    counts: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capfd, counts, "optimizer.name=counts:InAGroup", SHORT)
    assert "which changes 'd' of a group; a checkpoint holds a step and tensors" in said
    assert main([str(counts), "optimizer.name=counts:Own", SHORT]) == 0


def test_errors_of_the_users_module_are_shown(counts: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.py").write_text("import torch\ntorch.nn.Foo\n")
    said = refusal(capfd, counts, "optimizer.name=broken:Lion", SHORT)
    assert "broken cannot be imported: AttributeError: module 'torch.nn' has no attribute 'Foo'" in said
    said = refusal(capfd, counts, "optimizer.name=nowhere.lion:Lion", SHORT)
    assert "nowhere.lion cannot be imported: ModuleNotFoundError: No module named 'nowhere'" in said


def test_a_module_of_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a run is started without a recipe file, by a program that has no folder in its path."""
    (tmp_path / "only_here.py").write_text("class Own(dict): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert extension.load("optimizer.name", "only_here:Own", dict, {}).__name__ == "Own"
    sys.modules.pop("only_here")


def test_ranks_with_other_files_are_refused() -> None:
    require_same_code([{"optimizer.name": "a"}, {"optimizer.name": "a"}])
    with pytest.raises(ValueError, match=r"rank 1 has another file for optimizer\.name than rank 0"):
        require_same_code([{"optimizer.name": "a"}, {"optimizer.name": "b"}])


def test_nested_options_are_compared(recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nested.py").write_text(
        "from dataclasses import dataclass\nfrom typing import Any, ClassVar\n\nimport torch\n\n"
        "from zymogen.settings.section import IDENTITY, Section, setting\n"
        "from zymogen.trainer.optimizer.kinds import AdamWKind\n\n\n"
        "@dataclass(frozen=True, kw_only=True, slots=True)\nclass Options(Section):\n"
        '    section: ClassVar = "optimizer.options"\n    of: dict[str, Any] = setting(IDENTITY, "anything", {})\n\n\n'
        "class Own(AdamWKind):\n    Options = Options\n"
    )
    words = [str(recipe), "optimizer.name=nested:Own", SHORT]
    assert main([*words, "optimizer.options.of.a=1"]) == 0
    said = refusal(capfd, *words, "optimizer.options.of.a=2")
    assert "optimizer.options.of.a was 1, is 2" in said
    sys.modules.pop("nested", None)
