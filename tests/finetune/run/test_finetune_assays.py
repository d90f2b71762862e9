"""The assays of a run: labels by part, what is drawn, what is scored, and which members a recipe asks for."""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from data.order.plan import Cursor
from finetune.assays import Assays, open_assays, prepare
from finetune.ensemble import ensemble_members
from finetune.recipe import PASSES, PEAK_LR, WARMUP, Recipe
from finetune.splits.parts import NAMES, TEST, TRAIN, VALIDATION
from support.assays.small_run import Rows, changed, rows, write
from zymogen.settings.toml_file import read

TABLE = rows()
COLUMNS = {"affinity": ("affinity_a", "affinity_b"), "binds": ("binds",), "place": ("place",), "grade": ("grade",)}


def opened(folder: Path, change: Callable[[Rows], Rows] = lambda given: given, *words: str) -> Assays:
    path = write(folder, change)
    path.write_text(path.read_text().replace('name = "binds"', 'name = "binds"\nmissing = ["NA", "NaN", "1e9"]'))
    recipe = read(Recipe, path, words)
    return open_assays(recipe, prepare(recipe))


@pytest.fixture(scope="module")
def assays(tmp_path_factory: pytest.TempPathFactory) -> Assays:
    return opened(tmp_path_factory.mktemp("assays"))


def test_labels_are_those_of_the_table(assays: Assays) -> None:
    """Rows of the small table are as many proteins, in their order."""
    found = assays.labels_by_part()
    assert assays.store.num_records == len(TABLE)
    assert found.keys() == {*COLUMNS, "state"}
    for part in (TRAIN, VALIDATION, TEST):
        mine = [row for row, of in zip(TABLE, assays.parts.part, strict=True) if of == part]
        for name, columns in COLUMNS.items():
            assert found[name][NAMES[part]] == [sum(bool(row[column]) for row in mine) for column in columns]
        assert found["state"][NAMES[part]] == [sum(len(row["state"].replace("-", "")) for row in mine)]
    assert min(sum(count) for of in found.values() for count in of.values()) > 0


def test_facts_and_description_say_what_is_trained(assays: Assays) -> None:
    said = dict(assays.facts()[:2])
    assert said["proteins"].startswith("160 distinct: ")
    assert said["split"] == "drawn at random"
    of_tasks = [text for name, text in assays.facts() if name == "task"]
    assert len(of_tasks) == 5
    assert of_tasks[0].startswith("affinity: regression, 2 tasks; labels: ")
    described = json.loads(json.dumps(assays.description()))
    assert described["fingerprint"] == assays.fingerprint
    assert described["parts"]["train"] == int((assays.parts.part == TRAIN).sum())


@pytest.mark.parametrize("bin_tokens", [64, 128, 1000])
def test_bins_hold_every_labelled_record_of_a_part_once(assays: Assays, bin_tokens: int) -> None:
    other = replace(assays, settings=replace(assays.settings, bin_tokens=bin_tokens))
    for part in (TRAIN, VALIDATION, TEST):
        wanted = [i for i, row in enumerate(TABLE) if assays.parts.part[i] == part and any([*row.values()][2:])]
        assert assays.records(part).tolist() == wanted
        bins = other.bins(assays.records(part))
        assert sorted(np.concatenate([bin_.samples for bin_ in bins]).tolist()) == wanted
        assert all(bin_.lengths.sum() <= bin_tokens for bin_ in bins)
        lengths = {record: length for bin_ in bins for record, length in zip(bin_.samples, bin_.lengths, strict=True)}
        assert lengths == {record: len(TABLE[record]["sequence"]) + 2 for record in wanted}
    assert assays.bins(np.zeros(0, np.int64)) == []


def test_a_pass_draws_each_labelled_training_record_once_and_no_other(assays: Assays) -> None:
    wanted = Counter(assays.records(TRAIN).tolist())
    for seed in (0, 1):
        drawn: dict[int, Counter[int]] = {0: Counter(), 1: Counter(), 2: Counter()}
        for bin_, cursor in islice(assays.plan(seed).bins(Cursor()), 90):
            drawn.setdefault(cursor.epoch, Counter()).update(bin_.samples.tolist())
        assert drawn[0] == drawn[1] == wanted
        assert drawn[2]
        assert not drawn[2] - wanted


