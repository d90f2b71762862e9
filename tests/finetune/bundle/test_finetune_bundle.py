"""Bundles: a run's best checkpoint as a folder that is opened with every byte checked."""

import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from finetune.adaptation.adapt import initializers
from finetune.bundle.columns import TaskColumns
from finetune.bundle.folder import open_folder, with_evaluation, write_bundle
from finetune.bundle.manifest import BaseModel, BundleManifest, ModelRecord
from finetune.predict.__main__ import main as predict
from finetune.predict.predictor import Predictor, empty_model, open_predictor
from finetune.results.calibration import Calibration
from finetune.results.results import TaskCalibration
from finetune.splits.parts import parts_of
from finetune.tables.proteins import proteins_of
from finetune.tables.read import read_table
from finetune.tasks.settings import TaskSettings
from finetune.tasks.task import Task
from pretrain.model.build import build_initialized
from pretrain.model.settings import ModelSettings
from pretrain.trained_model import ENCODER
from support.assays.bundled import letters, rows
from zymogen.settings.json_file import as_json
from zymogen.trainer.checkpoint.best import best_valid
from zymogen.trainer.checkpoint.restore import read_whole
from zymogen.trainer.run.directory import RunDirectory

pytestmark = pytest.mark.xdist_group("bundle")  # one worker makes the run


