"""The whole model: what a label adds, that neighbours in a batch add nothing, and whose heads are transformers'."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import EsmConfig, EsmForMaskedLM, EsmForSequenceClassification, EsmForTokenClassification

from data.alphabet import PAD
from data.batches.batch import Batch, Targets
from finetune.heads import pooling
from finetune.heads.settings import HeadSettings, PoolingRequest
from finetune.job import FineTuneJob
from finetune.model import FineTuneModel, head_name
from finetune.tasks.task import Task
from pretrain.model.initialization import initial_weights
from pretrain.model.memory import encoder_flops
from pretrain.model.presets import PRESETS, EsmShape
from support.assays.labelled_batches import EVERY_TYPE, PAIR, gradient, labelled, targets, task, wide, without_labels
from support.inputs.flat_batches import Document, document, pack, perturb, relative
from support.inputs.whole_models import from_transformers_state

SHAPE = PRESETS["esm2_60k"]
POOLINGS: tuple[PoolingRequest, ...] = ("mean", "attention", "begin")


def made(*objectives: Task, shape: EsmShape = SHAPE, **heads: str) -> FineTuneModel:
    model = FineTuneModel(shape, objectives, HeadSettings(**heads))  # type: ignore[arg-type]
    perturb(model.encoder)
    wide(model.heads)
    return model


def one_of(of: Targets, index: int) -> Targets:
    own = slice(index, index + 1)
    return Targets(of.slots[own], of.labels[own], tuple(column[own] for column in of.columns))


# What a label adds --------------------------------------------------------------------------------


def test_the_gradient_of_some_labels_is_the_weighted_sum_of_each_task_s_own() -> None:
    """One protein with 5 labels of 8 tasks; each task alone is a batch in which no other has a label."""
    model, weights = made(*EVERY_TYPE[:5]).double(), torch.tensor([1.0, 0.3, 2.0, 0.7, 1.5])
    one = pack([[document(60, 0.0, 1)]], 64)
    labels = [
        targets([0, 0], [1.5, -3.0], [0, 2], censoring=[0, 1]),
        targets([], []),
        targets([0], [3.0]),
        targets([0], [2.0]),
        targets([0], [0.0], [1]),
    ]
    whole = gradient(model, (weights * model(replace(one, targets=tuple(labels)))).sum())
    apart = torch.zeros_like(whole)
    for number, of in enumerate(labels):
        for index in range(len(of.slots)):
            keep = [each.between(0, 0) for each in labels]
            keep[number] = one_of(of, index)
            apart += gradient(model, (weights * model(replace(one, targets=tuple(keep)))).sum())
    error = (whole - apart).abs().max() / apart.abs().max()
    assert error < 1e-12
    assert not gradient(model, model(replace(one, targets=tuple(labels)))[1]).any()  # nothing is known of membranes


def test_a_task_without_a_label_has_no_gradient() -> None:
    """Of the three outputs of one objective, the second has no label."""
    model = made(EVERY_TYPE[0])
    batch = replace(pack([[document(60, 0.0, 1)]], 64), targets=(targets([0, 0], [1.5, -3.0], [0, 2]),))
    model(batch).sum().backward()
    weight = model.heads["task_affinity"].map.out.weight.grad
    assert [bool(row.any()) for row in weight] == [True, False, True]


@pytest.mark.parametrize("pooling_", POOLINGS)
@pytest.mark.parametrize("batch", [without_labels(labelled()), labelled().idle()], ids=["no labels", "idle"])
def test_a_pass_without_a_label_is_0_and_reaches_every_parameter(batch: Batch, pooling_: PoolingRequest) -> None:
    model = made(*EVERY_TYPE, PAIR, pooling=pooling_)
    sums = model(replace(batch, targets=(*batch.targets, targets([], []))))
    assert sums.tolist() == [0] * 8
    assert not gradient(model, sums.sum()).any()


@pytest.mark.parametrize("pooling_", POOLINGS)
def test_a_pass_with_labels_reaches_every_parameter(pooling_: PoolingRequest) -> None:
    model = made(*EVERY_TYPE, pooling=pooling_)
    sums = model(labelled())
    assert sums.dtype == torch.float32
    gradient(model, sums.sum())
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


# What a sequence's neighbours add: nothing --------------------------------------------------------

HELD = document(43, 0.0, 4300)
OTHERS = [document(length, 0.0, length) for length in (200, 7, 61, 91)]
BATCHES: dict[str, tuple[list[list[Document]], int, int]] = {
    "alone": ([[HELD]], 43, 0),
    "padded": ([[HELD]], 320, 0),
    "packed": ([[OTHERS[0], HELD, OTHERS[1], OTHERS[2]]], 311, 200),
    "last": ([[OTHERS[1], HELD]], 120, 7),
    "second bin": ([[OTHERS[0], OTHERS[3]], [OTHERS[2], HELD]], 320, 381),
}
"""Bins, their slots, and the first slot of the sequence that is predicted."""


def predictions(model: FineTuneModel) -> list[Tensor]:
    """For each batch, all numbers of one sequence and of two of its residues, in one row."""
    found = []
    for bins, slots, first in BATCHES.values():
        of_sequence = targets([first] * 3, [0.0] * 3, [0, 1, 2])
        of_residue = targets([first + 1, first + 30], [0.0] * 2)
        batch = replace(pack(bins, slots), targets=(of_sequence, of_residue))
        with torch.no_grad():
            found.append(torch.cat(model(batch, each=True)))
    return found


def spread(found: list[Tensor]) -> float:
    return max(relative(one, found[0]) for one in found)


@pytest.mark.parametrize("pooling_", POOLINGS)
def test_a_prediction_does_not_depend_on_the_batch(pooling_: PoolingRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control pools whatever follows the sequence in its bin, as a mean over a padded row does."""
    model = made(EVERY_TYPE[0], EVERY_TYPE[5], pooling=pooling_)
    right = spread(predictions(model))
    monkeypatch.setattr(pooling, "is_residue", lambda tokens: torch.ones_like(tokens, dtype=torch.bool))
    control = spread(predictions(model))
    print(pooling_, right, control)
    assert right < 1e-5
    assert control > 1e-3 if pooling_ != "begin" else control < 1e-5


