"""Every recipe that is shipped: it reads, says what was published, and its model's memory is what the texts promise."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from data.corpus.prepare import prepare_corpora
from data.settings import DataSettings
from data.sources.resolve import ResolvedSources, resolve
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS
from pretrain.recipe import Recipe
from support.inputs.whole_models import build_model
from support.places import ROOT
from zymogen.settings.section import settings_of
from zymogen.settings.toml_file import documented, read
from zymogen.trainer.optimizer.kinds import build_optimizer, parameter_groups
from zymogen.trainer.optimizer.schedule import learning_rate

RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
CONFIGS = sorted((ROOT / "accelerate_configs").glob("*.y*ml"))

# Lin et al. 2023, supplement A, with 2M tokens = 2**21, and the split of 0.5 % of clusters.
PUBLISHED = {
    "data.validation_fraction": 0.005,
    "data.crop_tokens": 1024,
    "data.bin_tokens": 16384,
    "data.bins_per_step": 128,
    "data.mask.select_prob": 0.15,
    "data.mask.mask_prob": 0.8,
    "data.mask.random_prob": 0.1,
    "model.init": None,
    "model.dropout": 0.0,
    "optimizer.betas": (0.9, 0.98),
    "optimizer.eps": 1e-8,
    "optimizer.weight_decay": 0.01,
    "optimizer.clip_norm": 1.0,
    "schedule.peak_lr": 4e-4,
    "schedule.warmup_tokens": 4_194_304_000,
    "schedule.total_tokens": 1_048_576_000_000,
    "schedule.decay_end": 0.9,
    "schedule.final_lr": 0.1,
}
LARGEST = {  # what differs for 15B: 3.2M tokens a step, here 3 * 2**20, over 270,000 steps
    "data.bins_per_step": 192,
    "optimizer.weight_decay": 0.1,
    "schedule.peak_lr": 1.6e-4,
    "schedule.warmup_tokens": 6_291_456_000,
    "schedule.total_tokens": 849_346_560_000,
}
# Parameters; weights, gradients and two moments in float32 are 16 bytes each. By hand, for ESM-2:
# layers * (12 dim**2 + 13 dim) + dim**2 + 38 dim + 33. For the modern ones, with Muon: 12 bytes for each weight of the
# layers' matrices, layers * (4 dim**2 + 3 dim * W), and 16 for 6 dim a layer and dim**2 + 132 dim + 64 outside.
PARAMETERS_AND_BYTES = {
    "esm2_60k": (60_705, 971_280),
    "esm2_800k": (814_369, 13_029_904),
    "esm2_8m": (7_512_353, 120_197_648),
    "esm2_35m": (33_501_153, 536_018_448),
    "esm2_150m": (148_139_553, 2_370_232_848),
    "esm2_650m": (651_042_593, 10_416_681_488),
    "esm2_3b": (2_839_004_193, 45_424_067_088),
    "esm2_15b": (15_129_098_273, 242_065_572_368),
    "modern_60k": (64_576, 812_032),
    "modern_800k": (888_384, 10_806_272),
    "modern_8m": (7_774_784, 93_922_304),
    "modern_35m": (33_505_984, 403_385_344),
    "modern_150m": (152_980_544, 1_838_203_904),
    "modern_300m": (332_997_184, 4_000_850_944),
    "modern_600m": (575_036_992, 6_907_356_160),
}


def values(path: Path, *overrides: str) -> dict[str, object]:
    """Settings by name; a schedule's warm-up in tokens and its peak rate, however the recipe gives them."""
    recipe = read(Recipe, path, overrides)
    schedule = recipe.schedule.resolved(asdict(recipe.schedule))
    resolved = {f"schedule.{name}": value for name, value in schedule.items()}
    return {name: value for name, _, value in settings_of(recipe)} | resolved


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_reads(path: Path) -> None:
    said = values(path)
    assert said["run.directory"] == f"runs/{ {'own_sequences': 'own'}.get(path.stem, path.stem) }"
    assert said["model.preset"] in PRESETS


def test_recipes_are_those_of_the_readme_beside_them() -> None:
    table = (ROOT / "recipes" / "README.md").read_text()
    assert [path.name for path in RECIPES if f"| `{path.name}` |" not in table] == []
    assert table.count(".toml` |") == len(RECIPES)


@pytest.mark.parametrize("size", ["8m", "35m", "150m", "650m", "3b", "15b"])
def test_esm2_recipe_is_the_published_one(size: str) -> None:
    expected = PUBLISHED | {"model.preset": f"esm2_{size}"} | (LARGEST if size == "15b" else {})
    said = values(ROOT / "recipes" / f"esm2_{size}.toml")
    assert {name: said[name] for name in expected} == expected


