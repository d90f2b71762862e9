"""Recipes: every mistake is one error that names its setting, and --help tells of every setting."""

import json
import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

import pretrain.__main__ as program
from pretrain.recipe import Recipe
from zymogen.settings.section import SettingClass, settings_of
from zymogen.settings.toml_file import read
from zymogen.trainer.optimizer.settings import OptimizerSettings

REQUIRED = {"run.directory": '"runs/x"', "model.preset": '"esm2_8m"', "data.sources": '["a.fasta"]'}

SURFACE = {
    "identity": """
        run.seed model.preset model.init model.start model.dropout data.validation_fraction
        data.unknown_letters data.crop_tokens data.bin_tokens
        data.bins_per_step data.window_sequences data.mask.select_prob data.mask.mask_prob
        data.mask.random_prob data.mask.name data.mask.options objective.name objective.options
        optimizer.betas optimizer.eps optimizer.weight_decay optimizer.clip_norm
        data.split_identity data.sample_by data.streaming data.curriculum
        optimizer.name optimizer.options optimizer.momentum optimizer.newton_schulz
        data.mixture.split_identity data.mixture.sample_by data.mixture.streaming data.mixture.weight
    """,
    "schedule": """
        schedule.peak_lr schedule.total_tokens schedule.passes schedule.warmup schedule.warmup_tokens
        schedule.decay_start
        schedule.decay_end schedule.final_lr data.skip_bins
    """,
    "operational": """
        run.directory run.log_every run.console run.evaluate_every run.validation_sequences run.checkpoint_every
        run.keep_checkpoints run.keep_checkpoints_every run.shared
        run.compare_copies_every run.spike_nats run.read_late
        run.saves_may_fail_for run.grace_s run.checkpoint_url run.trackers
        data.sources data.clusters data.bins_per_forward data.store_dir
        compute.attention compute.checkpointing compute.compile compute.tf32 parallel.context parallel.exchange
        parallel.timeout
        data.exclude data.workers data.mixture.sources data.mixture.clusters data.mixture.exclude
        data.format data.format_options data.mixture.format data.mixture.format_options
        data.ingest.max_bad_fraction data.ingest.content
    """,
}
"""Every setting that a user can write, by class. A new one is a promise to keep: add it here, and to the changelog."""


def given(folder: Path, how: str, **settings: str) -> Recipe:
    """The recipe with these values, dots written as `__`, in the file or as overrides."""
    wanted = {name.replace("__", "."): value for name, value in settings.items()}
    in_file = {**REQUIRED, **wanted} if how == "file" else REQUIRED
    path = folder / "r.toml"
    path.write_text("".join(f"{name} = {value}\n" for name, value in in_file.items()))
    overrides = [] if how == "file" else [f"{name}={value}" for name, value in wanted.items()]
    return read(Recipe, path, overrides)


def refused(folder: Path, how: str, **settings: str) -> str:
    """The error, without its place, which is the file or, where nothing else is to blame, the command line."""
    with pytest.raises(ValueError, match=r"^\S") as caught:
        given(folder, how, **settings)
    message = str(caught.value)
    assert message.count("\n") == 0
    file = re.escape(f"{folder}/r.toml")
    place = re.match(rf"{file}: |{file} with .* on the command line: |on the command line, .*?: ", message)
    assert place, message
    assert ("command line" in place[0]) == (how != "file"), message
    return message[place.end() :]


def every_field(section: Any = Recipe, prefix: str = "") -> Iterator[tuple[str, Field, Any]]:
    """(dotted name, field, type) of every setting, found without the code under test."""
    hints = get_type_hints(section)
    for f in fields(section):
        inner = get_args(hints[f.name])[0] if get_origin(hints[f.name]) is tuple else hints[f.name]
        if is_dataclass(inner):
            yield from every_field(inner, f"{prefix}{f.name}.")
        else:
            yield prefix + f.name, f, hints[f.name]


both = pytest.mark.parametrize("how", ["file", "override"])


