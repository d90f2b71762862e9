"""The embedded corpus: its files, its statistics, and the floor against enumeration and what any floor obeys."""

import gzip
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from numpy.typing import NDArray

from data import alphabet
from data.sources.synthetic import (
    Document,
    Families,
    ancestor,
    floor,
    hidden_markov_model,
    posteriors,
    substitute,
    write_corpus,
)

FEW = Families(seed=3, num_families=12, members_per_family=5)
HELD_OUT = range(1000, 1300)  # families that no corpus of default size holds
MASK_ALL = {"select_prob": 0.15, "mask_prob": 1.0, "random_prob": 0.0}
BERT = {"select_prob": 0.15, "mask_prob": 0.8, "random_prob": 0.1}
IDS = {letter: alphabet.TOKENS.index(letter) for letter in alphabet.STANDARD_RESIDUES}


def read(path: Path) -> list[tuple[str, list[str]]]:
    records = gzip.decompress(path.read_bytes()).decode().split(">")[1:]
    return [(record.splitlines()[0], record.splitlines()[1:]) for record in records]


def corrupted(
    ids: NDArray[np.uint8], rng: np.random.Generator, select_prob: float, mask_prob: float, random_prob: float
) -> Document:
    selected = rng.random(len(ids)) < select_prob
    fate = rng.random(len(ids))
    shown = np.where(fate < mask_prob + random_prob, rng.choice(alphabet.STANDARD_IDS, len(ids)), ids)
    shown = np.where(fate < mask_prob, alphabet.MASK, shown)
    tokens = np.concatenate([[alphabet.CLS], np.where(selected, shown, ids), [alphabet.EOS]]).astype(np.uint8)
    return tokens, np.concatenate([[-100], np.where(selected, ids.astype(np.int64), -100), [-100]])


@pytest.fixture(scope="module", params=[MASK_ALL, BERT], ids=["mask_all", "80_10_10"])
def held_out(request: pytest.FixtureRequest) -> tuple[dict[str, float], list[Document]]:
    """One corrupted member of each held-out family, so that documents are independent."""
    rng = np.random.default_rng(11)
    members = [substitute(Families(), family, 0, ancestor(Families(), family)) for family in HELD_OUT]
    return request.param, [corrupted(ids, rng, **request.param) for ids in members]


def z_score(per_document: list[float]) -> float:
    """Mean in units of its standard error; documents are independent, their sites are not."""
    values = np.array(per_document)
    return float(values.mean() / values.std(ddof=1) * len(values) ** 0.5)


# ---- the files


def test_bytes_follow_from_the_settings(tmp_path: Path) -> None:
    written = [path.read_bytes() for path in write_corpus(tmp_path / "a", FEW)]
    assert [path.read_bytes() for path in write_corpus(tmp_path / "b", FEW)] == written
    assert written[0][4:8] == bytes(4), "gzip's time stamp"
    assert write_corpus(tmp_path / "c", replace(FEW, seed=4))[0].read_bytes() != written[0]
    same = [(ancestor(FEW, f)[:40] == ancestor(replace(FEW, seed=4), f)[:40]).mean() for f in range(12)]
    assert np.mean(same) < 0.2, "another seed, other ancestors and not only other lengths and substitutions"
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"families.fasta.gz", "clusters.tsv", "settings.json"}


def test_same_settings_keep_the_files_and_others_are_refused(tmp_path: Path) -> None:
    fasta, clusters = write_corpus(tmp_path, FEW)
    fasta.write_bytes(b"kept")
    write_corpus(tmp_path, FEW)
    assert fasta.read_bytes() == b"kept"
    with pytest.raises(ValueError, match="holds other files than the embedded corpus of these settings; choose anoth"):
        write_corpus(tmp_path, replace(FEW, substitution_prob=0.2))
    clusters.unlink()
    with pytest.raises(ValueError, match=r"choose another data\.store_dir, or remove the folder"):
        write_corpus(tmp_path, FEW)
    assert fasta.read_bytes() == b"kept"


def test_of_several_that_begin_at_once_one_writes(tmp_path: Path) -> None:
    """Each finds, when it returns, the files that stay: a run that reads them would see that they were replaced."""
    together, some = Barrier(4), replace(FEW, num_families=100)

    def written() -> list[int]:
        return [path.stat().st_ino for path in write_corpus(tmp_path / "new", some)]

    def at_once() -> list[int]:
        together.wait()
        return written()

    with ThreadPoolExecutor(4) as pool:
        found = [future.result() for future in [pool.submit(at_once) for _ in range(4)]]
    assert found == [written()] * 4


