"""What validates or is excluded anywhere never trains, by the content of batches; and nothing else is taken out."""

import json
import random
import re
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from data.alphabet import TOKENS
from data.batches.batch import Batch
from data.batches.loader import Loader
from data.corpus.corpora import Corpora
from data.corpus.prepare import open_corpora, prepare_corpora
from data.homology import overlap
from data.homology.clusters import open_clusters
from data.homology.split import open_split, prefix_split
from data.order.plan import Cursor
from data.settings import CorpusSettings, DataSettings, MixedCorpus
from support.inputs.flat_batches import labels_of
from support.inputs.token_stores import store_of

LONGEST = 30
Names = dict[str, str]


def opened(settings: DataSettings) -> Corpora:
    return open_corpora(settings, prepare_corpora(settings))


def protein(numbers: random.Random) -> str:
    return "".join(numbers.choices("ACDEFGHIKLMNPQRSTVWY", k=numbers.randint(6, LONGEST)))


@dataclass
class Files:
    """The files of one corpus: letters by name, what a table excludes, and how it is drawn."""

    letters: Names
    excluded: set[str]
    settings: MixedCorpus


def corpus_files(
    folder: Path,
    letters: Names,
    clusters: dict[str, int] | None = None,
    excluded: set[str] = frozenset(),
    **settings: object,
) -> Files:
    folder.mkdir(parents=True)
    fasta = folder / "proteins.fasta"
    fasta.write_text("".join(f">{name}\n{each}\n" for name, each in letters.items()))
    tables: dict[str, str] = {}
    if clusters is not None:
        tables["clusters"] = str(folder / "clusters.tsv")
        Path(tables["clusters"]).write_text("".join(f"c{clusters[name]}\t{name}\n" for name in letters))
    if excluded:
        tables["exclude"] = str(folder / "exclude.tsv")
        Path(tables["exclude"]).write_text("".join(f"{name}\n" for name in sorted(excluded)))
    return Files(letters, set(excluded), MixedCorpus(sources=(str(fasta),), **tables, **settings))


def run_of(folder: Path, files: list[Files], alone: bool = False) -> DataSettings:
    """A run on these corpora; crops are as long as the longest protein, so that a document is one whole."""
    one = {name: getattr(files[0].settings, name) for name in ("sources", "clusters", "exclude", "sample_by")}
    drawn_from = one if alone else {"mixture": tuple(each.settings for each in files)}
    return DataSettings(
        **drawn_from,
        store_dir=str(folder / "stores"),
        validation_fraction=0.15,
        crop_tokens=LONGEST + 2,
        bin_tokens=64,
        bins_per_step=8,
        window_sequences=32,
    )


def drawn(folder: Path, seed: int) -> tuple[list[Files], DataSettings]:
    """A run on one to three corpora that share proteins, each at random with clusters, exclusions and duplicates."""
    numbers = random.Random(seed)
    pool = [protein(numbers) for _ in range(80)]
    files = []
    for corpus in range(numbers.choice((1, 2, 2, 3))):
        letters = {f"p{corpus}-{i}": numbers.choice(pool) for i in range(numbers.randint(40, 70))}
        files.append(
            corpus_files(
                folder / str(corpus),
                letters,
                {name: numbers.randrange(20) for name in letters} if numbers.random() < 0.6 else None,
                {name for name in letters if numbers.random() < 0.06} if numbers.random() < 0.5 else set(),
                sample_by=numbers.choice(("sequence", "sequence", "cluster")),
                weight=numbers.randint(1, 3),
            )
        )
    return files, run_of(folder, files, alone=len(files) == 1)


def documents(batch: Batch) -> list[str]:
    """The true letters of each document of a batch, which masks hide from the model."""
    true = np.where(labels_of(batch).numpy() >= 0, labels_of(batch).numpy(), batch.tokens.numpy())
    return ["".join(TOKENS[token] for token in true[start + 1 : end - 1]) for start, end in batch.spans]


def fed(corpora: Corpora, passes: int = 4) -> Counter[str]:
    """What a loader feeds until each corpus has been passed through so often."""
    settings = corpora.settings
    largest = max(part.store.num_records / weight for part, weight in zip(corpora.parts, settings.weights, strict=True))
    windows = passes * largest * sum(settings.weights) / settings.window_sequences
    found: Counter[str] = Counter()
    with closing(Loader(corpora.masked(0), corpora.plan(0), Cursor(), 0, 0, 1)) as loader:
        for step in loader:
            found.update(letters for batch in step.batches for letters in documents(batch))
            if step.cursor.window > windows or step.cursor.epoch > passes:
                return found
    raise AssertionError


def validating(corpora: Corpora) -> set[str]:
    residues = (corpora.reader.residues(int(sample)) for sample in corpora.validation)
    return {"".join(TOKENS[token] for token in each) for each in residues}


def excluded(files: list[Files]) -> set[str]:
    return {each.letters[name] for each in files for name in each.excluded}


SEEDS = range(10)


