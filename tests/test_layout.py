"""The house rules that a reader cannot see in one file: how large, under which names, and what YAML files may say.

Each rule is a function of a root folder that returns its offences, so that every test has a twin in which a broken tree
is found out. Who imports whom is in setup.cfg.
"""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from support.places import ROOT
from support.source_tree import PACKAGES, python_files, tree

CODE = (*PACKAGES, "benchmarks", "tests")
MOST_FILES = {"data": 14}
MOST_FILES_ELSEWHERE = 16

BANNED_NAMES = {"util", "utils", "helper", "helpers", "common", "misc", "manager", "managers"}
MAX_LINES = 400
# Values that belong to the recipe, or that turn an encoder causal (cp_size), by the ends of their keys.
RECIPE_KEYS = (
    *("gradient_clipping", "gradient_accumulation_steps", "cp_size", "sp_size"),
    *("activation_checkpointing", "train_batch_size", "train_micro_batch_size_per_gpu"),
)


# The rules ----------------------------------------------------------------------------------------


def crowded(root: Path) -> list[str]:
    """Folders of more files than anybody keeps in mind."""
    folders = {path.parent.relative_to(root) for path in python_files(root, *CODE)}
    counts = {folder: len(list((root / folder).glob("*.py"))) for folder in sorted(folders)}
    return [
        f"{folder}: {count} files"
        for folder, count in counts.items()
        if count > MOST_FILES.get(folder.parts[0], MOST_FILES_ELSEWHERE)
    ]


def shadows_a_package(root: Path) -> list[str]:
    return [
        str(path.relative_to(root))
        for path in python_files(root, *PACKAGES, "tests")
        if path.stem in PACKAGES or (path.name == "__init__.py" and path.parent.name in PACKAGES)
        if path.parent.parent != root or path.name != "__init__.py"
    ]


def too_long_or_badly_named(root: Path) -> list[str]:
    offences = []
    for path in [*sorted(root.glob("*.py")), *python_files(root, *CODE)]:
        if (lines := len(path.read_text("utf-8").splitlines())) > MAX_LINES:
            offences.append(f"{path.relative_to(root)}: {lines} lines")
        names = [*path.relative_to(root).parts[:-1], path.stem]
        if any(BANNED_NAMES & set(name.lower().split("_")) for name in names):
            offences.append(f"{path.relative_to(root)}: name")
    return offences


def unknown_yaml_keys(root: Path) -> list[str]:
    from accelerate.commands.config.config_args import ClusterConfig

    from zymogen.trainer.engine.launch_request import unknown_keys

    offences = []
    for path in sorted((root / "accelerate_configs").glob("*.y*ml")):
        config = yaml.safe_load(path.read_text("utf-8"))
        unknown = [key for key in config if key not in ClusterConfig.__dataclass_fields__]
        offences += [f"{path.name}: {key}" for key in unknown + unknown_keys(config)]
    return offences


def recipe_values_in_yaml(root: Path) -> list[str]:
    def keys(value: object) -> Iterator[str]:
        if isinstance(value, dict):
            for key, inner in value.items():
                yield str(key)
                yield from keys(inner)

    return [
        f"{path.name}: {key}"
        for path in sorted((root / "accelerate_configs").glob("*.y*ml"))
        for key in keys(yaml.safe_load(path.read_text("utf-8")))
        if key.endswith(RECIPE_KEYS)
    ]


def git_ignores(root: Path, *paths: str) -> list[str]:
    command = ["git", "-c", "safe.directory=*", "check-ignore", "--no-index", "--", *paths]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.split()


# The tree keeps them ------------------------------------------------------------------------------

RULES = (crowded, shadows_a_package, too_long_or_badly_named, unknown_yaml_keys, recipe_values_in_yaml)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_tree_keeps_the_rule(rule: Callable[[Path], list[str]]) -> None:
    assert rule(ROOT) == []


def test_every_engine_has_its_yaml() -> None:
    """Distributed type, stage of ZeRO, and copies of a sharded model."""
    asked = {}
    for path in (ROOT / "accelerate_configs").glob("*.yaml"):
        config = yaml.safe_load(path.read_text("utf-8"))
        stage = config.get("deepspeed_config", {}).get("zero_stage")
        copies = config.get("parallelism_config", {}).get("parallelism_config_dp_replicate_size")
        asked[path.stem] = config["distributed_type"], stage, copies
    assert asked == {
        "single": ("NO", None, None),
        "ddp": ("MULTI_GPU", None, None),
        "fsdp2": ("FSDP", None, None),
        "hsdp": ("FSDP", None, 2),
        "zero1": ("DEEPSPEED", 1, None),
        "zero2": ("DEEPSPEED", 2, None),
        "zero3": ("DEEPSPEED", 3, None),
        "zero3_offload": ("DEEPSPEED", 3, None),
    }


def test_git_sees_the_data_package() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    sources = [str(path.relative_to(ROOT)) for path in python_files(ROOT, *CODE)]
    assert git_ignores(ROOT, "data/sources/fasta.py", *sources) == []


# A broken tree does not ---------------------------------------------------------------------------

YAML = "accelerate_configs/a.yaml"
BROKEN = [
    (shadows_a_package, "pretrain/data.py", "", "pretrain/data.py"),
    (shadows_a_package, "tests/data/__init__.py", "", "tests/data/__init__.py"),
    (too_long_or_badly_named, "data/long.py", "\n" * 401, "data/long.py: 401 lines"),
    (too_long_or_badly_named, "data/run_utils.py", "", "data/run_utils.py: name"),
    (unknown_yaml_keys, YAML, "num_proceses: 2", "num_proceses"),
    (unknown_yaml_keys, YAML, "fsdp_config: {version: 2, fsdp_wrap: x}", "fsdp_config.fsdp_wrap"),
    (unknown_yaml_keys, YAML, "fp8_config: {zero_stage: 2}", "fp8_config.zero_stage"),
    (recipe_values_in_yaml, YAML, "deepspeed_config: {cp_size: 2}", "cp_size"),
    (recipe_values_in_yaml, YAML, "fsdp_config: {activation_checkpointing: true}", "activation_ch"),
]


@pytest.mark.parametrize(("rule", "path", "text", "offence"), BROKEN)
def test_rule_finds_the_offence(
    tmp_path: Path, rule: Callable[[Path], list[str]], path: str, text: str, offence: str
) -> None:
    (found,) = rule(tree(tmp_path, **{path: text}))
    assert offence in found


@pytest.mark.parametrize(("folder", "most"), [("data/order", 14), ("pretrain", 16), ("tests/pretrain/model", 16)])
def test_a_crowded_room_is_found(tmp_path: Path, folder: str, most: int) -> None:
    root = tree(
        tmp_path, **{f"{folder}/m{number}.py": "" for number in range(most - 1)}, **{f"{folder}/__init__.py": ""}
    )
    assert crowded(root) == []
    (root / folder / "one_more.py").touch()
    assert crowded(root) == [f"{folder}: {most + 1} files"]


def test_git_ignore_is_asked(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("data/\n")
    assert git_ignores(tmp_path, "data/sources/fasta.py", "zymogen/trainer/step.py") == ["data/sources/fasta.py"]
