"""Contacts from attention maps: planted ones are found, shuffled ones are chance, and an export predicts them."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoTokenizer

from pretrain.contacts import split
from pretrain.contacts.__main__ import main
from pretrain.contacts.attention import corrected, eager, maps_of
from pretrain.contacts.chains import Chain, chains_of
from pretrain.contacts.regression import LONG_RANGE, SHARES, fit, mean_interval, pairs_of, precisions, probabilities
from pretrain.contacts.score import contact_pairs, format_scores, median_chain
from pretrain.contacts.split import filter_chains, split_chains
from pretrain.export.contact_head import NOT_FITTED, write
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS
from pretrain.model.weights import io as transformers_io
from pretrain.model.weights.names import CONTACT_BIAS, CONTACT_WEIGHT, ContactHead
from support.inputs.flat_batches import perturb
from support.inputs.structure_files import globule, pdb_text
from support.inputs.written_runs import contacts

MAPS, PLANTED = 8, 5
RESIDUES = 60


@pytest.fixture(scope="module")
def structures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 12 proteins that are no relatives."""
    folder = tmp_path_factory.mktemp("structures")
    for seed in range(12):
        (folder / f"p{seed:02}.pdb").write_text(pdb_text(globule(RESIDUES, seed)))
    return folder


@pytest.fixture(scope="module")
def chains(structures: Path) -> list[Chain]:
    return [chain for path in sorted(structures.iterdir()) for chain in chains_of(path)]


def planted(chain: Chain, seed: int, *, shuffled: bool = False) -> Tensor:
    """Maps of noise, one of which has the contacts under a third as much noise; shuffled, at other pairs."""
    rng = np.random.default_rng(seed)
    maps = rng.random((MAPS, RESIDUES, RESIDUES), np.float32)
    truth = chain.contacts.astype(np.float32)
    if shuffled:
        order = rng.permutation(RESIDUES)
        truth = truth[order][:, order]
    maps[PLANTED] = maps[PLANTED] / 3 + truth
    both = torch.from_numpy(maps)
    return corrected(both + both.transpose(1, 2))


def scores(chains: list[Chain], *, shuffled: bool) -> tuple[ContactHead, list[dict[str, float]]]:
    """Fitted on four chains, scored on eight."""
    each = [(chain, planted(chain, seed, shuffled=shuffled)) for seed, chain in enumerate(chains)]
    head = fit(each[:4])
    found = [precisions(chain, probabilities(head, maps)) for chain, maps in each[4:]]
    assert all(found)
    return head, [one for one in found if one]


# The regression -----------------------------------------------------------------------------------


def test_planted_contacts_are_found(chains: list[Chain]) -> None:
    head, found = scores(chains, shuffled=False)
    assert np.argmax(np.abs(head.weight)) == PLANTED
    assert np.mean([one["P@L"] for one in found]) > 0.9
    assert np.mean([one["P@L/5"] for one in found]) > 0.9
    assert np.mean([one["chance"] for one in found]) < 0.4


