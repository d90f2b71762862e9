"""Parts, dealing and split.csv: sizes, whole groups, a fingerprint of content, and what is written comes back."""

from pathlib import Path

import numpy as np
import pytest

from finetune.splits import split_file
from finetune.splits.balance import balance_groups
from finetune.splits.parts import TEST, TRAIN, UNUSED, VALIDATION, SplitParts, in_order_of_first, parts_of
from finetune.splits.settings import SplitSettings
from zymogen.keyed_random import hashes

DIGESTS = hashes(7, np.arange(1000))
THREE = (0.8, 0.1, 0.1)


def test_another_seed_deals_otherwise_and_the_same_seed_alike() -> None:
    first, again, other = (balance_groups(np.arange(1000), DIGESTS, THREE, seed) for seed in (0, 0, 1))
    assert first.tolist() == again.tolist()
    # Two independent draws agree on 0.8**2 + 2 * 0.1**2 = 66 % of the records; four deviations are 6 %.
    assert 0.60 < np.mean(first == other) < 0.72


def test_the_draw_depends_on_content_alone() -> None:
    group = np.arange(1000) % 130
    by_record = balance_groups(in_order_of_first(group), DIGESTS, THREE, 3)[in_order_of_first(group)]
    order = np.argsort(hashes(1, np.arange(1000)))
    shuffled = in_order_of_first(group[order])
    assert balance_groups(shuffled, DIGESTS[order], THREE, 3)[shuffled].tolist() == by_record[order].tolist()


def test_groups_stay_whole_and_large_ones_are_not_all_in_training() -> None:
    # 20 groups of 20, 60 of 10: of a total of 1,000, a side of 100 has room for groups of both sizes.
    group = np.concatenate([np.repeat(np.arange(20), 20), 20 + np.repeat(np.arange(60), 10)])
    sides = balance_groups(group, DIGESTS, THREE, 0)
    assert np.bincount(sides[group]).tolist() == [800, 100, 100]
    assert set(sides[:20].tolist()) == {0, 1, 2}


def test_a_group_is_not_dealt_where_it_does_not_fit() -> None:
    # The group of three would overfill the side of two, which is still empty when it is its turn.
    group = np.repeat([0, 1, 2], [5, 3, 2])
    assert balance_groups(group, DIGESTS[:10], (0.8, 0.2), 0).tolist() == [0, 0, 1]


def test_a_group_that_fits_nowhere_goes_where_most_is_missing() -> None:
    group = np.array([0] * 9 + [1])
    assert balance_groups(group, DIGESTS[:10], (0.5, 0.0, 0.5), 0).tolist() == [0, 2]


def test_parts_refuse_a_torn_group() -> None:
    group = np.array([5, 6, 5, 7])
    with pytest.raises(ValueError, match="records 0 and 2 are of one group and stand on two sides, train and test"):
        parts_of(DIGESTS[:4], np.array([TRAIN, TRAIN, TEST, UNUSED]), group)
    with pytest.raises(ValueError, match="two sides, fold 0 and fold 1"):
        parts_of(DIGESTS[:4], np.zeros(4, int), group, np.array([0, 2, 1, 1]))
    found = parts_of(DIGESTS[:4], np.array([TRAIN, TRAIN, UNUSED, TEST]), group)
    assert in_order_of_first(found.group).tolist() == [0, 1, 0, 2]


def test_the_fingerprint_covers_content_parts_folds_and_groups() -> None:
    part, group, fold = np.array([0, 1, 2, -1]), np.array([3, 4, 5, 5]), np.array([-1, -1, -1, -1])
    whole = parts_of(DIGESTS[:4], part, group, fold)
    assert whole.fingerprint == parts_of(DIGESTS[:4], part, np.array([9, 1, 0, 0])).fingerprint  # other names
    others = [
        parts_of(DIGESTS[1:5], part, group, fold),
        parts_of(DIGESTS[:4], part[[1, 0, 2, 3]], group, fold),
        parts_of(DIGESTS[:4], part, np.arange(4), fold),
        parts_of(DIGESTS[:4], np.zeros(4, int), group, np.array([0, 1, 2, 2])),
    ]
    assert len({whole.fingerprint, *(each.fingerprint for each in others)}) == 5
    assert whole.counts() == {"train": 1, "validation": 1, "test": 1, "unused": 1}


