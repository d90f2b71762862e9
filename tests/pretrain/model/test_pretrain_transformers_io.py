"""Parity with transformers' `EsmForMaskedLM`, and weights going there and coming back.

No published weights can be had in a test: the reference is a randomly initialised transformers model whose biases and
LayerNorms are perturbed too, so that no part of the function is trivially absent.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForMaskedLM, BertConfig, EsmConfig, EsmForMaskedLM, EsmModel

from data.alphabet import PAD, TOKENS
from data.batches.batch import IGNORED
from pretrain.model.attention import Backend
from pretrain.model.attention.layout import frequencies
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS, EsmShape
from pretrain.model.weights import io as transformers_io
from support.inputs.flat_batches import (
    Document,
    gradients,
    mixed_bins,
    pack,
    perturb,
    relative,
    worst_gradient,
)
from support.inputs.foreign_process import loaded_elsewhere
from support.inputs.whole_models import from_transformers_state, load

SMALL = EsmShape(layers=2, dim=48, heads=4)
FREQUENCIES = "esm.rotary_embeddings.inv_freq"


def reference_config(shape: EsmShape) -> EsmConfig:
    """ESM-2's configuration, written here a second time rather than taken from the module under test."""
    return EsmConfig(
        vocab_size=33,
        hidden_size=shape.dim,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.dim,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=1026,
        layer_norm_eps=shape.layer_norm_eps,
        position_embedding_type="rotary",
        emb_layer_norm_before=False,
        token_dropout=shape.token_dropout,
        pad_token_id=1,
        mask_token_id=32,
    )


def pair(shape: EsmShape) -> tuple[MaskedLanguageModel, EsmForMaskedLM]:
    """Our model and transformers', with the same random weights."""
    theirs = EsmForMaskedLM(reference_config(shape))
    perturb(theirs)
    ours = MaskedLanguageModel(shape)
    ours.load_state_dict(from_transformers_state(theirs.state_dict(), shape))
    return ours, theirs


def padded_logits(theirs: EsmForMaskedLM, documents: list[Document]) -> list[Tensor]:
    """Logits of transformers' model on a padded batch, pads cut off."""
    longest = max(len(ids) for ids, _ in documents)
    rows = torch.tensor([ids + [PAD] * (longest - len(ids)) for ids, _ in documents])
    logits = theirs(input_ids=rows, attention_mask=(rows != PAD).long()).logits
    return [row[: len(ids)] for row, (ids, _) in zip(logits, documents, strict=True)]


def logits_one_by_one(theirs: EsmForMaskedLM, documents: list[Document]) -> list[Tensor]:
    return [theirs(input_ids=torch.tensor([ids])).logits[0] for ids, _ in documents]


BINS = mixed_bins()
BATCH = pack(BINS)
REAL = BATCH.tokens != PAD

Answer = tuple[Tensor, Tensor, dict[str, Tensor]]
"""Logits of the real slots, summed loss, and gradients under our names."""


@cache
def both(token_dropout: bool) -> tuple[MaskedLanguageModel, EsmForMaskedLM]:
    return pair(replace(PRESETS["esm2_8m"], token_dropout=token_dropout))


@cache
def our_answer(token_dropout: bool, attention: Backend) -> Answer:
    ours, _ = both(token_dropout)
    ours.encoder.attention = attention
    ours.zero_grad()
    loss = ours(BATCH)
    loss.sum().backward()
    return ours.logits(BATCH)[REAL].detach(), loss[0].detach(), gradients(ours)


@cache
def their_answer(token_dropout: bool, logits_of: Callable[[EsmForMaskedLM, list[Document]], list[Tensor]]) -> Answer:
    ours, theirs = both(token_dropout)
    theirs.zero_grad()
    documents = [one for one_bin in BINS for one in one_bin]
    logits = torch.cat(logits_of(theirs, documents))
    labels = torch.cat([torch.tensor(targets) for _, targets in documents])
    loss = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    loss.backward()
    # Query, key and value biases are compared as the one vector they are here: the true gradient of a key bias alone
    # is 0 but for the rotation, and rounding is all there would be to compare.
    named = {name: p.grad.clone() for name, p in theirs.named_parameters() if p.grad is not None}
    return logits.detach(), loss.detach(), from_transformers_state(named, ours.shape)