def test_learning_rate_of_the_published_recipe() -> None:
    schedule = read(Recipe, ROOT / "recipes" / "esm2_8m.toml").schedule
    step = 2**21
    rates = {number: learning_rate(schedule, number * step) for number in (1000, 2000, 226_000, 450_000, 500_000)}
    # Half-way up, the peak, half-way between the peak and a tenth of it (226,000 is the mean of 2,000 and 450,000),
    # then constant.
    assert rates == pytest.approx({1000: 2e-4, 2000: 4e-4, 226_000: 2.2e-4, 450_000: 4e-5, 500_000: 4e-5}, rel=1e-12)


@pytest.mark.parametrize("total", ["10_000", "1_000_000", "1_000_000_000", "1_000_000_000_000"])
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_takes_any_length_alone(path: Path, total: str) -> None:
    """The warm-up is a share, so that a trial of minutes needs no second setting."""
    whole, schedule = read(Recipe, path).schedule, read(Recipe, path, [f"schedule.total_tokens={total}"]).schedule
    assert schedule.total_tokens == int(total)
    assert schedule.warmup_length / schedule.total_tokens == pytest.approx(
        whole.warmup_length / whole.total_tokens, abs=1 / int(total)
    )
    before = learning_rate(schedule, schedule.warmup_length // 2)
    assert before < learning_rate(schedule, schedule.warmup_length) == schedule.peak


@pytest.mark.parametrize(("given", "meant"), [("1e4", "10_000"), ("1e12", "1_000_000_000_000"), ("2.5e6", "2_500_000")])
def test_a_length_with_an_exponent_is_answered_with_what_to_type(given: str, meant: str) -> None:
    """TOML reads it as a fraction, and nothing is converted silently."""
    path = ROOT / "recipes" / "esm2_8m.toml"
    with pytest.raises(ValueError, match=f"a fraction: write schedule.total_tokens={meant}$") as refused:
        read(Recipe, path, [f"schedule.total_tokens={given}"])
    assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match=r"total_tokens is 1\.5: Input should be a valid integer"):
        read(Recipe, path, ["schedule.total_tokens=1.5"])


def test_recipes_warm_up_for_as_long_as_before() -> None:
    """In tokens, at the length that each recipe has."""
    lengths = {path.stem: read(Recipe, path).schedule.warmup_length for path in RECIPES}
    esm2 = {f"esm2_{size}": 4_194_304_000 for size in ("8m", "35m", "150m", "650m", "3b")} | {"esm2_15b": 6_291_456_000}
    modern = {f"modern_{size}": 2_097_152_000 for size in ("8m", "35m", "150m", "300m", "600m")}
    assert lengths == esm2 | modern | {"own_sequences": 1_000_000, "quickstart": 160_000}


def test_weights_that_are_trained_already_lower_the_peak_rate() -> None:
    """Unless the recipe or the command line gives one."""
    trained = ["model.preset=none", "model.start=none", "model.init=folder"]
    for path in RECIPES:
        given = "schedule.peak_lr" in {name for name, _ in leaves(tomllib.loads(path.read_text()))}
        assert given == (path.stem in ("esm2_15b", "own_sequences", "quickstart"))
        alone, after = read(Recipe, path).schedule, read(Recipe, path, trained).schedule
        assert after.peak_lr == (alone.peak_lr if given else 4e-5)
        assert alone.peak == (alone.peak_lr if given else 4e-4)
        assert read(Recipe, path, [*trained, "schedule.peak_lr=1e-4"]).schedule.peak_lr == 1e-4
        assert read(Recipe, path, [*trained, "schedule.peak_lr=none"]).schedule.peak_lr == 4e-5


@pytest.mark.parametrize("preset", PRESETS)
def test_memory_of_each_preset(preset: str) -> None:
    with torch.device("meta"):
        model = MaskedLanguageModel(PRESETS[preset])
    parameters = sum(p.numel() for p in model.parameters())
    of_muon = 0
    if model.shape.is_modern:
        of_muon = sum(p.numel() for name, p in model.named_parameters() if ".layers." in name and p.ndim == 2)
    assert (parameters, 16 * parameters - 4 * of_muon) == PARAMETERS_AND_BYTES[preset]


SIZED = [path.stem for path in RECIPES if path.stem in PARAMETERS_AND_BYTES]


@pytest.mark.parametrize("name", SIZED)
def test_recipe_says_the_memory_of_its_model(name: str) -> None:
    opening = (ROOT / "recipes" / f"{name}.toml").read_text().partition("[run]")[0]
    (said,) = re.findall(r"take\s(?:#\s)?([\d.]+)\sGB", opening)
    digits = len(said.partition(".")[2])
    assert f"{PARAMETERS_AND_BYTES[name][1] / 1e9:.{digits}f}" == said


