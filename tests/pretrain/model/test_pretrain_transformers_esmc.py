"""The modern architecture against transformers' `EsmcForMaskedLM`: one function, and weights going there and back.

As in `test_pretrain_transformers_io`, the reference is randomly initialised and perturbed. Where float32 leaves a
doubt, float64 settles it: both sides agree there to 1e-12.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import cast
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer, EsmcConfig, EsmcForMaskedLM, EsmcModel

from data.alphabet import LETTER_IDS, PAD, REFUSED, TOKENS
from data.batches.batch import IGNORED
from pretrain.model.attention.choice import Request
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS, EsmShape
from pretrain.model.weights import io as transformers_io
from support.inputs.flat_batches import gradients, mixed_bins, pack, perturb, relative
from support.inputs.foreign_process import loaded_elsewhere
from support.inputs.whole_models import from_transformers_state, load
from zymogen import onednn

# One group: several tests look at the same answers, which are computed once.
pytestmark = pytest.mark.xdist_group("esmc")

TINY = PRESETS["modern_60k"]
BINS = mixed_bins()
BATCH = pack(BINS)
DOCUMENTS = [document for one_bin in BINS for document in one_bin]
REAL = BATCH.tokens != PAD
LABELS = torch.cat([torch.tensor(targets) for _, targets in DOCUMENTS])

Answer = tuple[Tensor, Tensor, dict[str, Tensor]]
"""Logits of the real slots, summed loss, and gradients under our names."""


def reference_config(shape: EsmShape) -> EsmcConfig:
    """ESM C's configuration as transformers has it by default, but for the sizes."""
    widths = {48: 128, 128: 384, 320: 896, 480: 1280, 640: 1792, 960: 2560, 1152: 3072}
    return EsmcConfig(
        hidden_size=shape.dim,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=widths[shape.dim],
    )


def pair(shape: EsmShape) -> tuple[MaskedLanguageModel, EsmcForMaskedLM]:
    """Our model and transformers', with the same random weights."""
    theirs = EsmcForMaskedLM(reference_config(shape)).eval()
    perturb(theirs)
    ours = MaskedLanguageModel(shape).eval()
    ours.load_state_dict(from_transformers_state(theirs.state_dict(), shape))
    return ours, theirs


def padded(theirs: EsmcForMaskedLM) -> Tensor:
    """Logits of transformers' model on all documents as one padded batch, pads cut off."""
    longest = max(len(ids) for ids, _ in DOCUMENTS)
    rows = torch.tensor([ids + [PAD] * (longest - len(ids)) for ids, _ in DOCUMENTS])
    logits = theirs(input_ids=rows, attention_mask=(rows != PAD).long()).logits
    return torch.cat([row[: len(ids)] for row, (ids, _) in zip(logits, DOCUMENTS, strict=True)])


def one_by_one(theirs: EsmcForMaskedLM) -> Tensor:
    return torch.cat([theirs(input_ids=torch.tensor([ids])).logits[0] for ids, _ in DOCUMENTS])


def our_answer(model: MaskedLanguageModel, attention: Request = "auto") -> Answer:
    model.zero_grad()
    model.encoder.attention = attention
    loss = model(BATCH)[0]
    loss.backward()
    return model.logits(BATCH)[REAL].detach(), loss.detach(), gradients(model)


def their_answer(model: EsmcForMaskedLM, shape: EsmShape, logits_of: Callable[[EsmcForMaskedLM], Tensor]) -> Answer:
    model.zero_grad()
    logits = logits_of(model)
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    loss = F.cross_entropy(exact, LABELS, ignore_index=IGNORED, reduction="sum")
    loss.backward()
    return logits.detach(), loss.detach(), from_transformers_state(gradients(model), shape)


@cache
def both(preset: str, kind: str) -> tuple[MaskedLanguageModel, EsmcForMaskedLM]:
    ours, theirs = pair(PRESETS[preset])
    return (ours.double(), theirs.double()) if kind == "fp64" else (ours, theirs)