def test_an_unknown_section_is_seen_though_it_is_empty(tmp_path: Path) -> None:
    content = '[run]\ndirectory = "r"\n[model]\npreset = "esm2_8m"\n[data]\nsources = ["a"]\n[optimizer]\n'
    (tmp_path / "r.toml").write_text(content)
    assert read(Recipe, tmp_path / "r.toml").optimizer.clip_norm == 1.0
    (tmp_path / "r.toml").write_text(content + "[scheduler]\n")
    with pytest.raises(ValueError, match="there is no setting 'scheduler'"):
        read(Recipe, tmp_path / "r.toml")


@both
@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("run__sed", "run.seed"),
        ("optimiser__eps", "optimizer.eps"),
        ("schedule__peaklr", "schedule.peak_lr"),
        ("data__mask__mask_probe", "data.mask.mask_prob"),
        ("data__mask__prob", "data.mask.mask_prob"),
        ("data__sorces", "data.sources"),
        ("seed", "run.seed"),
        ("data__mask", "data.mask.name"),  # a section, given a value
    ],
)
def test_unknown_key_names_the_nearest(tmp_path: Path, how: str, wrong: str, nearest: str) -> None:
    message = refused(tmp_path, how, **{wrong: "1"})
    assert message.startswith(f"there is no setting {wrong.replace('__', '.')!r}; the nearest is {nearest!r}")


@both
@pytest.mark.parametrize(
    ("name", "value", "got", "expected"),
    [
        ("schedule__total_tokens", "1.5", "1.5", "integer"),
        ("run__seed", "true", "True", "integer"),
        ("run__seed", "1979-05-27", "'1979-05-27'", "integer"),
        ("schedule__peak_lr", '"fast"', "'fast'", "number"),
        ("data__mask__mask_prob", "false", "False", "number"),
        ("run__directory", "3", "3", "string"),
        ("data__clusters", "true", "True", "string"),
        ("run__trackers", "3", "3", "array"),
        ("data__sources", "[3]", "3", "string"),
        ("optimizer__betas", '["a", 0.9]', "'a'", "number"),
        ("optimizer__betas", "[0.9, 0.95, 0.97]", "[0.9, 0.95, 0.97]", "at most 2"),
        ("optimizer__betas", "[0.9]", "[0.9]", "item 2 is missing"),
    ],
)
def test_wrong_type_names_field_got_and_expected(
    tmp_path: Path, how: str, name: str, value: str, got: str, expected: str
) -> None:
    message = refused(tmp_path, how, **{name: value})
    assert message.startswith(f"{name.replace('__', '.')} is {got}: ")
    assert expected in message.split(f"{got}: ")[-1]