@pytest.mark.parametrize("seed", [*SEEDS[:4], *(pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS[4:])])
def test_what_validates_or_is_excluded_is_never_fed(tmp_path: Path, seed: int) -> None:
    files, settings = drawn(tmp_path, seed)
    corpora = opened(settings)
    kept_out = validating(corpora) | excluded(files)
    trained = set(fed(corpora))
    assert trained
    assert not trained & kept_out
    # And nothing else is taken out: every other sequence is read, unless another member of its cluster was.
    expected = [{letters for letters in each.letters.values() if letters not in kept_out} for each in files]
    assert trained <= set().union(*expected)
    for each, its_own in zip(files, expected, strict=True):
        assert each.settings.sample_by == "cluster" or its_own <= trained
    for each, part in zip(files, corpora.parts, strict=True):
        training = [letters for letters in each.letters.values() if letters not in kept_out]
        assert part.split.num_training == len(training)
        assert part.split.is_training(np.arange(part.store.num_records)).sum() == len(training)


@pytest.mark.slow
def test_without_taking_out_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the same check on splits that know nothing of each other."""
    monkeypatch.setattr("data.corpus.prepare.remove_overlap", tuple)
    caught = []
    for seed in SEEDS:
        files, settings = drawn(tmp_path / str(seed), seed)
        corpora = opened(settings)
        caught.append(bool(set(fed(corpora)) & (validating(corpora) | excluded(files))))
    assert sum(caught) >= 0.7 * len(caught)  # some of the runs have nothing that could leak


def two(folder: Path, **of_second: object) -> tuple[list[Files], DataSettings]:
    """Two corpora with the same 120 proteins under other names; the first has clusters of four."""
    numbers = random.Random(7)
    letters = [protein(numbers) for _ in range(120)]
    first = {f"a{i}": each for i, each in enumerate(letters)}
    second = {f"b{i}": each for i, each in enumerate(letters)}
    files = [
        corpus_files(folder / "a", first, {f"a{i}": i // 4 for i in range(120)}),
        corpus_files(folder / "b", second, **of_second),
    ]
    return files, run_of(folder, files)


def test_the_counts_of_what_was_taken_out(tmp_path: Path) -> None:
    names = {f"b{i}" for i in range(30)}
    _, settings = two(tmp_path, excluded=names)
    alone = [opened(replace(settings, mixture=(corpus,))).parts[0].split for corpus in settings.mixture]
    held = [set(split.validation.tolist()) for split in alone]
    assert held[0] - held[1]
    assert held[1] - held[0]
    corpora = opened(settings)
    both = held[0] | held[1]
    by_hand = [
        # Record i of one is record i of the other.
        (120, len(held[0]), 0, len(held[1] - held[0]), len(set(range(30)) - both)),
        (120, len(held[1]), len(set(range(30)) - held[1]), len(held[0] - held[1] - set(range(30))), 0),
    ]
    names_of_counts = "records", "validation_records", "excluded_records", "copies_of_validation", "copies_of_excluded"
    described = corpora.description()["mixture"]
    assert [tuple(each[name] for name in names_of_counts) for each in described] == by_hand
    for each, part, counts in zip(described, corpora.parts, by_hand, strict=True):
        assert each["training_records"] == part.split.num_training == 120 - sum(counts[1:])
    assert [part.split.validation.tolist() for part in corpora.parts] == [sorted(each) for each in held]
    # A named record whose copy validates in the other corpus still validates there, and trains nowhere.
    assert held[0] & set(range(30)) - held[1]
    assert corpora.num_training == sum(120 - sum(counts[1:]) for counts in by_hand)
    assert corpora.split_fingerprint != opened(replace(settings, mixture=settings.mixture[:1])).split_fingerprint


def test_a_split_that_loses_nothing_keeps_its_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = random.Random(1)
    letters = [protein(numbers) for _ in range(100)]
    halves = [{f"{half}{i}": each for i, each in enumerate(letters[half * 50 : half * 50 + 50])} for half in (0, 1)]
    files = [
        corpus_files(tmp_path / "a", halves[0], {f"0{i}": i // 3 for i in range(50)}),
        corpus_files(tmp_path / "b", halves[1]),
        corpus_files(tmp_path / "c", halves[0]),
    ]
    corpora = opened(run_of(tmp_path, files[:2]))
    for part in corpora.parts:
        assert part.clusters is not None
        before = open_split(part.store, part.clusters, 0.15, None)
        assert part.split == before
        assert len(list(part.store.folder.glob("overlap-*"))) == 1  # that nothing is lost was found by looking
    # Where digests alone decide, nothing can be lost, and nobody looks.
    monkeypatch.setattr(overlap, "_digests", None)
    assert opened(run_of(tmp_path, files[:2])).split_fingerprint == corpora.split_fingerprint
    for settings in (run_of(tmp_path, files[1:]), run_of(tmp_path, files[1:2], alone=True)):
        others = opened(settings)
        assert [part.split for part in others.parts] == [
            open_split(part.store, open_clusters(part.store, None), 0.15, None) for part in others.parts
        ]
        assert len(list(others.parts[0].store.folder.glob("overlap-*"))) == 1  # that of before


def test_equal_sequences_in_two_clusters_of_one_corpus(tmp_path: Path) -> None:
    numbers = random.Random(2)
    pool = [protein(numbers) for _ in range(50)]
    letters = {f"p{i}": pool[i % 50] for i in range(100)}
    files = [corpus_files(tmp_path / "a", letters, {f"p{i}": i // 2 for i in range(100)})]
    (part,) = opened(run_of(tmp_path, files, alone=True)).parts
    held = set(part.split.validation.tolist())
    copies = sorted({(i + 50) % 100 for i in held} - held)
    assert copies
    assert part.split.copies.tolist() == copies
    assert part.split.copies.dtype == np.int64
    assert isinstance(part.split.copies, np.memmap)
    assert part.split.num_training == 100 - len(held) - len(copies)
    plain = open_split(part.store, part.split.clusters, 0.15, None)
    assert part.split.fingerprint != plain.fingerprint
    assert not overlap.remove_overlap([plain])[0].is_training(part.split.validation).any()


def test_it_is_found_again_and_does_not_depend_on_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name, block in (("one", 1 << 20), ("many", 7)):
        monkeypatch.setattr("data.homology.clusters._BLOCK", block)
        _, settings = two(tmp_path / name, excluded={"b5", "b50"})
        splits = [part.split for part in opened(settings).parts]
        found.append([(s.fingerprint, s.copies.tolist(), s.copies_of_validation, s.copies_of_excluded) for s in splits])
    assert found[0] == found[1]
    monkeypatch.setattr(overlap, "_digests", None)  # a second scan fails
    again = opened(settings)
    assert [part.split.copies.tolist() for part in again.parts] == [copies for _, copies, *_ in found[0]]
    (folder,) = again.parts[0].store.folder.glob("overlap-*")
    facts = json.loads((folder / "overlap.json").read_text())
    assert facts["fingerprint"] == again.parts[0].split.fingerprint != facts["split"]
    content = (folder / "copies.bin").read_bytes()
    flipped = content[:3] + bytes([content[3] ^ 1]) + content[4:]
    for damaged, said in (content[:-8], r"has \d+ bytes, it must have \d+"), (flipped, "differs from what was written"):
        (folder / "copies.bin").write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"copies\.bin {said}: .*delete {folder}, it is written again"):
            opened(settings)


def test_a_corpus_of_which_nothing_is_left(tmp_path: Path) -> None:
    files, settings = two(tmp_path)
    held = opened(settings).parts[0].split.validation.tolist()
    names = {name: letters for i, (name, letters) in enumerate(files[1].letters.items()) if i in held}
    rest = corpus_files(tmp_path / "rest", names)
    message = (
        rf"of its {len(names)} records (\d+) validate and 0 are excluded; of the others, (\d+) equal a sequence that"
    )
    with pytest.raises(ValueError, match=message) as caught:
        opened(run_of(tmp_path, [files[0], rest]))
    assert sum(int(count) for count in re.findall(r"(\d+) (?:validate and|equal)", str(caught.value))) == len(names)
    assert len(list((tmp_path / "stores").glob("*/overlap-*"))) == 3  # of the run before, and of the first corpus here
    assert not list((tmp_path / "stores").glob("*/.overlap-*"))


def test_residues_are_counted_on_what_trains(tmp_path: Path) -> None:
    files, settings = two(tmp_path, excluded={"b1", "b2", "b3"})
    corpora = opened(settings)
    kept_out = validating(corpora) | excluded(files)
    training = "".join(letters for each in files for letters in each.letters.values() if letters not in kept_out)
    counts = corpora.token_counts(10**8)
    assert {TOKENS[token]: int(n) for token, n in enumerate(counts) if n} == Counter(training)


def test_a_stream_cannot_leak(tmp_path: Path) -> None:
    """Its split goes by content digest alone, and what else could decide is refused."""
    numbers = random.Random(3)
    pool = [protein(numbers) for _ in range(60)]
    store = store_of(tmp_path, [(f"p{i}", numbers.choice(pool)) for i in range(300)])
    split = prefix_split(store, 100, 0.15)
    assert overlap.remove_overlap([split]) == (split,)
    trains = split.is_training(np.arange(300))
    validate = np.isin(store.digests, store.digests[split.validation])
    assert validate[100:].any()  # copies after the prefix
    assert not (trains & validate).any()
    for name, value in (("clusters", "c.tsv"), ("split_identity", 0.3), ("exclude", "x.tsv"), ("sample_by", "cluster")):
        with pytest.raises(ValueError, match=rf"streaming is true and {name} is {value!r}"):
            CorpusSettings(sources=("-",), streaming=True, **{name: value})
    with pytest.raises(ValueError, match=r"streaming of data\.mixture is True; a mixture is drawn from finished store"):
        MixedCorpus(sources=("-",), streaming=True)