@cache
def answer(preset: str, kind: str, whose: str) -> Answer:
    """What one side says in "fp32", "bf16" (autocast) or "fp64", or in "fp32 by torch", whose products are torch's own.

    "ours" by the backend that is chosen here, and by the others that this machine has; "one_by_one" and "padded".
    """
    ours, theirs = both(preset, kind.split()[0])
    has_onednn = onednn.HAS_ONEDNN and kind != "fp32 by torch"
    with (
        torch.autocast("cpu", torch.bfloat16, enabled=kind == "bf16"),
        mock.patch.object(onednn, "HAS_ONEDNN", has_onednn),
    ):
        if whose in ("one_by_one", "padded"):
            return their_answer(theirs, PRESETS[preset], {"one_by_one": one_by_one, "padded": padded}[whose])
        return our_answer(ours, cast(Request, {"ours": "auto"}.get(whose, whose)))


def distances(said: Answer, reference: Answer) -> tuple[float, dict[str, float]]:
    """Of the logits, over the largest one; of each gradient, over its norm."""
    names = reference[2].keys()
    assert said[2].keys() == names
    by_name = {n: float((said[2][n].double() - reference[2][n]).norm() / reference[2][n].norm()) for n in names}
    return relative(said[0].double(), reference[0].double()), by_name


BOTH_SIDES = pytest.mark.parametrize("theirs", ["one_by_one", "padded"])
SIZES = pytest.mark.parametrize("preset", ["modern_60k", pytest.param("modern_8m", marks=pytest.mark.slow)])


@SIZES
@BOTH_SIDES
@pytest.mark.parametrize("attention", ["ours", "per_document", "dense"])
def test_logits_and_gradients_equal_transformers(attention: str, preset: str, theirs: str) -> None:
    # One library multiplies on both sides: what two differ by, which here is as much, is no matter of the model.
    ours, expected = answer(preset, "fp32 by torch", attention), answer(preset, "fp32", theirs)
    assert ours[0].shape == (int(REAL.sum()), 64)
    assert float(expected[0].std()) > 0.5  # the model says something
    torch.testing.assert_close(ours[1], expected[1], rtol=1e-6, atol=0)
    logits, by_name = distances(ours, expected)
    assert logits <= 1e-5
    # The gradients of the norms of queries and keys are sums in which most cancels: there either side is up to 2.7e-6
    # from float64, and transformers, padded or not, 1.9e-6 from itself. The next tests say that no more is hidden here.
    inside = {name: value for name, value in by_name.items() if "query_norm" in name or "key_norm" in name}
    assert max(value for name, value in by_name.items() if name not in inside) <= 2e-6
    assert max(inside.values()) <= 5e-6
    print(f"logits {logits:.1e}, gradients {max(by_name.values()):.1e}")


@SIZES
@BOTH_SIDES
def test_both_are_one_function_in_float64(preset: str, theirs: str) -> None:
    ours, expected = answer(preset, "fp64", "ours"), answer(preset, "fp64", theirs)
    logits, by_name = distances(ours, expected)
    assert ours[0].dtype == ours[1].dtype == torch.float64
    torch.testing.assert_close(ours[1], expected[1], rtol=1e-12, atol=0)
    assert logits <= 1e-12
    assert max(by_name.values()) <= 1e-12


@pytest.mark.parametrize(
    ("preset", "kind"),
    [("modern_60k", "fp32"), pytest.param("modern_8m", "fp32", marks=pytest.mark.slow), ("modern_60k", "bf16")],
)
def test_ours_is_as_near_to_float64_as_transformers_is(preset: str, kind: str) -> None:
    """All documents in one forward on both sides: gradients of seven forwards are rounded in seven smaller sums."""
    exact = answer(preset, "fp64", "one_by_one")

    def errors(said: Answer) -> tuple[float, float, float]:
        """Of the logits and of all gradients, over their norms; and the worst of one gradient, over its norm."""
        logits = said[0].double() - exact[0]
        gradient = torch.cat([(said[2][name].double() - right).flatten() for name, right in exact[2].items()])
        right = torch.cat([right.flatten() for right in exact[2].values()])
        worst = max(distances(said, exact)[1].values())
        return float(logits.norm() / exact[0].norm()), float(gradient.norm() / right.norm()), worst

    ours, theirs = (errors(answer(preset, kind, whose)) for whose in ("ours", "padded"))
    print(f"{preset} {kind}: ours {ours}, theirs {theirs}")
    for error, bar in zip(ours, theirs, strict=True):
        assert error <= 1.5 * bar


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("modern")])
def test_presets_have_as_many_parameters_as_transformers(name: str) -> None:
    with torch.device("meta"):
        ours, theirs = MaskedLanguageModel(PRESETS[name]), EsmcForMaskedLM(reference_config(PRESETS[name]))
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