def test_each_prediction_stands_where_its_label_does() -> None:
    model, batch = made(*EVERY_TYPE), labelled()
    with torch.no_grad():
        sums, numbers = model(batch), model(batch, each=True)
        for number, of in enumerate(batch.targets):
            for index in range(len(of.slots)):
                only = [each.between(0, 0) for each in batch.targets]
                only[number] = one_of(of, index)
                found = model(replace(batch, targets=tuple(only)), each=True)[number][0]
                torch.testing.assert_close(found, numbers[number][index], rtol=1e-4, atol=1e-5)
    assert [tuple(found.shape) for found in numbers] == [(5,), (3,), (3, 4), (4, 3), (3,), (4,), (3, 3)]
    assert sums.shape == (7,)


def test_the_last_layer_is_computed_for_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    model, batch = made(*EVERY_TYPE, pooling="begin"), labelled()
    whole = model.encoder.forward

    def noted(batch: Batch, slots: Tensor) -> Tensor:
        read.append(len(slots))
        vectors: Tensor = whole(batch, slots)
        return vectors

    monkeypatch.setattr(model.encoder, "forward", noted)
    begin = model(batch)
    paired = made(*EVERY_TYPE, PAIR, pooling="begin")
    paired.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(paired(replace(batch, targets=(*batch.targets, targets([], []))))[:7], begin)
    assert read == [7 + 4 + 3]


# Cached vectors -----------------------------------------------------------------------------------


class Kept:
    """Vectors by place: records are documents in order, residues are slots."""

    def __init__(self, model: FineTuneModel, batch: Batch) -> None:
        with torch.no_grad():
            self.residues = model.encoder(batch)
            firsts = pooling.first_slots(batch)
            none = torch.zeros(len(firsts), 2, dtype=torch.int64)
            self.sequences = model.pooling(self.residues, batch, firsts, none)

    def sequence(self, places: Tensor) -> Tensor:
        assert len(places) == len(self.sequences)  # each document once, however many labels it has
        return self.sequences[places]

    def residue(self, places: Tensor) -> Tensor:
        return self.residues[places]


def test_cached_vectors_stand_in_for_the_encoder() -> None:
    objectives, batch = (*EVERY_TYPE, PAIR), labelled()
    batch = replace(batch, targets=(*batch.targets, targets([5, 330], [0.0, 1.0], partner=[40, 3])))
    firsts = pooling.first_slots(batch)
    placed = []
    for of, objective in zip(batch.targets, objectives, strict=True):
        is_sequence = objective.settings.level == "sequence"
        place = pooling.rows_of(of.slots, firsts) if is_sequence else of.slots
        placed.append(replace(of, columns=of.columns._replace(place=place)))
    batch = replace(batch, targets=tuple(placed))
    whole = made(*objectives)
    cached = FineTuneModel(SHAPE, objectives, HeadSettings(), features=Kept(whole, batch))
    cached.load_state_dict(whole.state_dict(), strict=False)
    assert not any(name.startswith("encoder") for name, _ in cached.named_parameters())
    torch.testing.assert_close(cached(batch), whole(batch))
    gradient(cached, cached(batch).sum())
    gradient(whole, whole(batch).sum())
    for name, parameter in cached.named_parameters():
        torch.testing.assert_close(parameter.grad, whole.get_parameter(name).grad, rtol=1e-4, atol=1e-4)


# transformers -------------------------------------------------------------------------------------


def config(labels: int) -> EsmConfig:
    return EsmConfig(
        vocab_size=33,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=192,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=1026,
        layer_norm_eps=1e-5,
        position_embedding_type="rotary",
        emb_layer_norm_before=False,
        token_dropout=True,
        pad_token_id=1,
        mask_token_id=32,
        num_labels=labels,
    )


@cache
def documents() -> list[Document]:
    return [document(length, 0.1, length) for length in (43, 7, 91)]