def folded() -> SplitParts:
    fold = np.array([0, 1, 2, 0, 1, 2, -1, -1])
    return parts_of(DIGESTS[:8], np.array([0, 0, 0, 0, 0, 0, TRAIN, UNUSED]), None, fold)


def test_each_record_is_tested_in_one_fold_and_validates_in_another() -> None:
    runs = [folded().of_fold(fold) for fold in range(3)]
    assert np.array([run.part for run in runs]).T.tolist() == [
        [TEST, TRAIN, VALIDATION],
        [VALIDATION, TEST, TRAIN],
        [TRAIN, VALIDATION, TEST],
    ] * 2 + [[TRAIN] * 3, [UNUSED] * 3]
    assert len({folded().fingerprint, *(run.fingerprint for run in runs)}) == 4


@pytest.mark.parametrize("parts", [folded(), parts_of(DIGESTS[:8], np.array([0, 1, 2, -1] * 2), np.arange(8) % 4)])
def test_what_is_written_comes_back(tmp_path: Path, parts: SplitParts) -> None:
    ids = ["a,b", 'q"uote', "c\nd", *"efghi"]
    split_file.write(tmp_path / "split.csv", ids, parts)
    back, notes = split_file.read(tmp_path / "split.csv", ids, DIGESTS[:8])
    assert back.fingerprint == parts.fingerprint
    assert notes == []
    order = [3, 1, 2, 0, 7, 6, 5, 4]
    other, _ = split_file.read(tmp_path / "split.csv", [ids[i] for i in order], DIGESTS[order])
    assert other.part.tolist() == parts.part[order].tolist()
    assert other.fold.tolist() == parts.fold[order].tolist()