def test_save_and_load_give_the_same_model(tmp_path: Path) -> None:
    model, _ = pair(TINY)
    transformers_io.save(model, tmp_path)
    again = load(tmp_path)
    assert again.shape == TINY
    assert again.state_dict().keys() == model.state_dict().keys()
    for name, weight in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name
    theirs, info = EsmcForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    assert relative(model.logits(BATCH)[REAL], padded(theirs)) <= 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_transformers_itself_saved_is_loaded(dtype: torch.dtype, tmp_path: Path) -> None:
    _, theirs = pair(TINY)
    theirs.to(dtype).save_pretrained(tmp_path)
    assert load_file(tmp_path / "model.safetensors")["esmc.norm.weight"].dtype == dtype
    ours = load(tmp_path).eval()
    assert {weight.dtype for weight in ours.state_dict().values()} == {torch.float32}
    # Read anew, because `to` rounds the rotary frequencies too, which no file holds.
    theirs = EsmcForMaskedLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert relative(ours.logits(BATCH)[REAL], one_by_one(theirs)) <= 1e-5


def test_export_is_whole_and_independent_of_the_model() -> None:
    model, theirs = pair(TINY)
    generator = torch.get_rng_state()
    exported = transformers_io.to_transformers(model)
    assert torch.equal(torch.get_rng_state(), generator)  # no random weights were drawn
    assert torch.nn.init.ones_(torch.zeros(1)) == 1  # torch's own functions are back in place
    assert isinstance(exported, EsmcForMaskedLM)
    assert not exported.training
    for name, tensor in [*theirs.state_dict().items(), *theirs.named_buffers()]:
        found = dict([*exported.state_dict().items(), *exported.named_buffers()])[name]
        assert found.device.type == "cpu"
        assert torch.equal(found, tensor), name
    with torch.no_grad():
        for parameter in exported.parameters():
            parameter.fill_(3.0)
    assert not any((weight == 3.0).all() for weight in model.state_dict().values())


def test_another_epsilon_cannot_be_exported() -> None:
    with pytest.raises(ValueError, match=r"layer_norm_eps = 1e-06: must be 1e-05 in the modern architecture"):
        transformers_io.to_transformers(MaskedLanguageModel(replace(TINY, layer_norm_eps=1e-6)))