@pytest.mark.xdist_group("esm2")  # what each side answers is computed once
@pytest.mark.parametrize("reference", [logits_one_by_one, pytest.param(padded_logits, marks=pytest.mark.slow)])
@pytest.mark.parametrize("token_dropout", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("attention", ["flash_cpu", "per_document", "dense"])
def test_logits_and_gradients_equal_transformers(
    attention: Backend,
    token_dropout: bool,
    reference: Callable[[EsmForMaskedLM, list[Document]], list[Tensor]],
) -> None:
    (logits, loss, by_name), expected = our_answer(token_dropout, attention), their_answer(token_dropout, reference)
    assert float(expected[0].std()) > 0.5  # the model says something
    logit_ratio = relative(logits, expected[0])
    assert logit_ratio <= 1e-5
    torch.testing.assert_close(loss, expected[1], rtol=1e-6, atol=0)
    gradient_ratio = worst_gradient(by_name, expected[2])
    assert gradient_ratio <= 2e-6
    print(f"largest logit difference {logit_ratio:.1e}, worst gradient {gradient_ratio:.1e}")


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("esm2") and PRESETS[name].dim >= 320])
def test_presets_have_as_many_parameters_as_transformers(name: str) -> None:
    shape = PRESETS[name]
    with torch.device("meta"):
        ours, theirs = MaskedLanguageModel(shape), EsmForMaskedLM(reference_config(shape))
    contact_head = shape.layers * shape.heads + 1
    count = sum(p.numel() for p in ours.parameters())
    assert count == sum(p.numel() for p in theirs.parameters()) - contact_head
    if name == "esm2_8m":
        assert count == 7_512_353


@pytest.mark.parametrize(
    "shape",
    [
        SMALL,
        replace(SMALL, token_dropout=False, dropout=0.1, layer_norm_eps=1e-6, rotary_precision="float16"),
        replace(SMALL, rotary_precision="bfloat16"),
    ],
)
def test_save_and_load_give_the_same_model(shape: EsmShape, tmp_path: Path) -> None:
    model = MaskedLanguageModel(shape).eval()
    perturb(model)
    transformers_io.save(model, tmp_path)
    assert load(tmp_path).shape == shape
    again = load(tmp_path).eval()
    assert again.shape == shape
    for name, weight in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name
    theirs, info = EsmForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    assert not theirs.esm.contact_head.regression.weight.any()
    bins = mixed_bins()
    batch = pack(bins)
    expected = torch.cat(padded_logits(theirs, [one for one_bin in bins for one in one_bin]))
    assert relative(model.logits(batch)[batch.tokens != PAD], expected) <= 1e-5