def test_a_crash_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("data.sources.synthetic._records", lambda families: iter([b">half\n", None]))
        with pytest.raises(TypeError):
            write_corpus(tmp_path / "families", FEW)
    assert list(tmp_path.iterdir()) == []
    assert write_corpus(tmp_path / "families", FEW)[0].read_bytes()


@pytest.mark.parametrize("name", ["families.fasta.gz", "clusters.tsv", "settings.json"])
@pytest.mark.parametrize("settings", [None, b'{"theme": "dark"}', b"[1]", b"{"])
def test_files_of_the_users_are_not_replaced(tmp_path: Path, name: str, settings: bytes | None) -> None:
    theirs = {name: b"years of work", "notes.txt": b"more"} | ({} if settings is None else {"settings.json": settings})
    for each, content in theirs.items():
        (tmp_path / each).write_bytes(content)
    with pytest.raises(ValueError, match="holds other files than the embedded corpus"):
        write_corpus(tmp_path, FEW)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == theirs


def test_headers_clusters_and_sequences_agree(tmp_path: Path) -> None:
    fasta, clusters = write_corpus(tmp_path, FEW)
    records = read(fasta)
    member_clusters = dict(reversed(line.split("\t")) for line in clusters.read_text().splitlines())
    assert [header.split()[0] for header, _ in records[:13]] == [
        *(f"UniRef90_SYN{family:05d}000" for family in range(12)),
        "UniRef90_SYN00000001",
    ], "families interleave"
    assert {header.split()[0] for header, _ in records} == set(member_clusters)
    assert len(records) == len(member_clusters) == 60
    for header, lines in records:
        family, member = int(header[12:17]), int(header[17:20])
        assert header == (
            f"UniRef90_SYN{family:05d}{member:03d} Synthetic family {family} member {member} n=1 "
            f"Tax=synthetic construct TaxID=32630 RepID=SYN{family:05d}{member:03d}_ZYMOG"
        )
        assert member_clusters[header.split()[0]] == f"UniRef50_SYN{family:05d}"
        assert all(len(line) == 60 for line in lines[:-1])
        assert 1 <= len(lines[-1]) <= 60
        assert "".join(lines) == alphabet.decode(substitute(FEW, family, member, ancestor(FEW, family)))


# ---- the statistics


def test_lengths_are_log_normal_and_clipped() -> None:
    lengths = np.array([len(ancestor(Families(), family)) for family in range(400)])
    assert lengths.min() >= 40
    assert lengths.max() <= 500
    median = 180 * np.exp(-(0.4**2) / 2)
    below = (lengths < median).sum()
    assert abs(below - 200) < 3 * 400**0.5 / 2
    assert np.log(lengths).std() == pytest.approx(0.4, rel=3 / 800**0.5)
    clipped = Families(min_residues=100, max_residues=110)
    assert {len(ancestor(clipped, family)) for family in range(40)} >= {100, 110}


def test_residues_and_neighbours_are_as_frequent_as_the_model_says() -> None:
    """Pairs of neighbours, and with them residues: the distribution of both sites and of the step between them."""
    model, mu = hidden_markov_model(), Families().substitution_prob
    np.testing.assert_allclose(model.stationary @ model.transitions, model.stationary, atol=1e-15)
    np.testing.assert_allclose(model.emissions.sum(1), 1)
    emissions = (1 - mu) * model.emissions + mu * model.composition
    pairs = emissions.T @ (model.stationary[:, None] * model.transitions) @ emissions
    np.testing.assert_allclose(pairs.sum(0), model.composition, err_msg="substitution keeps the composition")

    deviations, sites = [], 0
    residue_of = np.zeros(33, np.int64)
    residue_of[alphabet.STANDARD_IDS] = np.arange(20)
    for family in HELD_OUT:
        residues = residue_of[substitute(Families(), family, 0, ancestor(Families(), family))]
        counts = np.zeros((20, 20))
        np.add.at(counts, (residues[:-1], residues[1:]), 1)
        deviations.append(counts - (len(residues) - 1) * pairs)
        sites += len(residues) - 1
    frequent = sites * pairs > 20  # the deviation of a count of 0 or 1 is far from normal
    assert frequent.sum() > 300
    for found in (np.array(deviations)[:, frequent], np.array(deviations).sum(2)):
        z = found.mean(0) / found.std(0) * len(found) ** 0.5
        assert 0.5 < (z**2).mean() < 1.6
        assert np.abs(z).max() < 4.5