def test_shuffled_attention_is_chance(chains: list[Chain]) -> None:
    _, found = scores(chains, shuffled=True)
    for what, divisor in SHARES.items():
        chance = np.mean([one["chance"] for one in found])
        error = (chance * (1 - chance) / (len(found) * (RESIDUES // divisor))) ** 0.5
        assert abs(np.mean([one[what] for one in found]) - chance) < 3 * error


def test_nothing_to_fit_is_one_error(chains: list[Chain]) -> None:
    apart = Chain("apart", "A" * RESIDUES, np.arange(RESIDUES * 3, dtype=np.float32).reshape(-1, 3) * 9)
    with pytest.raises(ValueError, match=r"0 of 1485 pairs of residues in the chains to fit on are in contact"):
        fit([(apart, planted(chains[0], 0))])


# Precision ----------------------------------------------------------------------------------------


def test_precision_counts_the_most_probable_pairs_at_long_range() -> None:
    places = np.full((50, 3), np.nan, np.float32)
    places[:40] = np.arange(40)[:, None] * [9.0, 0, 0]
    for first, second in ((0, 24), (1, 30), (2, 39), (3, 20)):  # the last one is not at long range
        places[second] = places[first] + 1
    chain = Chain("made", "A" * 50, places)
    probability = np.zeros((50, 50))
    probability[0, 24], probability[1, 30], probability[4, 28], probability[5, 6] = 0.9, 0.8, 0.7, 1.0
    probability[3, 20] = probability[0, 45] = 1.0  # not counted: too near, and not resolved
    pairs = int((40 - LONG_RANGE) * (40 - LONG_RANGE + 1) / 2)
    assert len(pairs_of(chain, LONG_RANGE)[0]) == pairs
    found = precisions(chain, probability)
    assert found is not None
    # Three pairs are certain, two of which touch; one of the other 133, which are equal, does.
    assert found["P@L/5"] == pytest.approx((2 + 5 / 133) / 8)
    assert found["P@L/2"] == pytest.approx((2 + 17 / 133) / 20)
    assert found["P@L"] == pytest.approx((2 + 37 / 133) / 40)
    undecided = precisions(chain, np.full((50, 50), 0.5))
    assert undecided == pytest.approx(dict.fromkeys((*SHARES, "chance"), 3 / pairs))
    assert found["chance"] == 3 / pairs
    assert precisions(Chain("none", "A" * 50, np.arange(150, dtype=np.float32).reshape(50, 3) * 9), probability) is None


def test_a_picture_holds_the_contacts_and_the_most_probable_pairs(chains: list[Chain]) -> None:
    chain = chains[0]
    length = len(chain.residues)
    touching = {(i, j) for i in range(length) for j in range(i + 6, length) if chain.contacts[i, j]}
    found = contact_pairs(chain, chain.contacts + np.arange(length) / (10 * length))
    assert set(found.touching) == touching
    assert len(found.predicted) == length
    assert len(touching & set(found.predicted)) == min(length, len(touching))
    assert all(j - i >= 6 for i, j in found.predicted)
    assert found.name == chain.name
    assert [median_chain(values) for values in ([0.3, 0.1, 0.2], [0.4, 0.1, 0.2, 0.3], [1.0])] == [2, 2, 0]


def test_relatives_are_drawn_together() -> None:
    values = [0.1, 0.2, 0.3, 0.4, 0.9, 0.8]
    apart, together = mean_interval(values, range(6)), mean_interval(values, [0, 0, 1, 1, 2, 2])
    assert apart.mean == together.mean == pytest.approx(0.45)
    assert together.high - together.low > apart.high - apart.low
    assert np.isnan(mean_interval(values, [3] * 6).low)


def test_a_regression_of_zeros_is_said() -> None:
    for weight in (0.0, 0.5):
        said = "\n".join(format_scores(replace(contacts("mine"), weight=(0.0, weight))))
        assert "mine, P@L/5                                          0.310   0.290 to 0.330" in said
        assert "chance, the share of pairs that touch                0.021   unknown" in said
        assert ("No attention map of mine says enough" in said) is (weight == 0)


# Chains -------------------------------------------------------------------------------------------


def test_copies_and_what_cannot_be_scored_are_left_out(chains: list[Chain]) -> None:
    short = Chain("short", "M" * 24, np.zeros((24, 3), np.float32))
    kept, left_out = filter_chains([*chains[:3], chains[1], short], RESIDUES)
    assert [chain.name for chain in kept] == [chain.name for chain in chains[:3]]
    assert left_out == {"too short for a pair at long range": 1, "copies of another": 1}
    assert filter_chains(chains[:3], RESIDUES - 1) == ([], {f"longer than {RESIDUES - 1} residues": 3})


@pytest.mark.slow
def test_no_relative_of_a_chain_that_is_fitted_is_scored(chains: list[Chain]) -> None:
    others = [
        Chain(f"{chain.name}-like", "".join(np.roll(list(chain.residues[:3]), 1)) + chain.residues[3:], chain.places)
        for chain in chains
    ]
    both = split_chains([*chains, *others], 3)
    assert both.left_out >= 1
    fitted = {chain.residues[3:] for chain in both.fitted}
    assert not any(chain.residues[3:] in fitted for chain in both.scored)
    assert len(set(both.groups)) == len({chain.residues[3:] for chain in both.scored}) < len(both.scored)


def test_which_chains_are_fitted_on_follows_from_their_residues(
    chains: list[Chain], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what finds relatives replaced, because MMseqs2 takes seconds."""
    identity = 0.0
    monkeypatch.setattr(split, "related", lambda store, _: SimpleNamespace(hashes=np.arange(store.num_records)))
    found = lambda _, queries, *__: SimpleNamespace(  # noqa: E731
        identity=np.full(len(queries), identity), is_searchable=np.ones(len(queries), bool)
    )
    monkeypatch.setattr(split, "nearest", found)
    first = split_chains(chains, 3)
    assert len(first.fitted) == 3
    assert len(first.scored) == len(set(first.groups)) == 9
    assert split_chains(chains[::-1], 3).fitted == first.fitted
    assert len(split_chains(chains[:5], 20).fitted) == 2  # half of them
    with pytest.raises(ValueError, match="1 chain can be used, and at least two are needed"):
        split_chains(chains[:1], 20)
    identity = 0.3
    with pytest.raises(ValueError, match="all of the 9 chains to score are relatives, at 30% identity, of the 3 to"):
        split_chains(chains, 3)


# A model, and its export --------------------------------------------------------------------------


def exported(folder: Path, preset: str, **how: str) -> MaskedLanguageModel:
    """A model with random values everywhere, and its export."""
    model = MaskedLanguageModel(PRESETS[preset]).eval()
    perturb(model)
    transformers_io.save(model, folder, **how)
    (folder / "README.md").write_text(f"# made\n\n{NOT_FITTED}\n")
    return model


def predicted(folder: Path, residues: str) -> Tensor:
    """What `predict_contacts` answers."""
    theirs = AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    encoded = AutoTokenizer.from_pretrained(folder)(residues, return_tensors="pt")
    with torch.no_grad():
        return theirs.predict_contacts(encoded.input_ids, encoded.attention_mask)[0]


def test_a_head_that_is_written_predicts_what_was_fitted(chains: list[Chain], tmp_path: Path) -> None:
    model = exported(tmp_path, "esm2_60k")
    before = load_file(tmp_path / "model.safetensors")
    residues = chains[0].residues[:30] + "X" + chains[0].residues[30:]
    assert torch.equal(predicted(tmp_path, residues), torch.full((RESIDUES + 1, RESIDUES + 1), 0.5))
    rng = np.random.default_rng(0)
    head = ContactHead(tuple(rng.normal(0, 40, MAPS).astype(np.float32).tolist()), -1.5)
    expected = probabilities(head, maps_of(eager(model), residues))
    assert expected.std() > 0.1
    write(tmp_path, head, "4 chains")
    assert np.abs(predicted(tmp_path, residues).numpy() - expected).max() < 1e-6
    after = load_file(tmp_path / "model.safetensors")
    assert {name for name in after if not torch.equal(after[name], before[name])} == {CONTACT_WEIGHT, CONTACT_BIAS}
    assert after.keys() == before.keys()
    card = (tmp_path / "README.md").read_text()
    assert NOT_FITTED not in card
    assert "uses a regression on attention maps that was fitted on 4 chains; load the model with" in card
    assert sorted(path.name for path in tmp_path.glob(".*")) == []
    assert transformers_io.published(tmp_path)[-1] == head  # a run that starts from it keeps it


def test_a_head_is_written_into_one_of_several_files(tmp_path: Path) -> None:
    exported(tmp_path, "esm2_60k", dtype="float16", largest_file="50KB")
    head = ContactHead((0.5, 0.25, *[0.0] * 5, -8.0), 1.0)
    before = {path: path.read_bytes() for path in tmp_path.glob("*.safetensors")}
    written = write(tmp_path, head, "4 chains")
    assert [path for path in before if path.read_bytes() != before[path]] == [written]
    assert load_file(written)[CONTACT_WEIGHT].dtype == torch.float16
    assert transformers_io.published(tmp_path)[-1] == head


@pytest.mark.slow
@pytest.mark.parametrize("preset", [pytest.param("esm2_60k", marks=pytest.mark.prove), "modern_60k"])
def test_the_command_scores_and_writes(
    preset: str, structures: Path, chains: list[Chain], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    model = exported(tmp_path / "model", preset)
    flag = ["--write"] if preset == "esm2_60k" else []
    words = [str(tmp_path / "model"), str(structures), "--fit-on", "4", "-o", str(tmp_path / "found.json"), *flag]
    assert main(words) == 0
    out = capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    assert "Regression fitted on 4 chains (the published regression: 20); scored on 8 chains of 8 clusters" in out
    assert set(found["values"]) == {"model", "random weights", "chance"}
    for who in ("model", "random weights"):
        for what, values in found["values"][who].items():
            assert found["means"][who][what]["mean"] == pytest.approx(np.mean(values))
            (row,) = [line for line in out.splitlines() if line.startswith(f"    {who}, {what} ")]
            assert f"{np.mean(values):.3f}" in row
            assert len(values) == 8
    head = ContactHead(tuple(found["weight"]), found["bias"])
    chain = chains[0]
    if flag:
        expected = probabilities(head, maps_of(eager(model), chain.residues))
        assert np.abs(predicted(tmp_path / "model", chain.residues).numpy() - expected).max() < 1e-6
    chance = found["means"]["chance"]["chance"]["mean"]
    assert abs(found["means"]["model"]["P@L"]["mean"] - chance) < 0.15  # nothing was learned


@pytest.mark.parametrize("case", ["a run", "ESM C", "no model", "no structures", "occupied", "no folder", "NaN"])
def test_bad_input_is_one_error(case: str, structures: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    model, where, words = tmp_path / "model", structures, list[str]()
    if case == "a run":
        exported(tmp_path / "model/export", "esm2_60k")
        said = f"{model} is no folder with an exported model, and a contact head is written to one; give {model}/export"
    elif case == "ESM C":
        exported(model, "modern_60k")
        said = f"{model} is an ESM C, which has no contact head in transformers; leave --write out"
    elif case == "no model":
        said = f"{model} is no folder with an exported model, and a contact head is written to one; give the folder"
    elif case == "no structures":
        exported(model, "esm2_60k")
        where = tmp_path / "absent"
        said = f"{where} does not exist; give a folder of structures"
    elif case == "NaN":
        exported(model, "esm2_60k")
        weights = load_file(model / "model.safetensors")
        weights["lm_head.dense.bias"][4] = float("nan")
        save_file(weights, model / "model.safetensors", {"format": "pt"})
        said = f"{model}: lm_head.dense.bias has 1 of 48 values that are NaN or infinite; give"
    else:
        exported(model, "esm2_60k")
        found = tmp_path / ("found.json" if case == "occupied" else "absent/found.json")
        said = f"{found} exists; give another name with -o, or replace it with --overwrite"
        if case == "occupied":
            found.write_text("mine")
        else:
            said = f"{found.parent} is no folder; make it, or give another name with -o"
        words = ["-o", str(found)]
    capsys.readouterr()  # what saving printed
    assert main([str(model), str(where), "--write", *words]) == 78
    err = capsys.readouterr().err
    (error,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in err
    assert error.startswith(f"error: {said}")
