"""Exports: transformers alone computes what a bundle predicts."""

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from finetune.adaptation.lora import plan_of
from finetune.adaptation.settings import AdaptationSettings
from finetune.bundle.folder import Bundle
from finetune.bundle.manifest import BaseModel, BundleManifest, ReadingSettings
from finetune.export import transformers as written
from finetune.export.__main__ import export, exportable
from finetune.heads.settings import HeadSettings
from finetune.predict.predictor import empty_model, open_predictor
from finetune.tables.proteins import proteins_of
from finetune.tables.read import read_table
from finetune.tasks.settings import TaskSettings
from finetune.tasks.task import Task
from pretrain.card.text import FOLDER
from pretrain.model.presets import EsmShape
from support.checkpoint_run import mount_small_disk
from support.forked import forked, status_of
from support.inputs.flat_batches import relative

ESM2 = EsmShape(layers=2, dim=48, heads=4)
ESMC = EsmShape(layers=2, dim=48, heads=3, architecture="modern", token_dropout=False)
SEQUENCES = ("MKTAYIAKQRQISFVKSHFSRQ", "ACDEFGHIKL", "WWYXLLM")
LOADER = """
import json, sys
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer
folder, level, *sequences = sys.argv[1:]
kind = AutoModelForSequenceClassification if level == "sequence" else AutoModelForTokenClassification
model, tokenizer = kind.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
with torch.no_grad():
    logits = [model(**tokenizer(each, return_tensors="pt")).logits[0].tolist() for each in sequences]
assert not {"finetune", "pretrain", "data"} & sys.modules.keys()
config = model.config
print(json.dumps([logits, config.id2label, config.problem_type, type(model).__name__]))
"""


def objective(**values: Any) -> Task:
    settings = TaskSettings(**{"name": "t", **values})
    outputs = values.get("columns", ("t",))
    classes = settings.classes
    std = np.full(len(outputs), 3.0) if settings.is_number else np.ones(len(outputs))
    mean = np.arange(len(outputs)) + 40.0 if settings.is_number else np.zeros(len(outputs))
    return Task(settings, outputs, classes, mean, std, np.ones((len(outputs), len(classes)), np.int64))


def bundle_of(
    tmp_path: Path, shape: EsmShape, objectives: Sequence[Task], form: str = "transformers", **lora: Any
) -> Bundle:
    """A bundle of random weights, adapters among them, on a random base, all in its tensors."""
    adaptation = AdaptationSettings(kind="lora", **lora)
    manifest = BundleManifest(
        tasks=tuple(objectives),
        heads=HeadSettings(form=form),  # type: ignore[arg-type]
        adaptation=adaptation,
        reading=ReadingSettings(crop_tokens=60, bin_tokens=64),
        encoder=shape,
        adapters=plan_of(adaptation, shape),
        inputs={},
        base=BaseModel(init=None, preset="esm2_60k", seed=0, dropout=0.0, content_hash="0" * 64),
        labels="l",
        split="s",
        split_method="m",
        training_residues=(1, 60),
        step=1,
        chosen_on="validation",
        validation={},
        versions={},
    )
    bundle = Bundle(tmp_path, manifest, {})
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: torch.randn(p.shape, generator=generator, device="cpu") * 0.2 + ("norm" in name and p.ndim == 1)
        for name, p in empty_model(bundle).named_parameters()
    }
    return replace(bundle, tensors=tensors)


CASES = [
    (ESM2, objective(type="regression", columns=("a", "b")), {"use_dora": True}),
    (ESMC, objective(type="multiclass", classes=("x", "y", "z")), {}),
    (ESM2, objective(type="multiclass", level="residue", classes=("H", "E", "C")), {}),
    (ESMC, objective(type="regression", level="residue"), {}),
]


@pytest.mark.launch
@pytest.mark.parametrize(
    ("shape", "of", "lora"),
    [*CASES[:2], *(pytest.param(*case, marks=pytest.mark.prove) for case in CASES[2:])],
    ids=lambda value: str(value)[:20],
)
def test_transformers_alone_computes_what_the_bundle_predicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: EsmShape, of: Task, lora: dict[str, Any]
) -> None:
    bundle = bundle_of(tmp_path, shape, [of], **lora)
    export(bundle, tmp_path / "out")
    command = [sys.executable, "-c", LOADER, str(tmp_path / "out"), of.settings.level, *SEQUENCES]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    logits, labels, problem, name = json.loads(ran.stdout.splitlines()[-1])
    (tmp_path / "in.csv").write_text("sequence\n" + "\n".join(SEQUENCES))
    proteins = proteins_of(read_table(str(tmp_path / "in.csv")), bundle.manifest.reading, 60)
    if of.settings.type == "multiclass":  # logits are compared, before probabilities are made of them
        monkeypatch.setattr("finetune.predict.predictor.activate", lambda _, numbers, __: numbers.double().numpy())
    found = open_predictor(bundle)(proteins, np.arange(len(SEQUENCES)))
    for record, theirs in enumerate(map(torch.tensor, logits)):
        ours = torch.from_numpy(found[record][0])
        if of.settings.level == "residue":
            theirs = theirs[1:-1]
        assert relative(ours.reshape(theirs.shape), theirs.double()) < 1e-5
        assert ours.std() > 1e-3
    assert labels == {str(n): name for n, name in enumerate(of.classes or of.outputs)}
    assert problem == ("regression" if of.settings.is_number else "single_label_classification")
    assert name.startswith("Esmc" if shape.is_modern else "EsmFor")
    # The lines of its card, as shown.
    (lines,) = re.findall(r"```python\n(.*?)```", (tmp_path / "out/README.md").read_text(), re.S)
    shown: dict[str, Any] = {}
    exec(lines.replace(FOLDER, str(tmp_path / "out")), shown)
    assert shown["logits"].shape[-1] == len(labels)