def test_the_fingerprint_is_of_labels_and_not_of_what_a_missing_cell_holds(assays: Assays, tmp_path: Path) -> None:
    empty, filled = (
        next(i for i, row in enumerate(TABLE) if bool(row["binds"]) is is_there) for is_there in (False, True)
    )
    for number, text in enumerate(("NA", "nan", "1e9")):
        same = opened(tmp_path / f"m{number}", changed(empty, {"binds": text}))
        assert same.fingerprint == assays.fingerprint
        assert same.parts.fingerprint == assays.parts.fingerprint
    turned = {"yes": "no", "no": "yes"}[TABLE[filled]["binds"]]
    for number, text in ((empty, "no"), (filled, turned)):
        other = opened(tmp_path / f"{number}{text}", changed(number, {"binds": text}))
        assert other.fingerprint != assays.fingerprint
        assert other.parts.fingerprint == assays.parts.fingerprint
    assert opened(tmp_path / "split", lambda given: given, "split.seed=1").parts.fingerprint != assays.parts.fingerprint


def test_members_are_folds_times_seeds(tmp_path: Path) -> None:
    words = ("split.folds=3", "run.seeds=2", "run.seed=7", "schedule.total_tokens=none", "schedule.passes=2")
    words += ("split.fractions=[0.8, 0.1, 0.1]", "run.checkpoint_url=s3://bucket/assays")
    recipe = read(Recipe, write(tmp_path), list(words))
    assays = open_assays(recipe, prepare(recipe))
    found = list(ensemble_members(recipe, assays))
    assert [m.name for m in found] == [f"fold-{fold}-seed-{seed}" for fold in range(3) for seed in (7, 8)]
    assert [m.recipe.run.directory for m in found] == [f"{recipe.run.directory}/{m.name}" for m in found]
    assert [m.recipe.run.checkpoint_url for m in found] == [f"s3://bucket/assays/{m.name}" for m in found]
    assert [(m.recipe.run.seed, m.recipe.run.seeds) for m in found] == [(7, 1), (8, 1)] * 3
    tested = [set(m.assays.records(TEST).tolist()) for m in found[::2]]
    assert set.union(*tested) == set(np.flatnonzero(assays.is_labelled).tolist())
    assert sum(map(len, tested)) == assays.is_labelled.sum()
    for member in found:
        lengths = [len(TABLE[record]["sequence"]) + 2 for record in member.assays.records(TRAIN)]
        assert (member.recipe.schedule.total_tokens, member.recipe.schedule.passes) == (2 * sum(lengths), None)


def test_a_task_that_one_fold_cannot_train_is_refused_before_any(tmp_path: Path) -> None:
    """Two labels are in at most two folds; the run that tests one and validates the other has neither."""

    def two(given: Rows) -> Rows:
        held = [i for i, row in enumerate(given) if row["state"]][:2]
        return [row | {"state": row["state"] if i in held else ""} for i, row in enumerate(given)]

    recipe = read(Recipe, write(tmp_path, two), ["split.folds=3", "split.fractions=[0.8, 0.1, 0.1]", "split.seed=0"])
    with pytest.raises(ValueError, match=r"^fold \d of 3: tasks: no training record has a label of 'state'"):
        next(ensemble_members(recipe, open_assays(recipe, prepare(recipe))))