def test_a_file_of_other_hands(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("note,id,part\n,a,Training\n,b,TEST\n,c,val\n,d,\n,z,test\n", "utf-8-sig")
    parts, notes = split_file.read(path, list("abcd"), DIGESTS[:4])
    assert parts.part.tolist() == [TRAIN, TEST, VALIDATION, UNUSED]
    assert sorted(parts.group.tolist()) == [0, 1, 2, 3]
    assert notes == [f"1 lines of {path} are of other tables"]
    path.write_text("id,fold\na,0\nb,1\nc,\nd,2\n")
    parts, _ = split_file.read(path, list("abcd"), DIGESTS[:4])
    assert (parts.fold.tolist(), parts.part.tolist()) == ([0, 1, -1, 2], [0, 0, UNUSED, 0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "id,part\na,train\nb,test\nprot_1,test\n",
            r"no line for 1 of 3 records, such as 'prot_2'; the nearest is 'pro",
        ),
        ("id,part\na,train\nb,tset\n", r"line 3: the part is 'tset'; the nearest is 'test', allowed are 'train', 'val"),
        ("id,fold\na,1\nb,x\n", "line 3: the fold is 'x'; it must be a whole number"),
        ("id,part\na,train\na,test\n", "line 3: 'a' was listed before with another part"),
        ("name,part\na,train\n", "has the columns name, part; it needs id, and part or fold"),
        ("id,part,group\na,train,g\nb,test,g\nprot_2,test,h\n", r"mine.csv: records 0 and 1 are of one group"),
    ],
)
def test_a_wrong_file(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(ValueError, match=said):
        split_file.read(tmp_path / "mine.csv", ["a", "b", "prot_2"], DIGESTS[:3])


def test_the_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.csv: No such file or directory; check split\.file"):
        split_file.read(tmp_path / "none.csv", ["a"], DIGESTS[:1])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"by": "column"}, "split.by is 'column' and split.column is not given"),
        (
            {"by": "homology", "column": "x"},
            "split.column is 'x'; only split.by = .* or 'group' reads it, and split.by is 'homology'",
        ),
        ({"by": "file"}, "split.file is not given"),
        (
            {"by": "random", "train": ("a",)},
            "split.train is .* only split.by = 'column' reads it, and split.by is 'random'",
        ),
        ({"by": "random", "cuts": ("a",)}, "split.cuts is .* only split.by = 'time' reads it"),
        ({"by": "random", "fractions": (0.5, 0.5)}, "give three shares"),
        ({"by": "random", "fractions": (0.5, 0.2, 0.2)}, "add up to 1"),
        ({"by": "random", "folds": 2}, "give 0, or at least 3"),
        (
            {"by": "time", "column": "x", "folds": 5},
            "split.folds is 5; only split.by = 'homology' or 'scaffold' .* reads it, and split.by is 'time'",
        ),
        ({"by": "file", "file": "s.csv", "fractions": (1.0, 0.0, 0.0)}, "split.fractions is .*; only split.by ="),
        ({"by": "random", "distance": 3}, "split.distance is 3; only split.by = 'distance' reads it"),
        ({"by": "random", "conflict": "unused"}, "split.conflict is 'unused'; only split.by = 'column' or 'group'"),
        ({"by": "homologous"}, "the nearest is 'homology'"),
        ({"by": "homology", "identity": 0.0}, "split.identity is 0.0; it must lie in"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SplitSettings(**settings)


def test_the_fingerprint_does_not_depend_on_the_order_of_records() -> None:
    part, fold = np.arange(1000) % 3, np.arange(1000) % 5
    group = np.arange(1000) % 15
    order = np.argsort(hashes(1, np.arange(1000)))
    first = parts_of(DIGESTS, part, group)
    second = parts_of(DIGESTS[order], part[order], group[order] + 7)
    assert second.fingerprint == first.fingerprint
    assert second.group.tolist() == first.group[order].tolist()
    assert parts_of(DIGESTS[order], part * 0, None, fold[order]).of_fold(2).fingerprint == (
        parts_of(DIGESTS, part * 0, None, fold).of_fold(2).fingerprint
    )
    moved = part.copy()
    moved[[0, 1]] = part[[1, 0]]
    assert parts_of(DIGESTS, moved).fingerprint != parts_of(DIGESTS, part).fingerprint


def test_row_numbers_are_not_taken_for_the_same_sequence(tmp_path: Path) -> None:
    """After the first row of a table was removed, 14 of 39 proteins were in another part by their row numbers."""
    path, parts = tmp_path / "split.csv", np.arange(40) % 3
    split_file.write(path, [f"row-{number}" for number in range(2, 42)], parts_of(DIGESTS[:40], parts))
    found, notes = split_file.read(path, [f"row-{number}" for number in range(2, 41)], DIGESTS[1:40])
    assert found.part.tolist() == parts[1:].tolist()
    assert notes == [f"1 lines of {path} are of other tables"]
    named, _ = split_file.read(path, [f"p{number}" for number in range(40)], DIGESTS[:40])  # it has ids by now
    assert named.part.tolist() == parts.tolist()
    with pytest.raises(ValueError, match=r"no line for 1 of 2 records, such as 'row-3'"):
        split_file.read(path, ["row-2", "row-3"], DIGESTS[[0, 40]])
    path.write_text("id,part\nrow-2,train\nrow-3,test\n")
    with pytest.raises(ValueError, match=r"has no sequence_digest for every line, and the ids are numbers of rows"):
        split_file.read(path, ["row-2", "row-3"], DIGESTS[:2])


def test_an_id_of_another_sequence_is_an_error(tmp_path: Path) -> None:
    split_file.write(tmp_path / "split.csv", ["a", "b"], parts_of(DIGESTS[:2], np.array([TRAIN, TEST])))
    with pytest.raises(ValueError, match=r"split\.csv: 'b' has another sequence there \(sequence_digest [0-9a-f]{16}"):
        split_file.read(tmp_path / "split.csv", ["a", "b"], DIGESTS[[0, 2]])