@pytest.mark.parametrize("mu", [0.0, 0.15, 0.6])
def test_members_keep_the_share_of_the_ancestor_that_mu_says(mu: float) -> None:
    """A site that is drawn again keeps its residue x with probability b(x)."""
    families = replace(Families(), substitution_prob=mu)
    kept, expected, variance = 0, 0.0, 0.0
    probability = np.zeros(33)
    probability[alphabet.STANDARD_IDS] = 1 - mu + mu * hidden_markov_model().composition
    for family, member in product(range(20), range(5)):
        ids = ancestor(families, family)
        kept += int((substitute(families, family, member, ids) == ids).sum())
        expected += probability[ids].sum()
        variance += (probability[ids] * (1 - probability[ids])).sum()
    assert abs(kept - expected) <= 3.5 * variance**0.5


# ---- the floor


@lru_cache(maxsize=2)
def probability_of_sequences(mu: float, steps_before: int) -> NDArray[np.float64]:
    """P of each sequence of five residues that stands `steps_before` residues into a member, (20, 20, 20, 20, 20)."""
    model = hidden_markov_model()
    e = np.array([(1 - mu) * row + mu * (model.stationary @ model.emissions) for row in model.emissions])
    start, t = model.stationary @ np.linalg.matrix_power(model.transitions, steps_before), model.transitions
    chain = "a,ai,ab,bj,bc,ck,cd,dl,de,em->ijklm"
    return np.asarray(np.einsum(chain, start, e, t, e, t, e, t, e, t, e, optimize=True))


def enumerated(shown: str, site: int, rates: dict[str, float], mu: float, steps_before: int) -> NDArray[np.float64]:
    """P(residue at `site` | shown, site selected) by Bayes over all 20**5 sequences and all selections."""
    r, m, q = rates["select_prob"], rates["mask_prob"], rates["random_prob"]
    from_site = np.ascontiguousarray(np.moveaxis(probability_of_sequences(mu, steps_before), site, 0))

    def seen(letter: str, selected: bool) -> NDArray[np.float64]:
        """P(letter, selected | residue) for each true residue."""
        same = np.array([residue == letter for residue in alphabet.STANDARD_RESIDUES], np.float64)
        if not selected:
            return (1 - r) * same
        return r * np.full(20, m) if letter == "_" else r * ((1 - m - q) * same + q / 20)

    total = np.zeros(20)
    for selection in product([False, True], repeat=5):
        if selection[site]:
            weighted = from_site
            for other in reversed([other for other in range(5) if other != site]):
                weighted = weighted @ seen(shown[other], selection[other])
            total += weighted * seen(shown[site], True)
    return total / total.sum()