def test_the_tokenizer_gives_our_ids(tmp_path: Path) -> None:
    transformers_io.save(MaskedLanguageModel(TINY), tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert type(tokenizer).__name__ == "EsmcTokenizer"
    assert tokenizer.model_max_length == 2048
    letters = "".join(chr(byte) for byte in range(ord("A"), ord("Z") + 1) if LETTER_IDS[byte] != REFUSED)
    assert len(letters) == 26
    assert tokenizer(letters)["input_ids"] == [0, *(int(LETTER_IDS[ord(letter)]) for letter in letters), 2]
    vocabulary = tokenizer.get_vocab()
    assert {token for token in TOKENS if vocabulary.get(token) != TOKENS.index(token)} == {"<null_1>"}
    assert vocabulary["|"] == TOKENS.index("<null_1>")
    transformers_io.save(MaskedLanguageModel(TINY), tmp_path, max_tokens=100)
    assert AutoTokenizer.from_pretrained(tmp_path).model_max_length == 100


@pytest.mark.slow
def test_a_process_without_this_project_loads_the_export(tmp_path: Path) -> None:
    ours, _ = pair(TINY)
    transformers_io.save(ours, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    said = loaded_elsewhere(tmp_path, "MKT<mask>LVIGDE")
    ids = [0, *(TOKENS.index(t) for t in ["M", "K", "T", "<mask>", *"LVIGDE"]), 2]
    assert (said["ids"], said["class"], said["max"]) == (ids, "EsmcForMaskedLM", 2048)
    logits = ours.logits(pack([[(ids, [IGNORED] * len(ids))]], num_slots=len(ids))).detach()
    assert relative(torch.from_numpy(np.load(tmp_path / "logits.npy")), logits) <= 1e-5
    probabilities, tokens = logits[4].softmax(-1).topk(3)
    assert [guess["token"] for guess in said["best"]] == tokens.tolist()
    assert [guess["score"] for guess in said["best"]] == pytest.approx(probabilities.tolist(), rel=1e-4)


def _config(**changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return edit


def _tokens(change: Callable[[dict[str, int]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "tokenizer.json"
        content = json.loads(path.read_text())
        change(content["model"]["vocab"])
        path.write_text(json.dumps(content))

    return edit


def _without_head(folder: Path) -> None:
    EsmcModel.from_pretrained(folder).save_pretrained(folder)


def _without_a_norm(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["esmc.layers.1.self_attn.k_norm.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


ROPE = {"rope_theta": 10000.0, "rope_type": "default"}
SPOILERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "vocabulary size": (_config(vocab_size=33), r"not an ESM C.*vocab_size = 33 \(must be 64\); give an ESM C such as"),
    "activation": (_config(hidden_act="gelu"), r"hidden_act = 'gelu' \(must be 'silu'\)"),
    "biases": (
        _config(attention_bias=True, mlp_bias=True),
        r"attention_bias = True \(must be False\), mlp_bias = True \(must be False\)",
    ),
    "rotary base": (
        _config(rope_parameters={**ROPE, "rope_theta": 5e5}),
        r"rope_theta = 500000\.0 \(must be 10000\.0\)",
    ),
    "rotary kind": (
        _config(rope_parameters={**ROPE, "rope_type": "linear", "factor": 2.0}),
        r"rope_type = 'linear' \(must be 'default'\)",
    ),
    "tied": (_config(tie_word_embeddings=True), r"tie_word_embeddings = True \(must be False\)"),
    "heads": (_config(head_dim=48), r"head_dim = 48 \(must be 24\)"),
    "odd heads": (
        _config(num_attention_heads=16, num_key_value_heads=16, head_dim=3),
        r"describes no model of ours: dim",
    ),
    "grouped queries": (_config(num_key_value_heads=1), r"no transformers model can be read there(.|\n)*grouped-query"),
    "width": (_config(intermediate_size=192), r"intermediate_size = 192 \(must be 128\)"),
    "special tokens": (
        _config(mask_token_id=31, bos_token_id=2, eos_token_id=0, pad_token_id=3),
        r"bos_token_id = 2 \(must be 0\), pad_token_id = 3 .*eos_token_id = False .*mask_token_id = 31 \(must be 32\)",
    ),
    "order": (
        _tokens(lambda ids: ids.update({"L": 5, "A": 4})),
        r"tokenizer\.json lists <cls> <pad> <eos> <unk> A L G .*must be ESM C's .* L A G",
    ),
    "a token less": (_tokens(lambda ids: ids.pop("Z")), r"tokenizer\.json lists .* U nothing O"),
    "no vocabulary": (lambda f: (f / "tokenizer.json").write_text('{"model": []}'), r"must hold model\.vocab"),
    "no head": (
        _without_head,
        r"6 weights of a masked language model are missing \(the first: lm_head\.decoder\.bias\); "
        "give a checkpoint saved from EsmcForMaskedLM",
    ),
    "a weight": (
        _without_a_norm,
        r"1 weights of a masked language model are missing \(the first: esmc\.layers\.1\.self_attn\.k_norm\.weight\)",
    ),
    "weights": (lambda f: (f / "model.safetensors").write_bytes(b"\x00" * 30), r"its weights cannot be read"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"its weights cannot be read"),
    "other sizes": (_config(num_hidden_layers=3), r"13 weights of a masked language model are missing"),
}


@pytest.mark.parametrize("spoiler", SPOILERS)
def test_what_is_no_esmc_is_refused_in_one_error(spoiler: str, tmp_path: Path) -> None:
    spoil, said = SPOILERS[spoiler]
    transformers_io.save(MaskedLanguageModel(TINY), tmp_path)
    spoil(tmp_path)
    with pytest.raises(ValueError, match=said) as error:
        load(tmp_path)
    assert str(error.value).startswith(str(tmp_path))


def test_attention_dropout_is_not_dropped_in_silence(tmp_path: Path) -> None:
    transformers_io.save(MaskedLanguageModel(TINY), tmp_path)
    _config(attention_dropout=0.1)(tmp_path)
    with pytest.warns(UserWarning, match=r"attention_dropout = 0\.1 is not kept.*published ESM C"):
        assert load(tmp_path).shape == TINY
