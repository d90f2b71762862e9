"""A mask policy and an objective of the user, named in a recipe: trained, resumed, read, refused."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from data.__main__ import main as data
from data.alphabet import MASK, STANDARD_IDS
from data.batches.masking import BertMask, mask_policy
from data.batches.settings import MaskSettings
from data.corpus.corpora import Corpora
from data.order.plan import Bin
from data.sources.synthetic import Families
from finetune.embed.__main__ import main as embed
from pretrain.__main__ import main
from pretrain.evaluate.__main__ import main as evaluate
from pretrain.export.__main__ import main as export
from pretrain.inspect.__main__ import main as inspect
from pretrain.report.__main__ import main as report
from support.kept_runs import STEPS_16, config
from support.launching import bit_equal, end_of, lines
from support.places import ROOT
from support.rank_pool import RankPool
from zymogen.settings import extension
from zymogen.trainer.run.directory import RunDirectory

EXAMPLES = ROOT / "docs/examples"
SPANS = ("data.mask.name=spans:SpanMask", "data.mask.options.longest=5")
REPLACED = ("objective.name=replaced:ReplacedResidues", "objective.options.replace_prob=0.2")
SHORT = "schedule.total_tokens=2_000"
BAD = '''
import numpy as np
from data.batches.masking import BertMask, MaskPolicy
from pretrain.objective import Objective

class Random(MaskPolicy):
    """It draws anew at each call."""
    def corrupt(self, tokens, bin_, seed):
        return tokens, np.sort(np.random.permutation(len(tokens))[:9]).astype(np.int32)

class Falling(BertMask):
    def corrupt(self, tokens, bin_, seed):
        inputs, targets = super().corrupt(tokens, bin_, seed)
        return inputs, targets[::-1]

class Wide(BertMask):
    def corrupt(self, tokens, bin_, seed):
        inputs, targets = super().corrupt(tokens, bin_, seed)
        return inputs.astype(np.int64), targets
'''


@pytest.fixture
def recipe(recipe_in: Callable[[Path], Path], tmp_path: Path) -> Iterator[Path]:
    """A recipe, with the examples beside it; what is imported from there is forgotten."""
    path = recipe_in(tmp_path)
    for name in ("spans", "replaced"):
        shutil.copy(EXAMPLES / f"{name}.py", tmp_path)
    (tmp_path / "bad.py").write_text(BAD)
    before = list(sys.path)
    yield path
    sys.path[:] = before
    for name in ("spans", "replaced", "bad"):
        sys.modules.pop(name, None)
    extension._hash.cache_clear()


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The corpus of the recipe counts as the embedded one."""
    monkeypatch.setattr(Corpora, "families", Families(num_families=40, members_per_family=4, mean_residues=60))