def test_a_recipe_beyond_one_gpu_names_the_engines_that_shard() -> None:
    """The texts beside it said that no engine does, long after five of them did."""
    sharding = {"fsdp2.yaml", "hsdp.yaml", "zero3.yaml"}
    assert sharding <= {path.name for path in CONFIGS}
    table = (ROOT / "recipes" / "README.md").read_text().splitlines()
    beyond = [name for name in SIZED if PARAMETERS_AND_BYTES[name][1] > 80e9]
    assert beyond == ["esm2_15b"]
    for name in beyond:
        (row,) = (line for line in table if f"| `{name}.toml` |" in line)
        opening = (ROOT / "recipes" / f"{name}.toml").read_text().partition("[run]")[0]
        for text in (row, opening):
            assert set(re.findall(r"\w+\.yaml", text)) == sharding


@pytest.mark.parametrize("size", ["8m", "35m", "150m", "300m", "600m"])
def test_modern_recipes_differ_in_the_preset_and_the_start_alone(size: str) -> None:
    said = values(ROOT / "recipes" / f"modern_{size}.toml")
    assert said.pop("model.preset") == f"modern_{size}"
    assert said.pop("model.start") == ("neighbours" if size == "8m" else "published")  # larger ones: not measured
    reference = values(ROOT / "recipes" / "modern_8m.toml")
    own = {"run.directory", "model.preset", "model.start", "run.evaluate_every", "run.checkpoint_every"}
    assert {n: v for n, v in said.items() if n not in own} == {n: v for n, v in reference.items() if n not in own}
    assert (said["optimizer.name"], said["schedule.decay_start"], said["data.mask.mask_prob"]) == ("muon", 0.8, 1.0)


def test_sixteen_bytes_a_parameter() -> None:
    """Counted on a model that took a step, so that the figure above is not a guess."""
    recipe = read(Recipe, ROOT / "recipes" / "quickstart.toml", ["model.preset=esm2_60k", "optimizer.name=adamw"])
    model = build_model(recipe.model, seed=0)
    optimizer = build_optimizer(parameter_groups(model, recipe.optimizer), recipe.optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moments = [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    held = [tensor for p in model.parameters() for tensor in (p, p.grad)] + moments
    assert sum(tensor.nbytes for tensor in held) == PARAMETERS_AND_BYTES["esm2_60k"][1]
    assert {key for state in optimizer.state.values() for key in state} == {"step", "exp_avg", "exp_avg_sq"}


def resolved(settings: DataSettings) -> ResolvedSources:
    return resolve(settings, settings.unknown_letters, settings.ingest, Path(settings.store_dir))


def test_the_quickstart_takes_as_long_as_the_readme_says() -> None:
    opening = (ROOT / "recipes" / "quickstart.toml").read_text().partition("[run]")[0]
    readme = (ROOT / "README.md").read_text()
    said = [re.findall(r"about (\w+) minutes", " ".join(text.replace("#", " ").split())) for text in (opening, readme)]
    assert said == [["three"], ["three"]]


def test_quickstart_resolves_to_the_embedded_corpus(tmp_path: Path) -> None:
    source = resolved(read(Recipe, ROOT / "recipes" / "quickstart.toml", [f"data.store_dir={tmp_path}"]).data)
    assert source.families is not None
    assert (source.families.num_families, source.families.members_per_family) == (250, 24)
    assert [s.name for s in source.sources] == [str(tmp_path / "synthetic-0" / "families.fasta.gz")]
    assert source.clusters == tmp_path / "synthetic-0" / "clusters.tsv"


def test_own_sequences_take_a_file_from_the_command_line(families_files: tuple[Path, Path], tmp_path: Path) -> None:
    fasta, clusters = families_files
    path = ROOT / "recipes" / "own_sequences.toml"
    own = resolved(read(Recipe, path, [f'data.sources=["{fasta}"]', f"data.clusters={clusters}"]).data)
    assert ([s.name for s in own.sources], own.clusters, own.families) == ([str(fasta)], clusters, None)

    with pytest.raises(ValueError, match=r"your\.fasta\.gz: No such file or directory; check data\.sources"):
        prepare_corpora(read(Recipe, path, [f"data.store_dir={tmp_path}"]).data)
    assert list(tmp_path.iterdir()) == []


def leaves(content: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in content.items():
        yield from leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]


def keys(content: object) -> Iterator[str]:
    if isinstance(content, dict):
        for key, value in content.items():
            yield str(key)
            yield from keys(value)


def in_both(config: object) -> set[str]:
    """Names that a YAML and a recipe both know."""
    return set(keys(config)) & {name.rpartition(".")[2] for name, _ in documented(Recipe)}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_no_value_stands_in_a_yaml_and_a_recipe(path: Path) -> None:
    config = yaml.safe_load(path.read_text())
    assert config["num_processes"] >= 1
    assert in_both(config) == set()


def test_control_a_value_in_both_is_seen() -> None:
    assert in_both({"num_processes": 2, "fsdp_config": {"clip_norm": 1.0}}) == {"clip_norm"}