@both
@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("schedule__peak_lr", "0.0", "must be above 0"),
        ("schedule__peak_lr", "nan", "must be a finite number"),
        ("schedule__peak_lr", "inf", "must be a finite number"),
        ("optimizer__clip_norm", "-inf", "must be a finite number"),
        ("optimizer__betas", "[0.9, nan]", "must lie in [0, 1)"),
        ("schedule__total_tokens", "0", "must be above 0"),
        ("schedule__warmup_tokens", "900_000_000_000", "end before the decay does, at 900000000000 tokens"),
        ("schedule__warmup_tokens", "900_000_000_000", "schedule.warmup_tokens=none schedule.warmup=0.0042"),
        ("schedule__warmup", "0.9", "it must be below schedule.decay_end = 0.9, and end before the decay does"),
        ("schedule__warmup", "1.0", "must lie in [0, 1)"),
        ("schedule__decay_end", "1.1", "must lie in (0, 1]"),
        ("schedule__decay_start", "-0.1", "must be at least 0 and below schedule.decay_end = 0.9"),
        ("schedule__decay_start", "0.9", "must be at least 0 and below schedule.decay_end = 0.9"),
        ("schedule__decay_start", "nan", "must be a finite number"),
        ("schedule__final_lr", "-0.1", "must lie in [0, 1]"),
        ("optimizer__momentum", "1.0", "must lie in [0, 1)"),
        ("optimizer__momentum", "0.9", "only optimizer.name = 'muon' reads it, and"),
        (
            "optimizer__newton_schulz",
            '"bfloat16"',
            "only optimizer.name = 'muon' reads it, and optimizer.name is 'adamw'",
        ),
        ("optimizer__betas", "[0.9, 1.0]", "must lie in [0, 1)"),
        ("optimizer__eps", "0.0", "must be above 0"),
        ("optimizer__weight_decay", "-0.01", "must be at least 0"),
        ("optimizer__clip_norm", "0.0", "must be above 0"),
        ("model__dropout", "1.0", "must lie in [0, 1)"),
        ("model__init", '"folder"', "give exactly one"),
        ("run__log_every", "0", "must be at least 1"),
        ("run__keep_checkpoints", "0", "must be at least 1"),
        ("run__saves_may_fail_for", '"0 s"', "it must be a time: '30 s', '10 min', '2 h'"),
        ("run__saves_may_fail_for", '"100"', "it must be a time: '30 s', '10 min', '2 h'"),
        ("run__grace_s", "0", "must be above 0"),
        ("run__trackers", '["mlflow"]', "run.trackers is 'mlflow'; allowed are 'wandb', 'tensorboard', 'trackio'"),
        ("data__sources", "[]", "name at least one FASTA file"),
        ("data__validation_fraction", "1.0", "must lie in [0, 1)"),
        ("data__crop_tokens", "2", "must lie between 3"),
        ("data__crop_tokens", "20_000", "data.bin_tokens = 16384"),
        ("data__bins_per_forward", "0", "data.bins_per_forward is 0; it must be at least 1, or 'auto'"),
        ("data__bins_per_forward", '"many"', "data.bins_per_forward is 'many'; it must be a whole number, or 'auto'"),
        ("data__bins_per_forward", "1.5", "data.bins_per_forward is 1.5; it must be a whole number, or 'auto'"),
        ("data__bins_per_forward", "2.0", "write data.bins_per_forward=2"),
        ("data__mask__select_prob", "0.0", "must lie in (0, 1]"),
        ("data__mask__mask_prob", "0.95", "random_prob 0.1 exceed 1"),
        ("data__unknown_letters", '"cuont"', "the nearest is 'count', allowed are 'refuse', 'count'"),
        ("optimizer__name", '"sgd"', "allowed are 'adamw', 'muon'"),
        ("optimizer__newton_schulz", '"float16"', "allowed are 'float32', 'bfloat16'"),
        ("compute__compile", "true", "compute.compile is True; allowed are 'auto', 'on', 'off'"),
        ("model__preset", '"esm2_35"', "the nearest is 'esm2_35m', allowed are 'esm2_60k', "),
    ],
)
def test_out_of_range_names_field_and_range(tmp_path: Path, how: str, name: str, value: str, allowed: str) -> None:
    message = refused(tmp_path, how, **{name: value})
    assert name.replace("__", ".") in message
    assert allowed in message


def test_missing_required_setting_is_named(tmp_path: Path) -> None:
    message = refused(tmp_path, "override", run__directory="none")
    assert message == "run.directory is required, and has no default"


def test_neither_sources_nor_mixture(tmp_path: Path) -> None:
    assert "data.sources is empty" in refused(tmp_path, "override", data__sources="none")


MIXTURE = '[{sources = ["a"], weight = 3}, {sources = ["b"], sample_by = "cluster", clusters = "t"}]'