def padded(theirs: torch.nn.Module) -> Tensor:
    longest = max(len(ids) for ids, _ in documents())
    rows = torch.tensor([ids + [PAD] * (longest - len(ids)) for ids, _ in documents()])
    with torch.no_grad():
        logits: Tensor = theirs(input_ids=rows, attention_mask=(rows != PAD).long()).logits
    return logits


Theirs = EsmForSequenceClassification | EsmForTokenClassification


def ours_from(theirs: Theirs, level: str, names: Callable[[str], str]) -> FineTuneModel:
    objective = task("a", "multiclass", classes=5, level=level)
    ours = FineTuneModel(SHAPE, [objective], HeadSettings(form="transformers"))
    whole = EsmForMaskedLM(config(5)).state_dict() | theirs.state_dict()
    state = {name: t for name, t in from_transformers_state(whole, SHAPE).items() if name.startswith("encoder.")}
    heads = {names(n): t for n, t in theirs.state_dict().items() if n.startswith("classifier.")}
    ours.load_state_dict(state | heads)
    return ours


def test_the_sequence_head_is_that_of_transformers() -> None:
    theirs = EsmForSequenceClassification(config(5)).eval()
    perturb(theirs)
    ours = ours_from(theirs, "sequence", lambda name: name.replace("classifier.", "heads.task_a.map."))
    batch = pack([documents()], 160)
    slots = [start for start, _ in batch.spans]
    (found,) = ours(replace(batch, targets=(targets(slots, [0.0] * 3),)), each=True)
    assert relative(found, padded(theirs)) < 1e-5
    theirs.classifier.dense.weight.data[0] += 0.1
    assert relative(found, padded(theirs)) > 1e-3


def test_the_residue_head_is_that_of_transformers() -> None:
    theirs = EsmForTokenClassification(config(5)).eval()
    perturb(theirs)
    ours = ours_from(theirs, "residue", lambda name: name.replace("classifier.", "heads.task_a.map."))
    batch = pack([documents()], 160)
    slots = [slot for start, end in batch.spans for slot in range(start, end)]
    (found,) = ours(replace(batch, targets=(targets(slots, [0.0] * len(slots)),)), each=True)
    expected = torch.cat([row[: len(ids)] for row, (ids, _) in zip(padded(theirs), documents(), strict=True)])
    assert relative(found, expected) < 1e-5


# Names and what is refused -------------------------------------------------------------------------------


def test_a_head_s_first_weights_depend_on_its_name_and_the_seed_alone() -> None:
    with torch.device("meta"):
        few, many = made_only(EVERY_TYPE[3]), made_only(*EVERY_TYPE)
    alone, beside = initial_weights(few, 5), initial_weights(many, 5)
    assert set(alone) < set(beside)
    assert {name for name, _ in few.named_parameters()} == set(alone)
    assert all(torch.equal(alone[name](), beside[name]()) for name in alone)
    weight = "heads.task_grade.map.out.weight"
    assert not torch.equal(initial_weights(few, 6)[weight](), alone[weight]())
    assert not torch.equal(beside["heads.task_membrane.map.out.weight"](), alone[weight]())
    assert alone[weight]().std() > 0.01


def made_only(*objectives: Task) -> FineTuneModel:
    return FineTuneModel(SHAPE, objectives, HeadSettings())


@pytest.mark.parametrize("name", ["IC50 (nM)", "a.b", "pop", "forward", "α/β", "T_m %"])
def test_any_name_of_a_task_is_a_name_of_a_parameter(name: str) -> None:
    model = made_only(task(name, "regression"))
    assert [n for n, _ in model.named_parameters() if n.startswith(f"heads.{head_name(name)}.")]
    assert head_name("a.b") != head_name("a%2Eb")


def test_flops_are_those_of_the_slots_that_heads_read() -> None:
    step: Any = SimpleNamespace(num_tokens=12, squared_lengths=74)
    outcome: Any = SimpleNamespace(counts=[2, 5])
    of_pass = {read: encoder_flops(SHAPE, 12, 74, read) for read in (0, 5, 7, 12)}

    def flops(levels: Sequence[str], pooling_: PoolingRequest, kind: str = "full", features: Any = None) -> float:
        tasks = [replace(EVERY_TYPE[0], settings=replace(EVERY_TYPE[0].settings, level=level)) for level in levels]
        recipe = SimpleNamespace(adaptation=SimpleNamespace(kind=kind), heads=HeadSettings(pooling=pooling_))
        job: Any = SimpleNamespace(shape=SHAPE, features=features, recipe=recipe, tasks=tasks)
        return FineTuneJob.flops(job, step, outcome)

    assert flops(["sequence", "residue"], "begin") == 3 * of_pass[5]
    assert flops(["sequence", "sequence"], "begin", "frozen") == of_pass[0]
    assert flops(["residue", "residue"], "mean") == 3 * of_pass[5 + 2]
    for levels, pooling_ in ((["sequence", "residue"], "mean"), (["residue", "pair"], "begin")):
        assert flops(levels, pooling_) == 3 * of_pass[12]
    assert flops(["sequence", "sequence"], "mean", features=object()) == 0
