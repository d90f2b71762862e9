"""The audit of a split: counts by hand, mutations of variants, a pretraining corpus; and the words for a split."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from finetune.splits.audit import ConditionOverlap, Overlap, SplitAudit, audit
from finetune.splits.parts import SplitParts, parts_of
from finetune.splits.settings import SplitSettings
from finetune.splits.split import Split, split_records
from finetune.splits.text import format_split
from finetune.splits.variants import to_nearest
from support.assays.split_records import named_records, protein_records
from support.inputs.token_stores import store_of
from zymogen.keyed_random import hashes, integers


@pytest.fixture(autouse=True)
def _no_mmseqs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)


def drawn(length: int, seed: int) -> str:
    return "".join("ACDEFGHIKLMNPQRSTVWY"[number] for number in integers(hashes(seed, np.arange(length)), 20))


def every(protein: str, step: int) -> str:
    return "".join("CA"[letter == "C"] if at % step == 0 else letter for at, letter in enumerate(protein))


# Tested are 3 to 6: a close relative of 0, one with a piece of 1, a stranger, a close relative of 2, which validates.
PROTEINS = [drawn(290 + seed, seed) for seed in range(3)]
SEQUENCES = [*PROTEINS, every(PROTEINS[0], 30), drawn(278, 9) + PROTEINS[1][:12], drawn(299, 8), every(PROTEINS[2], 30)]
PART = np.array([0, 0, 1, 2, 2, 2, 2])


def test_the_tested_side_asks(tmp_path: Path) -> None:
    records = protein_records(tmp_path, SEQUENCES)
    parts = parts_of(records.digests, PART)
    found = audit(records.store, parts)
    assert [(each.against, each.queries, each.targets, each.equal) for each in found.comparisons] == [
        ("train", 4, 2, 0),
        ("validation", 4, 1, 0),
    ]
    # Nine of ten words of five are unchanged at one mutation in 30: 0.83**0.2 = 0.96.
    assert found.of_training.identities == (0.3, 0.5, 0.9)
    # Twelve residues have eight words, and (8 / 286)**0.2 = 0.49.
    assert found.of_training.similar == (2, 1, 1)
    assert found.comparisons[1].similar == (1, 1, 1)
    assert found.of_training.share(0.5) == 0.25
    assert found.of_training.share(0.4) is None
    assert found.is_approximate
    assert found.distances is None
    assert found.fingerprint == parts.fingerprint
    assert "approximate" in found.searched_by


def test_folds_are_audited_together(tmp_path: Path) -> None:
    records = protein_records(tmp_path, SEQUENCES)
    fold = np.array([0, 1, 2, 1, 1, 0, 2])  # 3 is apart from its relative 0; 6 is beside its relative 2
    found = audit(records.store, parts_of(records.digests, np.zeros(7, int), None, fold))
    (only,) = found.comparisons
    assert (only.against, only.queries, only.similar) == ("the other folds", 7, (2, 2, 2))


def write_run(run: Path, recipe: object = None, **corpus: object) -> Path:
    run.mkdir()
    described = {"format": "zymogen.run/2", "corpus": corpus, "recipe": recipe or {}}
    (run / "run.json").write_text(json.dumps(described))
    return run


def test_the_pretraining_corpus_is_asked_too(tmp_path: Path) -> None:
    records = protein_records(tmp_path / "table", SEQUENCES)
    parts = parts_of(records.digests, PART)
    corpora = [
        store_of(tmp_path / name, [(str(i), letters) for i, letters in enumerate(letters_of)])
        for name, letters_of in (("a", [SEQUENCES[4], drawn(50, 77), SEQUENCES[0]]), ("b", [every(SEQUENCES[5], 30)]))
    ]
    run = write_run(tmp_path / "run", mixture=[{"store": str(store.folder)} for store in corpora])
    for folder in ("export", "checkpoints/step-000000010"):
        (run / folder).mkdir(parents=True)
    for init in (run, run / "export", run / "checkpoints/step-000000010"):
        found = audit(records.store, parts, init=str(init))
        compared = [(each.targets, each.equal, each.similar) for each in found.comparisons[2:]]
        assert compared == [(3, 1, ()), (1, 0, ())]
        assert found.comparisons[2].against == f"pretraining {corpora[0].folder}"
        assert found.notes == ()
    found = audit(records.store, parts, init=str(run), search_pretraining=True)
    assert [(each.equal, each.similar) for each in found.comparisons[2:]] == [(1, (2, 2, 2)), (0, (1, 1, 1))]
    # A run that continued from another: both corpora count.
    next_run = write_run(tmp_path / "next", {"model": {"init": str(run)}}, store=str(corpora[1].folder))
    assert len(audit(records.store, parts, init=str(next_run)).comparisons) == 5


NO_RUN = "lies in no run's directory with a run.json that can be read"
NO_STORE = "names no token store that can be read"


@pytest.mark.parametrize(
    ("init", "said"),
    [
        ("facebook/esm2_t6_8M_UR50D", f"facebook/esm2_t6_8M_UR50D {NO_RUN}"),
        ("weights", f"weights {NO_RUN}"),
        ("gone", f"run.json of gone {NO_STORE}"),
        ("no_corpus", f"run.json of no_corpus {NO_STORE}"),
        ("damaged", f"damaged {NO_RUN}"),
        ("of_hub", f"org/model {NO_RUN}"),
    ],
)
def test_a_pretraining_corpus_that_is_not_compared_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, init: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    write_run(tmp_path / "gone", store=str(tmp_path / "a"))
    write_run(tmp_path / "no_corpus")
    (write_run(tmp_path / "damaged") / "run.json").write_text("{}")
    store = store_of(tmp_path / "of", [("a", drawn(50, 1))])
    write_run(tmp_path / "of_hub", {"model": {"init": "org/model"}}, store=str(store.folder))
    records = protein_records(tmp_path / "table", SEQUENCES)
    found = audit(records.store, parts_of(records.digests, PART), init=init)
    assert found.notes == (f"overlap with pretraining was not checked: {said}",)


def test_what_is_scored_is_counted(tmp_path: Path) -> None:
    """Forty labelled tested proteins, each a relative of one that trains, were 3.8 % of 1,040 with the unlabelled."""
    trained = [drawn(60, seed) for seed in range(4)]
    letters = [*trained, *(every(each, 30) for each in trained), *(drawn(60, seed) for seed in range(10, 40))]
    records = protein_records(tmp_path, letters)
    part = np.array([0] * 4 + [2] * 34)
    part[-10:] = 0  # training records without a label teach nothing
    labelled = {"a": np.arange(8), "b": np.array([0, 4, 8])}
    found = audit(records.store, parts_of(records.digests, part), labelled)
    of_training = found.of_training
    assert (of_training.queries, of_training.targets, of_training.similar) == (5, 4, (4, 4, 4))
    of_tasks = [(task.against, task.queries, task.similar) for task in found.tasks]
    assert of_tasks == [("a", 4, (4, 4, 4)), ("b", 2, (1, 1, 1))]


def test_conditions_are_counted_with_proteins(tmp_path: Path) -> None:
    trained = [drawn(60, seed) for seed in range(2)]
    letters = [*trained, every(trained[0], 30), *(drawn(60, seed) for seed in (8, 9))]
    records = protein_records(tmp_path, letters)
    # Two ligands: the first was measured in training, the second is new.
    labelled = {"y, ligand C": np.array([0, 1, 2, 3]), "y, ligand CC": np.array([2, 4])}
    parts = parts_of(records.digests, np.array([0, 0, 2, 2, 2]))
    found = audit(records.store, parts, labelled, conditioned=labelled.keys())
    assert found.conditions == ConditionOverlap(labels=4, condition=2, protein=2, both=1)
    said = format_split(SplitSettings(by="random"), split_records(SplitSettings(by="random"), records), found)
    assert said.endswith(
        "; of 4 tested pairs of a protein and a condition, 2 have a condition that trains too, 2 a protein with a "
        "relative there, 1 both"
    )


def test_a_protein_that_no_search_finds_is_not_called_clean(tmp_path: Path) -> None:
    letters = [drawn(60, 1), "Q" * 50 + "M", "Q" * 60, drawn(60, 2), every(drawn(60, 1), 30)]
    records = protein_records(tmp_path, letters)
    found = audit(records.store, parts_of(records.digests, np.array([0, 0, 2, 2, 2])))
    assert (found.of_training.queries, found.of_training.searchable, found.of_training.similar) == (3, 2, (1, 1, 1))
    assert found.of_training.share(0.3) == 0.5
    division = split_records(SplitSettings(by="random"), records)
    assert format_split(SplitSettings(by="random"), division, found).endswith(
        "of 3 tested sequences, 0 are also in training, and of the 2 that the search can find at least, by an "
        "approximate search, 50.0% have a relative there of at least 30% identity; 1 do not find themselves, so that "
        "nothing is known of their relatives"
    )


def test_peptides_are_audited_exactly_without_mmseqs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    letters = sorted({"".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), rng.integers(8, 16))) for _ in range(300)})
    relatives = [each[:-1] + ("A" if each[-1] != "A" else "C") for each in letters[:60:2]]
    records = protein_records(tmp_path, [*letters, *relatives])
    part = np.array([0] * len(letters) + [2] * len(relatives))
    part[60:100] = 2
    found = audit(records.store, parts_of(records.digests, part), identities=(0.8,))
    of_training = found.of_training
    assert not found.is_approximate
    assert (of_training.queries, of_training.searchable, of_training.equal, of_training.similar) == (70, 70, 0, (30,))


def test_variants_are_counted_by_mutations(tmp_path: Path) -> None:
    parent = drawn(40, 3)

    def mutant(*positions: int) -> str:
        return "".join("CA"[letter == "C"] if at in positions else letter for at, letter in enumerate(parent))

    records = protein_records(tmp_path, [parent, mutant(1), mutant(2), mutant(1, 3), mutant(2, 5, 6), mutant(8, 9, 10)])
    found = audit(records.store, parts_of(records.digests, np.array([0, 0, 0, 2, 2, 2])))
    # 1 to mutant(1), 2 to mutant(2), 3 to the parent.
    assert found.distances == (0, 1, 1, 1)
    assert found.of_training == Overlap("train", 3, 3, 0)
    division = split_records(SplitSettings(by="random"), records)
    assert format_split(SplitSettings(by="random"), division, found) == (
        "a random split, the optimistic one: relatives of tested sequences may train (drawn at random); variants of "
        "one protein: of 3 tested sequences, 1 (33.3%) have at most one mutation to the nearest of training"
    )


def test_the_nearest_is_that_of_all_pairs() -> None:
    letters = integers(hashes(0, np.arange(40 * 12)), 3).reshape(40, 12).astype(np.uint8)
    queries, targets = letters[:17], letters[17:]
    by_pairs = [min(int((query != target).sum()) for target in targets) for query in queries]
    assert to_nearest(queries, targets).tolist() == by_pairs
    assert to_nearest(queries, targets[:0]).tolist() == [12] * 17
    assert to_nearest(queries[:0], targets).tolist() == []
    assert to_nearest(queries[:1], queries[:1]).tolist() == [0]


# Words --------------------------------------------------------------------------------------------


def made(
    similar: int, equal: int = 0, approximate: bool = False, searchable: int = 100, of_task: tuple[int, int] = (100, 0)
) -> SplitAudit:
    comparison = Overlap("train", 100, 900, equal, (0.3, 0.5, 0.9), (similar, 2, 0), searchable)
    labels, related = of_task
    task = Overlap("rare", labels, 900, 0, (0.3, 0.5, 0.9), (related, 0, 0), labels)
    return SplitAudit("f", "MMseqs2 14", approximate, (comparison,), None, tasks=(task,))


def division(approximate: bool = False) -> Split:
    parts: SplitParts = parts_of(named_records("ab").digests, np.array([0, 2]))
    return Split(parts, "MMseqs2 14: identity 0.3", approximate, ())


HOMOLOGY = SplitSettings(by="homology")


@pytest.mark.parametrize(
    ("settings", "of", "found", "holds"),
    [
        (HOMOLOGY, division(), made(0), True),
        (HOMOLOGY, division(), made(5), True),
        (HOMOLOGY, division(), made(6), False),
        (HOMOLOGY, division(), made(1, equal=1), False),
        (HOMOLOGY, division(), made(0, approximate=True), False),
        (HOMOLOGY, division(), made(0, searchable=95), True),
        (HOMOLOGY, division(), made(0, searchable=94), False),
        (HOMOLOGY, division(), made(0, searchable=0), False),
        (HOMOLOGY, division(), made(0, of_task=(40, 2)), True),
        (HOMOLOGY, division(), made(0, of_task=(40, 3)), False),
        (HOMOLOGY, division(), made(0, of_task=(19, 19)), True),  # too few to tell
        (HOMOLOGY, division(), None, False),
        (HOMOLOGY, division(approximate=True), made(0), False),
        (replace(HOMOLOGY, identity=0.5), division(), made(60), True),
        (replace(HOMOLOGY, identity=0.4), division(), made(0), False),  # not counted at 40 %
        (SplitSettings(by="random"), division(), made(0), False),
    ],
)
def test_only_a_clean_split_is_called_a_homology_split(
    settings: SplitSettings, of: Split, found: SplitAudit | None, holds: bool
) -> None:
    said = format_split(settings, of, found)
    assert said.startswith("a homology split at") is holds
    assert ("not a homology split" in said) is (settings.by == "homology" and not holds)


FOLDED = replace(division(), parts=parts_of(named_records("ab").digests, np.zeros(2), fold=np.array([0, 1])))
PRETRAINED = Overlap("pretraining stores/u50", 100, 5_000, 58)


@pytest.mark.parametrize(
    ("settings", "of", "found", "said"),
    [
        (
            HOMOLOGY,
            division(),
            made(47, equal=2),
            "^a split by clusters of relatives, not a homology split: it leaks at 30% identity (MMseqs2 14: identity "
            "0.3); of 100 tested sequences, 2 are also in training, and 47.0% have a relative there of at least 30% "
            "identity$",
        ),
        (
            HOMOLOGY,
            division(),
            made(0, of_task=(40, 30)),
            "^a split by clusters of relatives, not a homology split: it leaks at 30% identity in rare (MMseqs2 14: "
            "identity 0.3); of 100 tested sequences, 0 are also in training, and 0.0% have a relative there of at "
            "least 30% identity; of the 40 of rare, 75.0%$",
        ),
        (
            HOMOLOGY,
            division(),
            made(0, searchable=0),
            "of 100 tested sequences, the search can find none, so that nothing is known of their relatives in "
            "training$",
        ),
        (
            HOMOLOGY,
            division(),
            replace(made(0), comparisons=(*made(0).comparisons, PRETRAINED)),
            "identity; 58 of 100 are in the pretraining corpus$",
        ),
        (HOMOLOGY, FOLDED, made(0), "^a homology split at 30% identity, in 2 folds (MMseqs2 14"),
        (
            SplitSettings(by="random"),
            FOLDED,
            None,
            "^a random split, in 2 folds, the optimistic one: relatives of tested sequences may train (MMseqs2",
        ),
    ],
)
def test_the_words_have_the_figures(settings: SplitSettings, of: Split, found: SplitAudit | None, said: str) -> None:
    assert said in f"^{format_split(settings, of, found)}$"