def test_a_mixture_stands_in_place_of_sources(tmp_path: Path) -> None:
    recipe = given(tmp_path, "override", data__sources="none", data__mixture=MIXTURE)
    assert [(c.sources, c.weight, c.sample_by) for c in recipe.data.corpora] == [
        (("a",), 3, "sequence"),
        (("b",), 1, "cluster"),
    ]
    assert recipe.data.weights == (3, 1)
    assert "write sources into the tables [[data.mixture]]" in refused(tmp_path, "override", data__mixture=MIXTURE)
    for wrong, message in (
        ('[{sources = ["a"], wight = 3}]', "no setting 'data.mixture.wight'; the nearest is 'data.mixture.weight'"),
        ('[{sources = ["a"], weight = "3"}]', "data.mixture.weight is '3'"),
        ("[{weight = 3}]", "sources of data.mixture is []"),
        ('[{sources = ["a"], weight = 0}]', "data.mixture.weight is 0; it must lie in [1, 1_000_000]"),
    ):
        assert message in refused(tmp_path, "override", data__sources="none", data__mixture=wrong)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"schedule__warmup": "0.1", "schedule__warmup_tokens": "0"},
            "schedule.warmup is 0.1 and schedule.warmup_tokens is 0; give one of them: schedule.warmup=none takes",
        ),
        ({"data__streaming": "true", "data__clusters": "t.tsv"}, "streaming is true and clusters is 't.tsv'"),
        ({"data__streaming": "true", "data__sample_by": "cluster"}, "streaming is true and sample_by is 'cluster'"),
        ({"data__split_identity": "0.3", "data__clusters": "t.tsv"}, "two ways to cluster one corpus"),
        ({"data__split_identity": "1.5"}, "split_identity is 1.5; it must lie in (0, 1]"),
        ({"data__workers": "-1"}, "data.workers is -1; it must lie in [0, 64]"),
        ({"data__ingest__max_bad_fraction": "1.0"}, "data.ingest.max_bad_fraction is 1.0"),
    ],
)
def test_settings_that_do_not_go_together(tmp_path: Path, settings: dict[str, str], message: str) -> None:
    assert message in refused(tmp_path, "override", **settings)


def test_what_muon_reads_goes_with_muon(tmp_path: Path) -> None:
    chosen = {"optimizer__momentum": "0.9", "optimizer__newton_schulz": '"bfloat16"'}
    optimizer = given(tmp_path, "override", optimizer__name="muon", **chosen).optimizer
    assert (optimizer.name, optimizer.momentum, optimizer.newton_schulz) == ("muon", 0.9, "bfloat16")
    same = given(tmp_path, "override", optimizer__momentum="0.95", optimizer__newton_schulz='"float32"').optimizer
    assert same == OptimizerSettings()  # the defaults, written out


def test_missing_section_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('[run]\ndirectory = "x"\n[model]\npreset = "esm2_8m"\n')
    with pytest.raises(ValueError, match=r"r\.toml: data is required"):
        read(Recipe, tmp_path / "r.toml")


def test_neither_preset_nor_init(tmp_path: Path) -> None:
    assert "give exactly one" in refused(tmp_path, "override", model__preset="none")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        *((text, "not TOML: .") for text in (b"run = [", b"[run\n", b"MKTAYIAK\n", b"run.seed = 1\nrun.seed = 2\n")),
        (b"\xff\xfe", "not UTF-8, but perhaps UTF-16; save it as UTF-8$"),
    ],
)
def test_not_toml(tmp_path: Path, content: bytes, error: str) -> None:
    (tmp_path / "r.toml").write_bytes(content)
    with pytest.raises(ValueError, match=rf"^recipe {re.escape(str(tmp_path))}/r\.toml: {error}"):
        read(Recipe, tmp_path / "r.toml")


def test_no_such_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent\.toml: No such file"):
        read(Recipe, tmp_path / "absent.toml")
    with pytest.raises(ValueError, match=rf"{re.escape(str(tmp_path))}: Is a directory"):
        read(Recipe, tmp_path)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("run.seed", "override 'run.seed' has no '='; write section.field=value"),
        ("run.directory.x=1", "'directory' is a setting, not a section"),
    ],
)
def test_an_override_that_is_none(tmp_path: Path, override: str, said: str) -> None:
    given(tmp_path, "file")
    with pytest.raises(ValueError, match=re.escape(said)):
        read(Recipe, tmp_path / "r.toml", [override])


def test_overrides_win_and_leave_the_rest(tmp_path: Path) -> None:
    given(tmp_path, "file", run__seed="5", optimizer__eps="1e-6", data__mask__mask_prob="0.7")
    path = tmp_path / "r.toml"
    before = {name: value for name, _, value in settings_of(read(Recipe, path))}
    overrides = ["run.seed=7", "run.directory=runs/bare word", 'data.sources=["b", "c"]', "data.mask.mask_prob=0.6"]
    after = {name: value for name, _, value in settings_of(read(Recipe, path, overrides))}
    assert {name for name in after if after[name] != before[name]} == {o.split("=")[0] for o in overrides}
    assert (before["run.seed"], before["optimizer.eps"], before["data.mask.mask_prob"]) == (5, 1e-6, 0.7)
    assert (after["run.seed"], after["run.directory"]) == (7, "runs/bare word")
    assert (after["data.sources"], after["data.mask.mask_prob"]) == (("b", "c"), 0.6)