@pytest.mark.usefixtures("embedded")
@pytest.mark.parametrize("words", [(), SPANS], ids=["bert", "spans"])
def test_no_floor_is_claimed_where_masks_depend_on_each_other(
    recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert main([str(recipe), *words, SHORT]) == 0
    (scores,) = [line["validation"] for line in lines(tmp_path / "run/metrics.jsonl") if "validation" in line]
    said = capfd.readouterr().err
    assert ("floor" in scores["mask_all"]) is not bool(words)
    assert ("floor: not given, as spans:SpanMask masks residues that depend on others" in said) is bool(words)
    assert RunDirectory(tmp_path / "run").read().code.keys() == ({"data.mask.name"} if words else set())


def test_an_objective_is_scored_reported_and_read(
    recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main([str(recipe), *REPLACED, SHORT]) == 0
    (scores,) = [line["validation"] for line in lines(run / "metrics.jsonl") if "validation" in line]
    assert scores.keys() == {"replaced"}
    assert scores["replaced"]["baseline"] == pytest.approx(0.4862, abs=1e-4)  # the entropy of 0.2 x 19/20
    assert 0 < scores["replaced"]["loss"] < 0.8
    assert f"validation loss: replaced {scores['replaced']['loss']:.2f}" in capfd.readouterr().out
    assert report([str(run)]) == 0
    assert "Validation loss" in (run / "report.html").read_text()
    assert not (run / "export").exists()
    for name in ("replaced", "spans"):
        (tmp_path / f"{name}.py").unlink()  # what reads a finished run imports no class of its user
        sys.modules.pop(name, None)
    for command, words in ((export, [run]), (evaluate, [run])):
        assert command(list(map(str, words))) == 78
        assert "was trained by replaced:ReplacedResidues, whose head fills in no residues" in capfd.readouterr().err
    assert data(["digest", str(recipe), "--steps", "0:1", REPLACED[0]]) == 2
    assert "a class of your own, which fills bins as only a run knows" in capfd.readouterr().err
    assert inspect(["audit", str(run)]) == 78
    assert "fills its bins by objective.name, a class of its user's" in capfd.readouterr().err
    (fasta,) = RunDirectory(run).read().recipe["data"]["sources"]
    assert embed([str(run), fasta, str(tmp_path / "embedded.parquet")]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data.mask.name=birt"], "data.mask.name is 'birt'; the nearest is 'bert', allowed are 'bert', or package"),
        (["data.mask.name=spans:Options"], "it must be a class derived from data.batches.masking.MaskPolicy"),
        ([SPANS[0], "data.mask.options.longest=0"], "data.mask.options.longest is 0; it must be at least 1"),
        (["data.mask.options.longest=5"], "only a class of your own reads it, and data.mask.name is 'bert'"),
        (["data.mask.name=bad:Random"], "does not fit: it must draw by its arguments alone"),
        (["data.mask.name=bad:Falling"], "does not fit: targets must be int32 and rise"),
        (["data.mask.name=bad:Wide"], "does not fit: inputs must be uint8, one for each token"),
        (["objective.name=mask"], "objective.name is 'mask'; allowed are 'masked_language', or package.module:Class"),
        (["objective.name=spans:SpanMask"], "it must be a class derived from pretrain.objective.Objective"),
        ([REPLACED[0], "objective.options.replace=1"], "there is no setting 'replace'; the nearest is 'replace_prob'"),
    ],
)
def test_what_is_refused(recipe: Path, capfd: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main([str(recipe), *words, SHORT]) == 78
    assert said in capfd.readouterr().err
    assert not (recipe.parent / "stores").exists()  # nothing was built before


def test_a_file_that_changed_since_it_was_loaded_fills_no_bin(recipe: Path) -> None:
    extension.search_in(recipe.parent)
    files = extension.files_of(["bert", "spans:SpanMask"])
    assert files.keys() == {"spans:SpanMask"}
    extension.require_unchanged(files)
    (recipe.parent / "spans.py").write_text("\n" + (recipe.parent / "spans.py").read_text())
    extension._hash.cache_clear()  # as in a worker, which is a process of its own
    with pytest.raises(ValueError, match=r"spans\.py has changed since this attempt began; start it again"):
        extension.require_unchanged(files)


def test_spans_hide_their_share_and_every_crop_alike(recipe: Path) -> None:
    extension.search_in(recipe.parent)
    policy = mask_policy(MaskSettings(name="spans:SpanMask", select_prob=0.3))
    tokens = STANDARD_IDS[np.random.default_rng(0).integers(0, 20, 200_000)]
    samples = np.arange(100)
    whole = Bin(samples, 0 * samples, 0 * samples, np.full(100, 2000))
    inputs, targets = policy.corrupt(tokens, whole, 0)
    assert len(targets) / len(tokens) == pytest.approx(0.3, abs=0.01)
    assert (inputs[targets] == MASK).all()
    assert np.array_equal(np.flatnonzero(inputs != tokens), targets)
    runs = np.split(targets, np.flatnonzero(np.diff(targets) > 1) + 1)
    _, single = BertMask(MaskSettings(select_prob=0.3)).corrupt(tokens, whole, 0)
    alone = np.split(single, np.flatnonzero(np.diff(single) > 1) + 1)
    assert len(tokens) / len(runs) > 2 * len(tokens) / len(alone)
    crops = tokens.reshape(100, 2000)[:, 3:1500]
    cropped, _ = policy.corrupt(crops.ravel(), Bin(samples, 0 * samples, 0 * samples + 3, np.full(100, 1497)), 0)
    assert np.array_equal(cropped.reshape(100, -1), inputs.reshape(100, 2000)[:, 3:1500])


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
@pytest.mark.parametrize("own", [SPANS, REPLACED], ids=["mask", "objective"])
def test_killed_and_resumed_it_ends_bit_equal(
    pool: RankPool, recipe_in: Callable[[Path], Path], tmp_path: Path, own: tuple[str, ...]
) -> None:
    ended = []
    for name in ("whole", "killed"):
        folder = tmp_path / name
        words = [recipe_in(folder), *own, *STEPS_16, "run.checkpoint_every=5", "data.workers=2"]
        for each in ("spans", "replaced"):
            shutil.copy(EXAMPLES / f"{each}.py", folder)
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
    assert ended[0].chain == ended[1].chain