def test_a_bundle_predicts_byte_for_byte_what_its_checkpoint_does(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finetune.predict.predictor.bin_tokens_on", lambda _: 128)  # several bins
    bundle = open_folder(folder / "run" / "bundle")
    found = open_predictor(bundle)
    model = empty_model(bundle)
    _, weights = build_initialized(ModelSettings(preset="esm2_60k"), 0)
    encoder = {name: weight for name, weight in weights.items() if name.startswith(ENCODER)}
    assert bundle.manifest.adapters is not None
    first = initializers(model, encoder, 0, bundle.manifest.adapters)
    whole = read_whole(best_valid(folder / "run" / "checkpoints"), dict(model.named_parameters()), first)
    model.load_state_dict(whole, assign=True)
    table = read_table(str(folder / "train.csv"))
    proteins = proteins_of(table, bundle.manifest.reading, 40)
    everything = np.arange(proteins.num_records)
    before, after = Predictor(bundle, model.train(False))(proteins, everything), found(proteins, everything)
    assert list(before) == list(after)
    assert all(a.tobytes() == b.tobytes() for r in before for a, b in zip(before[r], after[r], strict=True))
    assert max(float(t.abs().max()) for n, t in bundle.tensors.items() if ".lora_B." in n) > 0
    # Every second bin of either rank: the same bytes, each record once.
    ranks = [found(proteins, everything, rank, 2) for rank in (0, 1)]
    assert not ranks[0].keys() & ranks[1].keys()
    joined = ranks[0] | ranks[1]
    assert all(joined[r][0].tobytes() == after[r][0].tobytes() for r in after)
    assert all(ranks)


def test_a_forward_pass_holds_many_proteins_whatever_the_bins_of_training(folder: Path) -> None:
    """Bins of training may hold one each; a pass of one takes as long as a pass of many."""
    predictor = open_predictor(open_folder(folder / "run" / "bundle"))
    proteins = proteins_of(read_table(str(folder / "train.csv")), predictor.bundle.manifest.reading, 40)
    passes: list[int] = []
    predictor.model.register_forward_hook(lambda *_: passes.append(1))
    found = predictor(proteins, np.arange(proteins.num_records))
    tokens = int((proteins.num_residues + 2).sum())
    assert len(found) == proteins.num_records
    assert tokens > 2 * predictor.bundle.manifest.reading.bin_tokens
    assert len(passes) == -(-tokens // 4096)


def test_a_bundle_holds_what_was_trained_and_no_frozen_weight(folder: Path) -> None:
    bundle = open_folder(folder / "run" / "bundle")
    assert all(".lora_" in name or name.startswith("heads.") for name in bundle.tensors)
    manifest = bundle.manifest
    assert manifest.step == best_valid(folder / "run" / "checkpoints").trainer.step
    kd = manifest.tasks[0]
    assert (kd.unit, kd.settings.transform) == ("nM", "p")
    assert 5 < kd.mean[0] < 9  # 10 nM to 10 uM
    assert manifest.validation["kd"].keys() >= {"loss"}
    assert {row["part"] for row in rows(bundle.folder / "split.csv")} == {"train", "validation", "test"}


def changed(folder: Path, to: Path, **fields: Any) -> Path:
    """A copy of the bundle whose bundle.json has other values."""
    shutil.copytree(folder / "run" / "bundle", to)
    said = json.loads((to / "bundle.json").read_text())
    (to / "bundle.json").write_text(json.dumps({**said, **fields}))
    return to


def test_a_base_of_other_weights_is_refused_with_both_hashes(folder: Path, tmp_path: Path) -> None:
    bundle = open_folder(folder / "run" / "bundle")
    base = bundle.manifest.base
    other = replace(bundle, manifest=replace(bundle.manifest, base=replace(base, seed=1)))
    with pytest.raises(ValueError, match=rf"[0-9a-f]{{64}}, that of the base was {base.content_hash}") as raised:
        open_predictor(other)
    assert len(set(re.findall(r"[0-9a-f]{64}", str(raised.value)))) == 2
    gone = replace(bundle.manifest, base=BaseModel(init="/nowhere", preset=None, seed=0, dropout=0.0, content_hash="0"))
    with pytest.raises(ValueError, match="/nowhere, which does not exist; say where they are with --base"):
        open_predictor(replace(bundle, manifest=gone))


def test_the_model_of_a_run_is_read_as_it_was_written(folder: Path) -> None:
    described, manifest = RunDirectory(folder / "run").model(), open_folder(folder / "run" / "bundle").manifest
    record = ModelRecord.of(described)
    assert record == ModelRecord(encoder=manifest.encoder, adapters=manifest.adapters, inputs=manifest.inputs)
    assert json.loads(json.dumps(asdict(record))) == described
    for wrong, message in (
        (described["encoder"], "encoder: Field required"),  # a pretraining run's
        ({**described, "encoder": {**described["encoder"], "dim": "64"}}, r"encoder\.dim: .*integer, got '64'"),
        ({**described, "adapters": {"maps": ["a"], "alpha": 8.0}}, r"adapters\.rank: Field required"),
    ):
        with pytest.raises(ValueError, match=message):
            ModelRecord.of(wrong)


def test_what_is_damaged_or_of_another_format_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = changed(folder, tmp_path / "a")
    content = bytearray((copy / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (copy / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors is not as it was written"):
        open_folder(copy)
    with pytest.raises(ValueError, match="has the format 'other/9'"):
        open_folder(changed(folder, tmp_path / "b", format="other/9"))
    with pytest.raises(ValueError, match="damaged: step"):
        open_folder(changed(folder, tmp_path / "c", step="many"))
    kd, *_ = json.loads((folder / "run" / "bundle" / "bundle.json").read_text())["tasks"]
    for number, (wrong, said) in enumerate(
        (
            ({"mean": ["6.0"]}, r"tasks\.0\.mean\.0: .*number, got '6\.0'"),
            ({"num_labels": [1.5]}, r"tasks\.0\.num_labels\.0: .*integer"),
            ({"std": [1.0, 1.0]}, r"tasks\.0: .*'kd': its 1 outputs and their numbers disagree"),
            ({"class_counts": [[3]]}, r"tasks\.0: .*'kd': its classes and their counts disagree"),
        )
    ):
        with pytest.raises(ValueError, match=said):
            open_folder(changed(folder, tmp_path / f"task-{number}", tasks=[kd | wrong]))
    files = open_folder(folder / "run" / "bundle").manifest.files
    with pytest.raises(ValueError, match=r"lists the files \['\.\./x', 'model\.safetensors', 'split\.csv'\]"):
        open_folder(changed(folder, tmp_path / "d", files={**files, "../x": "0"}))
    with pytest.raises(ValueError, match=r"bundle\.json cannot be read: No such file.*; .*name bundle/ of a run"):
        open_folder(tmp_path)


def test_what_is_not_ours_is_moved_aside_and_a_bundle_is_replaced(folder: Path, tmp_path: Path) -> None:
    bundle = open_folder(folder / "run" / "bundle")
    parts = parts_of(np.zeros(1, np.uint64), np.zeros(1, np.int8), np.zeros(1, np.int64), np.full(1, -1, np.int16))

    def write() -> None:
        write_bundle(tmp_path / "bundle", bundle.manifest, bundle.tensors, ["a"], parts)

    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "thesis.txt").write_text("mine")
    write()
    assert (tmp_path / "bundle-1" / "thesis.txt").read_text() == "mine"
    write()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "bundle-1"]
    assert bundle.manifest.evaluation is not None
    evaluation = replace(bundle.manifest.evaluation, notes=("Another one.",))
    with_evaluation(tmp_path / "bundle", evaluation)
    write()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "bundle-1"]
    assert open_folder(tmp_path / "bundle").manifest.evaluation == evaluation  # which nothing replaces
    write_bundle(tmp_path / "bundle", replace(bundle.manifest, step=7), bundle.tensors, ["a"], parts)
    assert open_folder(tmp_path / "bundle").manifest.evaluation == bundle.manifest.evaluation
    tensors = load_file(tmp_path / "bundle" / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, tmp_path / "bundle" / "model.safetensors")
    write()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "bundle-1", "bundle-2"]
    for step in (8, 9, 10):  # with a picture, which is replaced with the rest unless somebody changed it
        picture = tmp_path / "bundle" / "scores.svg"
        if step == 10:
            picture.write_text("mine")
        write_bundle(tmp_path / "bundle", replace(bundle.manifest, step=step), bundle.tensors, ["a"], parts)
        assert picture.read_text().startswith("<svg ")
        assert (tmp_path / "bundle-3").exists() == (step == 10)
    assert (tmp_path / "bundle-3" / "scores.svg").read_text() == "mine"


@pytest.mark.parametrize("chose", [False, True])
def test_the_evaluation_of_a_run_gives_intervals_and_calibrated_probabilities(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], chose: bool
) -> None:
    copy = changed(folder, tmp_path / "bundle")
    results = open_folder(copy).manifest.evaluation
    assert results is not None
    calibrations = (
        TaskCalibration("kd", "kd", Calibration(9, half_width=1.0, chose=chose), {}),
        TaskCalibration("fold", "fold", Calibration(9, temperature=1e6), {}),
    )
    with_evaluation(copy, replace(results, calibrations=calibrations))
    (tmp_path / "in.csv").write_text(f"sequence\n{letters(5, 14)}\n")
    assert predict([str(copy), str(tmp_path / "in.csv"), "-o", str(tmp_path / "o.csv")]) == 0
    said = "intervals of 1 tasks, the first 'kd': the labels that they come from also chose the checkpoint"
    assert (said in capfd.readouterr().err) == chose
    (row,) = rows(tmp_path / "o.csv")
    kd = float(row["kd"])  # one unit of -log10 is a factor of 10, and the lower end is the lower number
    assert float(row["kd_low"]) == pytest.approx(kd / 10, rel=1e-5)
    assert float(row["kd_high"]) == pytest.approx(kd * 10, rel=1e-5)
    assert float(row["fold_p_a"]) == pytest.approx(1 / 3, abs=1e-4)