def test_none_takes_a_field_out(tmp_path: Path) -> None:
    recipe = given(tmp_path, "override", model__preset="none", model__init="folder", run__seed="none")
    assert (recipe.model.preset, recipe.model.init, recipe.run.seed) == (None, "folder", 0)


def test_no_new_setting_comes_by_accident(tmp_path: Path) -> None:
    recipe = given(tmp_path, "file")
    mixed = given(tmp_path, "override", data__sources="none", data__mixture='[{sources = ["a"]}]')
    found = {(name, str(setting_class)) for name, setting_class, _ in settings_of(recipe)} - {
        ("data.mixture", "identity")
    }
    found |= {(name.replace(".0.", "."), str(setting_class)) for name, setting_class, _ in settings_of(mixed)}
    assert set(found) == {(name, setting_class) for setting_class, names in SURFACE.items() for name in names.split()}


def test_no_new_flag_comes_by_accident() -> None:
    of_sources = {"--minutes", "--hours", "--plan", "--untimed"}
    allowed = {"--help-settings", "--allow-schedule-change", "--allow-code-change", "--despite-failures"}
    assert set(program._parser()._option_string_actions) == {"-h", "--help", *allowed, *of_sources}


def test_every_field_has_one_class_and_a_meaning() -> None:
    seen = 0
    for name, f, _ in every_field():
        assert f.metadata["class"] in set(SettingClass), name
        assert len(f.metadata["doc"]) > 5, name
        seen += 1
    assert seen == len(" ".join(SURFACE.values()).split())


def test_help_lists_every_setting(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as left:
        program.main(["--help-settings"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    blocks = {
        name: re.sub(r"\s", "", rest)
        for name, rest in re.findall(r"^  ([a-z0-9_.]+)\n((?: {6}.*\n?)+)", text, re.MULTILINE)
    }
    assert list(blocks) == [name for name, _, _ in every_field()]
    for name, f, _ in every_field():
        said = re.sub(r"\s", "", f.metadata["doc"])
        default = "required" if f.default_factory is MISSING else "defaultnone"
        if f.default is not MISSING:
            shown = json.dumps(list(f.default)) if isinstance(f.default, tuple) else str(f.default)
            in_toml = {"None": "null", "False": "false", "True": "true"}
            shown = f'"{shown}"' if isinstance(f.default, str) else in_toml.get(shown, shown)
            default = re.sub(r"\s", "", f"default {shown}")
        unit = f.metadata["unit"].replace(" ", "")
        unit = f",in{unit}" if unit not in ("", "path") else ""
        assert blocks[name].startswith(said + "["), name
        decides, readers = f.metadata["only"] or ("", ())
        values = f"={'or'.join(map(repr, readers))}" if readers else ""
        only = f";onlywith{decides}{values}" if decides else ""
        assert blocks[name].endswith(f"{unit};{default};{f.metadata['class']}{only}]"), name


@pytest.mark.parametrize("flag_at", [0, 1, 2, 3])
def test_a_flag_may_stand_anywhere(tmp_path: Path, flag_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given(tmp_path, "file")
    seen = []
    monkeypatch.setattr(program, "_train", lambda recipe, options: seen.append((recipe, options)))
    words = [str(tmp_path / "r.toml"), "run.seed=3", "run.log_every=4"]
    assert program.main([*words[:flag_at], "--allow-schedule-change", *words[flag_at:]]) == 0
    ((recipe, options),) = seen
    assert (recipe.run.seed, recipe.run.log_every, options.allow_schedule_change) == (3, 4, True)
    assert options.recipe == tmp_path / "r.toml"


def test_without_the_flag_the_schedule_is_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given(tmp_path, "file")
    seen = []
    monkeypatch.setattr(program, "_train", lambda recipe, options: seen.append(options.allow_schedule_change))
    assert program.main([str(tmp_path / "r.toml")]) == 0
    assert seen == [False]