@pytest.mark.parametrize(
    ("objectives", "form", "said"),
    [
        ([objective(type="regression")], "mlp", "heads of the form 'mlp'"),
        (
            [objective(type="regression"), objective(name="u", type="binary", classes=("n", "y"))],
            "transformers",
            r"t \(regression, sequence\), u \(binary, sequence\)",
        ),
        (
            [objective(type="ordinal", classes=("a", "b", "c"))],
            "transformers",
            "'t' is of type ordinal, a problem",
        ),
        (
            [objective(type="multiclass", columns=("a", "b"), classes=("x", "y"))],
            "transformers",
            "2 multiclass columns",
        ),
    ],
)
def test_what_transformers_does_not_have_is_refused_by_name(
    tmp_path: Path, objectives: list[Task], form: str, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        exportable(bundle_of(tmp_path, ESM2, objectives, form))


def test_an_export_holds_numbers_in_the_scale_of_the_task(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path, ESM2, [objective(type="regression")])
    export(bundle, tmp_path / "out")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert not [name for name in tensors if "lora" in name or "lm_head" in name]
    # z-scores are undone: std 3, mean 40.
    prefix = "heads.task_t.map.out_proj"
    assert torch.allclose(tensors["classifier.out_proj.weight"], bundle.tensors[f"{prefix}.weight"] * 3)
    assert torch.allclose(tensors["classifier.out_proj.bias"], bundle.tensors[f"{prefix}.bias"] * 3 + 40)


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_weights_that_are_no_numbers_are_not_exported(value: str, tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path, ESM2, [objective(type="regression")])
    name = "heads.task_t.map.out_proj.weight"
    bundle.tensors[name][0, 5] = float(value)
    said = f"^{tmp_path}: {name} has 1 of 48 values that are NaN or infinite; the training diverged: "
    with pytest.raises(ValueError, match=said):
        export(bundle, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("of", "broken", "said"),
    [
        (CASES[0], {"layer_norm_eps": 0.1}, "transformers computes other logits with it than were trained"),
        (CASES[1], {"num_hidden_layers": 1}, "transformers finds 13 unexpected keys in it, such as esmc.layers.1."),
        (CASES[2], {"num_hidden_layers": 3}, "transformers cannot read it: "),
        (CASES[3], {"rms_norm_eps": 0.1, "num_hidden_layers": 3}, "transformers finds 13 missing keys in it"),
    ],
)
def test_what_does_not_load_as_it_was_trained_is_not_kept(
    of: tuple[EsmShape, Task, dict[str, Any]],
    broken: dict[str, Any],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape, task, lora = of
    save = written.save

    def spoiled(folder: Path, *others: Any) -> None:
        save(folder, *others)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | broken))

    monkeypatch.setattr(written, "save", spoiled)
    with pytest.raises(ValueError, match=f"^the export was not kept: {said}"):
        export(bundle_of(tmp_path, shape, [task], **lora), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_last_map_that_keeps_the_z_scores_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control of the tolerance, beside a scale in which float32 has few digits left for a z-score."""
    task = objective(type="regression")
    far = replace(task, mean=np.array([1e6]))
    export(bundle_of(tmp_path, ESM2, [far]), tmp_path / "far")
    save = written.save
    monkeypatch.setattr(written, "save", lambda folder, manifest, of, *rest: save(folder, manifest, plain, *rest))
    for change in ({"mean": np.array([40.01])}, {"std": np.array([3.01])}):
        plain = replace(task, **change)
        with pytest.raises(ValueError, match="transformers computes other logits with it than were trained"):
            export(bundle_of(tmp_path, ESM2, [task]), tmp_path / "out")


def test_a_full_disk_is_one_error(tmp_path: Path) -> None:
    bundle, place = bundle_of(tmp_path, ESM2, [objective(type="regression")]), tmp_path / "small"
    place.mkdir()

    def work() -> None:
        mount_small_disk(place, "64k")
        with pytest.raises(ValueError, match="the disk is full") as refused:
            export(bundle, place / "out")
        no_space = os.strerror(errno.ENOSPC)
        assert str(refused.value) == (
            f"{place}/out: the disk is full, or a quota or size limit reached ({no_space}); nothing of it was kept; "
            "free space and start again"
        )
        assert list(place.iterdir()) == []

    end = status_of(forked(work))
    if end == 77:
        pytest.skip("no right to mount a tmpfs here")
    assert end == 0