def test_several_models_give_their_mean_and_its_spread() -> None:
    settings = TaskSettings(name="kd", type="regression", unit="nM", transform="log10")
    objective = Task(settings, ("kd",), (), np.zeros(1), np.ones(1), np.zeros((1, 0), np.int64), "nM")
    columns = TaskColumns(objective, 0, Calibration(), 2, "kd")
    assert columns.names == ["kd", "kd_std"]
    mean, spread = columns.values([np.array([[1.0]]), np.array([[3.0]])])
    assert mean == [100.0]
    assert spread == pytest.approx([np.std([10.0, 1000.0], ddof=1)])


def test_a_class_that_was_never_trained_is_not_predicted() -> None:
    settings = TaskSettings(name="fold", type="multiclass")
    counts = np.array([[3, 2, 0]])
    objective = Task(settings, ("fold",), ("a", "b", "c"), np.zeros(1), np.ones(1), counts)
    columns = TaskColumns(objective, 0, Calibration(), 1, "fold")
    chosen, *_ = columns.values([np.array([[[0.2, 0.3, 0.5]]])])
    assert chosen == ["b"]


def test_a_manifest_is_its_own_json(folder: Path) -> None:
    manifest: BundleManifest = open_folder(folder / "run" / "bundle").manifest
    assert as_json(manifest) == (folder / "run" / "bundle" / "bundle.json").read_text()