@pytest.mark.parametrize("kind", ["frozen", "lora", "full"])
def test_a_schedule_follows_from_what_learns(tmp_path: Path, kind: str) -> None:
    given = ("peak_lr", "warmup_tokens", "total_tokens")
    none = [f"schedule.{name}=none" for name in given]
    schedule = read(Recipe, write(tmp_path), [*none, f"adaptation.kind={kind}"]).schedule
    assert (schedule.peak_lr, schedule.warmup, schedule.passes) == (PEAK_LR[kind], WARMUP, PASSES)
    kept = read(Recipe, write(tmp_path), [f"adaptation.kind={kind}"]).schedule
    assert (kept.peak_lr, kept.warmup_tokens, kept.total_tokens, kept.passes) == (1e-3, 0, 12_000, None)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "grade"', 'name = "binds"', "tasks.name is ['affinity', 'binds', 'place', 'binds', 'state']; two"),
        ("bin_tokens = 128", "bin_tokens = 60", "data.crop_tokens is 64; it must lie between 3"),
        ("[adaptation]", "[parallel]\ncontext = 3\n[adaptation]", "data.bin_tokens is 128; it must be a multiple"),
        ('level = "residue"', 'level = "pair"\n[parallel]\ncontext = 2', "parallel.context is 2; the tasks ['state']"),
        ('table = "{folder}', 'tables = "{folder}', "tables"),
    ],
)
def test_a_recipe_that_contradicts_itself_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = write(tmp_path)
    text = path.read_text()
    old, new = (part.format(folder=tmp_path) for part in (old, new))
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        read(Recipe, path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["tasks.binds.weight=0.25", "tasks.binds.missing=['NA']", "tasks.a.b.weight=3"], ""),
        (
            ["tasks.bind.weight=2"],
            "on the command line: override 'tasks.bind.weight=2': no table [[tasks]] has the name",
        ),
        (["tasks.bind.weight=2"], "'bind'; the nearest is 'binds'"),
        (["tasks.weight=2"], "write tasks.NAME.weight=..., where NAME is one of 'affinity', 'binds', "),
        (
            ["tasks.binds.wait=2"],
            "tasks.binds.wait=2 on the command line: there is no setting 'tasks.wait'; the nearest",
        ),
        (["tasks.binds.weight=-1"], "on the command line, tasks.binds.weight=-1: tasks.binds.weight is -1"),
        (["data.table.binds.x=2"], "'table' is a setting, not a section"),
        (["data.ingest.max_bad_fraction=0.5"], "there is no setting 'data.ingest.max_bad_fraction'"),
    ],
)
def test_a_task_is_changed_by_its_name(tmp_path: Path, overrides: list[str], said: str) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().replace('name = "grade"', 'name = "a.b"\ncolumns = ["grade"]'))
    if said:
        with pytest.raises(ValueError, match=re.escape(said)):
            read(Recipe, path, overrides)
        return
    before, after = read(Recipe, path).tasks, read(Recipe, path, overrides).tasks
    expected = {"binds": {"weight": 0.25, "missing": ("NA",)}, "a.b": {"weight": 3.0}}
    assert after == tuple(replace(task, **expected.get(task.name, {})) for task in before)


def test_half_of_the_groups_of_a_large_validation_part_calibrates(tmp_path: Path) -> None:
    assays = opened(tmp_path, lambda given: given, "split.fractions=[0.2, 0.6, 0.2]")
    validation, group = assays.records(VALIDATION), np.arange(160) // 4
    in_fours = replace(assays, parts=replace(assays.parts, part=np.full(160, VALIDATION, np.int8), group=group))
    assert assays.calibrates[validation].sum() == len(validation) / 2 == assays.calibrates.sum()
    labelled = in_fours.records(VALIDATION)
    shares = np.bincount(group[labelled], in_fours.calibrates[labelled]) / np.bincount(group[labelled])
    assert sorted(shares.tolist()) == [0.0] * 20 + [1.0] * 20
    one = replace(in_fours, parts=replace(in_fours.parts, group=np.where(group < 35, 0, group)))
    assert not one.calibrates.any()  # one group is most of it
    few = opened(tmp_path / "few", lambda given: given, "split.fractions=[0.3, 0.4, 0.3]")
    assert not few.calibrates.any()  # of 64
    folds = replace(assays.parts, fold=(np.arange(160) % 3).astype(np.int16)).of_fold(1)
    assert not replace(assays, parts=replace(folds, part=assays.parts.part)).calibrates.any()