def test_rotary_frequencies_of_published_checkpoints_are_kept(tmp_path: Path) -> None:
    """Published files hold float16-rounded frequencies, once per layer; recomputing them changes every logit."""
    model = MaskedLanguageModel(SMALL).eval()
    perturb(model)
    transformers_io.save(model, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    stored = [name for name in weights if name.endswith(".attention.self.rotary_embeddings.inv_freq")]
    assert len(stored) == SMALL.layers  # the layout of published files
    for name in stored:
        weights[name] = weights[name].half().float()
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    assert load(tmp_path).shape.rotary_precision == "float16"
    published = load(tmp_path).eval()
    documents = mixed_bins()[0]
    batch = pack([documents])
    real = batch.tokens != PAD
    expected = torch.cat(padded_logits(EsmForMaskedLM.from_pretrained(tmp_path), documents))
    assert relative(published.logits(batch)[real], expected) <= 1e-5
    assert relative(model.logits(batch)[real], expected) > 1e-4  # recomputed ones


@pytest.mark.slow
def test_a_process_without_this_project_loads_the_export(tmp_path: Path) -> None:
    ours, _ = pair(SMALL)
    ours.eval()
    transformers_io.save(ours, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json"} <= names
    said = loaded_elsewhere(tmp_path, "MKT<mask>LVIGDE")
    ids = [0, *(TOKENS.index(t) for t in ["M", "K", "T", "<mask>", *"LVIGDE"]), 2]
    assert (said["ids"], said["class"], said["max"]) == (ids, "EsmForMaskedLM", 1026)
    batch = pack([[(ids, [IGNORED] * len(ids))]], num_slots=len(ids))
    logits = ours.logits(batch).detach()
    assert relative(torch.from_numpy(np.load(tmp_path / "logits.npy")), logits) <= 1e-5
    probabilities, tokens = logits[4].softmax(-1).topk(3)
    assert [guess["token_str"] for guess in said["best"]] == [TOKENS[t] for t in tokens]
    assert [guess["score"] for guess in said["best"]] == pytest.approx(probabilities.tolist(), rel=1e-4)


def _edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _swap_vocabulary(folder: Path) -> None:
    tokens = list(TOKENS)
    tokens[4], tokens[5] = tokens[5], tokens[4]
    (folder / "vocab.txt").write_text("\n".join(tokens))


def _without_head(folder: Path) -> None:
    EsmModel.from_pretrained(folder, add_pooling_layer=False).save_pretrained(folder)


def _other_frequencies(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    for name in weights:
        if name.endswith("inv_freq"):
            weights[name] *= 2
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


SPOILERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "bert": (lambda f: BertConfig().save_pretrained(f), r"model_type = 'bert' \(must be 'esm' or 'esmc'\)"),
    "esm-1b": (
        lambda f: _edit_config(f, position_embedding_type="absolute", emb_layer_norm_before=True),
        r"position_embedding_type = 'absolute' \(must be 'rotary'\), emb_layer_norm_before = True \(must be False\)",
    ),
    "vocabulary size": (
        lambda f: _edit_config(f, vocab_size=64),
        r"vocab_size = 64 \(must be 33\)",
    ),
    "width": (
        lambda f: _edit_config(f, intermediate_size=100),
        r"intermediate_size = 100 \(must be 192\)",
    ),
    "order": (
        _swap_vocabulary,
        r"vocab\.txt lists <cls> <pad> <eos> <unk> A L G .*must be ESM-2's .* L A G",
    ),
    "no head": (
        _without_head,
        r"5 weights of a masked language model are missing \(the first: lm_head\.bias\); "
        "give a checkpoint saved from EsmForMaskedLM",
    ),
    "frequencies": (
        _other_frequencies,
        r"rotary frequencies are \[2\.0.*must be those of base 10000",
    ),
    "weights": (
        lambda f: (f / "model.safetensors").write_bytes(b"\x00" * 30),
        r"its weights cannot be read",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"its weights cannot be read"),
    "no config": (
        lambda f: (f / "config.json").unlink(),
        r"give a directory with config\.json and weights",
    ),
}


@pytest.mark.parametrize("spoiler", SPOILERS)
def test_what_is_no_esm2_is_refused_in_one_error(spoiler: str, tmp_path: Path) -> None:
    spoil, said = SPOILERS[spoiler]
    transformers_io.save(MaskedLanguageModel(SMALL), tmp_path)
    spoil(tmp_path)
    with pytest.raises(ValueError, match=said) as error:
        load(tmp_path)
    assert str(error.value).startswith(str(tmp_path))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent: no transformers model can be read there"):
        load(tmp_path / "absent")


def test_attention_dropout_is_not_dropped_in_silence(tmp_path: Path) -> None:
    transformers_io.save(MaskedLanguageModel(SMALL), tmp_path)
    _edit_config(tmp_path, attention_probs_dropout_prob=0.1)
    with pytest.warns(UserWarning, match=r"attention_probs_dropout_prob = 0\.1 is not kept"):
        assert load(tmp_path).shape == SMALL


def test_export_is_independent_of_the_model(tmp_path: Path) -> None:
    model = MaskedLanguageModel(SMALL)
    generator = torch.get_rng_state()
    exported = transformers_io.to_transformers(model)
    assert torch.equal(torch.get_rng_state(), generator)  # no random weights were drawn
    assert not exported.training
    assert exported.lm_head.decoder.weight is exported.esm.embeddings.word_embeddings.weight
    assert not any(tensor.is_meta for tensor in [*exported.parameters(), *exported.buffers()])
    before = model.encoder.embedding.weight.detach().clone()
    with torch.no_grad():
        for parameter in exported.parameters():
            parameter.fill_(3.0)
        exported.get_buffer(FREQUENCIES).fill_(3.0)
    assert torch.equal(model.encoder.embedding.weight, before)
    assert frequencies(SMALL.head_dim, "float32", torch.device("cpu"))[0] == 1.0
    assert isinstance(exported, AutoModelForMaskedLM._model_mapping[EsmConfig])
