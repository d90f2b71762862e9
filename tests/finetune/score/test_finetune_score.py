"""Scores equal a loop over the variants through transformers, and are found with as few forward passes as there are."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.embedding import DATA
from benchmarks.scoring import ASSAY, Loop, blat, by_hash, difference, drawn, substituted, written
from finetune.score import plan as plans
from finetune.score.plan import MARGINALS, SCHEMES, Scheme, Variant, common_window, plan_of, variant_of
from finetune.score.scorer import VariantScorer

TARGET, SINGLES = drawn(40, 80)
MULTIPLE = [variant for count in (2, 3, 5) for variant in substituted(TARGET, 4, count, count)]
INDELS = [variant_of(TARGET, letters) for letters in (TARGET[:-1], TARGET[:7] + "WW" + TARGET[7:], TARGET[1:])]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with TemporaryDirectory() as scratch:
        written("esm2_60k", Path(scratch), 4.0)
        yield Path(scratch)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_scores_are_those_of_the_loop(folder: Path, scheme: Scheme) -> None:
    ours, theirs = VariantScorer.open(folder, bin_tokens=256), Loop(folder)
    variants = [*SINGLES[:6], *MULTIPLE, variant_of(TARGET, TARGET)]
    if scheme == "pseudo-likelihood":
        variants = [SINGLES[0], MULTIPLE[-1], *INDELS, SINGLES[0]]
    found = ours(TARGET, variants, scheme)
    assert found.notes == {}
    assert np.ptp(found.values) > 0.5
    assert difference(ours, theirs, TARGET, variants, scheme) < 1e-4
    if scheme in MARGINALS:
        assert found.values[-1] == 0.0


def test_the_schemes_differ_where_they_should(folder: Path) -> None:
    scorer = VariantScorer.open(folder)
    filled, joint, seen = (
        scorer(TARGET, [*SINGLES, *MULTIPLE], scheme).values
        for scheme in ("masked-marginal-wt-fill", "masked-marginal-joint", "wt-marginal")
    )
    ones = slice(len(SINGLES))
    np.testing.assert_allclose(filled[ones], joint[ones], atol=1e-5)
    assert np.abs(filled - joint)[len(SINGLES) :].min() > 1e-4
    assert np.abs(filled - seen)[ones].max() > 1e-2


def test_each_position_passes_once(folder: Path) -> None:
    scorer = VariantScorer.open(folder)
    places = {at for variant in SINGLES for at in variant.mutated or ()}
    sets = {variant.mutated for variant in MULTIPLE}
    assert scorer(TARGET, [*SINGLES, *SINGLES], "wt-marginal").num_documents == 1
    assert scorer(TARGET, [*SINGLES, *SINGLES], "masked-marginal-wt-fill").num_documents == len(places) < len(SINGLES)
    assert scorer(TARGET, [*MULTIPLE, *MULTIPLE], "masked-marginal-joint").num_documents == len(sets)
    assert scorer(TARGET, [INDELS[0]] * 3, "pseudo-likelihood").num_documents == len(TARGET) - 1


def test_chunks_change_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = VariantScorer.open(folder)
    variants = [*INDELS, *MULTIPLE[:3], *INDELS]
    schemes: tuple[Scheme, ...] = ("masked-marginal-joint", "pseudo-likelihood")
    whole = [scorer(TARGET, variants, scheme) for scheme in schemes]
    monkeypatch.setattr(plans, "CHUNK_TOKENS", 1)
    for before, scheme in zip(whole, schemes, strict=True):
        found = scorer(TARGET, variants, scheme)
        np.testing.assert_allclose(found.values, before.values, atol=1e-4)
        assert (found.notes, found.num_documents) == (before.notes, before.num_documents)
    assert sorted(whole[0].notes) == [0, 1, 2, 6, 7, 8]
    assert whole[0].notes[0] == "39 residues instead of 40, and masked-marginal-joint scores substitutions alone"
    assert np.isnan(whole[0].values[[0, 8]]).all()


@pytest.mark.parametrize("tokens", [9, 10, 11, 40])
def test_the_window_is_that_of_proteingym(tokens: int) -> None:
    def published(position: int, length: int, window: int) -> tuple[int, int]:
        half = window // 2
        if length <= window:
            return 0, length
        if position < half:
            return 0, window
        if position >= length - half:
            return length - window, length
        return max(0, position - half), min(length, position + half)

    for token in range(tokens):
        assert published(token, tokens, 10) == common_window(token, token, tokens, 10)
        for last in range(token, tokens):
            found = common_window(token, last, tokens, 10)
            assert (found is None) == (tokens > 10 and last - token >= 10)
            assert found is None or found[0] <= token <= last < found[1]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_long_target_is_read_in_windows(folder: Path, scheme: Scheme) -> None:
    """A window of the plan is a sequence of its own: its scores are those of its tokens alone."""
    variants = [Variant("W" + TARGET[1:], (0,)), Variant(TARGET[:20] + "WW" + TARGET[22:], (20, 21))]
    variants = [variant_of(TARGET, variant.sequence) for variant in variants]
    whole, cut = VariantScorer.open(folder, window_tokens=None), VariantScorer.open(folder, window_tokens=16)
    assert plan_of(TARGET, variants, scheme, None).lengths.max() == 42
    assert set(plan_of(TARGET, variants, scheme, 16).lengths) == {16}
    found = cut(TARGET, variants, scheme).values
    assert np.abs(found - whole(TARGET, variants, scheme).values).min() > 1e-4
    if scheme == "masked-marginal-joint":  # tokens 14 to 29, without begin and end: as the loop reads them
        theirs = Loop(folder)
        ids = theirs.tokenizer(TARGET, return_tensors="pt")["input_ids"][:, 14:30]
        ids[0, [21 - 14, 22 - 14]] = theirs.tokenizer.mask_token_id
        with torch.no_grad():
            given = theirs.model(input_ids=ids, attention_mask=ids.new_ones(ids.shape)).logits[0].log_softmax(-1)
        new, old = (theirs.tokenizer.convert_tokens_to_ids(list(each[20:22])) for each in ("." * 20 + "WW", TARGET))
        expected = sum(float(given[7 + n, new[n]] - given[7 + n, old[n]]) for n in range(2))
        assert found[1] == pytest.approx(expected, abs=1e-4)


def test_what_a_window_cannot_mask_at_once_is_noted(folder: Path) -> None:
    far = [variant_of(TARGET, "W" + TARGET[1:-1] + "W"), variant_of(TARGET, "W" + TARGET[1:])]
    found = VariantScorer.open(folder, window_tokens=16)(TARGET, far, "masked-marginal-joint")
    assert list(found.notes) == [0]
    assert found.notes[0].startswith("residues 1 and 40 are further apart than a window of 16 tokens")
    assert np.isnan(found.values).tolist() == [True, False]


def test_weights_that_are_no_numbers_are_refused(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    weights["esm.encoder.layer.0.intermediate.dense.weight"][0, 0] = float("nan")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"intermediate\.dense\.weight"):
        VariantScorer.open(tmp_path)


@pytest.mark.prove
@pytest.mark.skipif(not (DATA / ASSAY).is_file(), reason="no real assays beside the project (shared/data/zeroshot)")
def test_scores_of_a_beta_lactamase_are_those_of_the_loop(folder: Path) -> None:
    """All 4,996 mutants under `wt-marginal`, 200 of them and 200 multiple ones under the masked schemes, 5 and 5."""
    target, variants = blat(DATA)
    ours, theirs = VariantScorer.open(folder), Loop(folder)
    assert (len(variants), len(target)) == (4996, 286)
    assert ours(target, variants, "wt-marginal").num_documents == 1
    assert ours(target, variants, "masked-marginal-wt-fill").num_documents == 263
    every_time = theirs.probabilities
    theirs.probabilities = lru_cache(1)(every_time)  # type: ignore[method-assign]  # one forward pass 4,996 times over
    assert difference(ours, theirs, target, variants, "wt-marginal") < 1e-4
    theirs.probabilities = every_time  # type: ignore[method-assign]
    chosen = [variants[number] for number in by_hash(variants, 200)]
    several = [each for count in (2, 3, 4, 5) for each in substituted(target, 50, count, count)]
    masked: tuple[Scheme, ...] = ("masked-marginal-wt-fill", "masked-marginal-joint")
    for scheme in masked:
        assert difference(ours, theirs, target, [*chosen, *several], scheme) < 1e-4
    filled, joint = (ours(target, several, scheme).values for scheme in masked)
    assert np.abs(filled - joint).min() > 1e-5
    assert difference(ours, theirs, target, chosen[:5], "pseudo-likelihood") < 1e-4
    short, _ = drawn(60, 1)
    indels = [variant_of(short, short[:at] + "AG"[: at % 3] + short[at + 1 :]) for at in (5, 9, 21, 35, 50)]
    assert difference(ours, theirs, short, indels, "pseudo-likelihood") < 1e-4