@pytest.mark.parametrize(
    ("shown", "truth", "rates"),
    [
        ("_EK_A", "L..L.", MASK_ALL),
        ("V____", ".TVSI", {**MASK_ALL, "select_prob": 0.4}),
        ("_EKLA", "LEQ..", BERT),
        ("CGC_P", "CW.CP", {"select_prob": 0.3, "mask_prob": 0.5, "random_prob": 0.4}),
    ],
)
@pytest.mark.parametrize("crop", [False, True])
def test_floor_is_the_enumerated_posterior(shown: str, truth: str, rates: dict[str, float], crop: bool) -> None:
    families = Families(substitution_prob=0.15)
    tokens = np.array([IDS.get(letter, alphabet.MASK) for letter in shown], np.uint8)
    labels = np.array([IDS.get(letter, -100) for letter in truth], np.int64)
    if not crop:
        tokens = np.concatenate([[alphabet.CLS], tokens, [alphabet.EOS]]).astype(np.uint8)
        labels = np.concatenate([[-100], labels, [-100]])
    longer = corrupted(
        ancestor(families, 0), np.random.default_rng(0), **rates
    )  # beside it, so that this one is padded
    result = floor([longer, (tokens, labels)], families, **rates)[1]
    posterior = posteriors([longer, (tokens, labels)], families, **rates)[1]
    assert result.dtype == np.float64
    sites = [site for site in range(5) if truth[site] != "."]
    assert result.shape == (len(sites),)
    for row, site in enumerate(sites):
        expected = enumerated(shown, site, rates, mu=0.15, steps_before=7 if crop else 0)
        np.testing.assert_allclose(posterior[row], expected, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(
            result[row], -np.log(expected["ACDEFGHIKLMNPQRSTVWY".index(truth[site])]), rtol=1e-10
        )


@pytest.mark.slow
def test_no_other_predictor_does_better(held_out: tuple[dict[str, float], list[Document]]) -> None:
    """Gibbs' inequality, by more than four standard errors of the paired difference."""
    rates, documents = held_out
    best = floor(documents, Families(), **rates)
    by_id = np.zeros(33)
    by_id[alphabet.STANDARD_IDS] = hidden_markov_model().composition
    unigram = [-np.log(by_id[labels[labels >= 0]]) for _, labels in documents]
    rivals = {
        "unigram": unigram,
        "too few substitutions": floor(documents, Families(substitution_prob=0.05), **rates),
        "too many substitutions": floor(documents, Families(substitution_prob=0.35), **rates),
        "a window of two residues each way": [window_losses(document, 2, rates) for document in documents],
    }
    if rates is BERT:
        rivals["thinks that shown residues are mostly kept"] = floor(
            documents, Families(), **{**rates, "random_prob": 0.02}
        )
    for name, losses in rivals.items():
        excess = [float((rival - own).sum()) for rival, own in zip(losses, best, strict=True)]
        assert z_score(excess) > 4, name
    perplexity, unigram_perplexity = np.exp(np.concatenate(best).mean()), np.exp(np.concatenate(unigram).mean())
    assert 16 < unigram_perplexity < 18.5
    assert perplexity < unigram_perplexity / 2


def window_losses(document: Document, reach: int, rates: dict[str, float]) -> NDArray[np.float64]:
    tokens, labels = document[0][1:-1], document[1][1:-1]
    pieces = []
    for site in np.flatnonzero(labels >= 0):
        window = slice(max(0, site - reach), site + reach + 1)
        alone = np.where(np.arange(len(labels)) == site, labels, -100)
        pieces.append((tokens[window], alone[window]))
    return np.concatenate([np.empty(0), *floor(pieces, Families(), **rates)])


def test_posteriors_are_calibrated(held_out: tuple[dict[str, float], list[Document]]) -> None:
    """The mean loss is the mean entropy of the posteriors, and a posterior of p comes true with frequency p."""
    rates, documents = held_out
    losses, predicted = floor(documents, Families(), **rates), posteriors(documents, Families(), **rates)
    surprise, hits = [], []
    for (tokens, labels), loss, posterior in zip(documents, losses, predicted, strict=True):
        np.testing.assert_allclose(posterior.sum(1), 1)
        surprise.append(float(loss.sum() + (posterior * np.log(np.maximum(posterior, 1e-300))).sum()))
        is_shown = tokens[labels >= 0][:, None] == alphabet.STANDARD_IDS
        is_true = labels[labels >= 0][:, None] == alphabet.STANDARD_IDS
        counted = is_shown if rates is BERT else posterior > 0.5
        hits.append(float((counted * (is_true - posterior)).sum()))
    assert abs(z_score(surprise)) < 3
    assert abs(z_score(hits)) < 3


def test_floor_keeps_the_order_of_documents_and_allows_none_selected() -> None:
    rng = np.random.default_rng(2)
    documents = [corrupted(ancestor(FEW, family), rng, **BERT) for family in range(12)] * 30  # more than one batch
    documents[5] = (documents[5][0], np.full_like(documents[5][1], -100))
    together = floor(documents, FEW, **BERT)
    assert together[5].shape == (0,)
    for number in (0, 5, 17, 300):
        np.testing.assert_allclose(together[number], floor([documents[number]], FEW, **BERT)[0], rtol=1e-12)


def test_floor_refuses_what_the_corruption_cannot_show() -> None:
    document = corrupted(ancestor(FEW, 0), np.random.default_rng(1), **BERT)
    assert (document[0][document[1] >= 0] != alphabet.MASK).any()
    with pytest.raises(ValueError, match=r"document 0 was not corrupted with select_prob 0\.15, mask_prob 1\.0"):
        floor([document], FEW, **MASK_ALL)
    with pytest.raises(ValueError, match=r"mask_prob 0\.8, random_prob 0\.3: "):
        floor([document], FEW, select_prob=0.15, mask_prob=0.8, random_prob=0.3)
    foreign = document[0].copy()
    foreign[4] = alphabet.TOKENS.index("X")
    with pytest.raises(ValueError, match="document 1 has tokens or labels beside"):
        floor([document, (foreign, document[1])], FEW, **BERT)
