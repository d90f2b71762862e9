"""The house rules that a reader cannot see in one file: who imports whom, how lean, and under which names.

Each rule is a function of a root folder that returns its offences, so that every test has a twin in which a broken tree
is found out.
"""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("data", "pretrain", "finetune")
CODE = (*PACKAGES, "benchmarks", "tests")

# With all that they import.
ARITHMETIC = ("alphabet", "draw", "order", "curriculum", "sampler", "packing", "dealing", "plan")
NUMPY_ITSELF = (*ARITHMETIC, "masking", "synthetic")  # what stands in the file
HOT_PATH = ("pretrain.step", "pretrain.model.encoder", "data.loader")
HOT_PATH_MAY_NAME = {
    *("torch", "numpy", "numba", "llvmlite", "accelerate", "transformers", "safetensors"),
    *(
        "huggingface_hub",
        "packaging",
        "psutil",
        "yaml",
    ),  # which accelerate and transformers require
}
# What a bare GPU machine may lack: all that we use, or will, besides the above.
MAY_BE_ABSENT = (
    *("isal", "pydantic", "rich", "wandb", "tensorboard", "Bio", "datasets", "peft", "tyro"),
    *("duckdb", "fsspec", "pyarrow", "zstandard", "s3fs", "moto"),
    *("matplotlib", "pandas", "scipy", "sklearn", "tomli_w", "hypothesis"),
)
BANNED_NAMES = {"util", "utils", "helper", "helpers", "common", "misc", "manager", "managers"}
MAX_LINES = 400
# Values that belong to the recipe, or that turn an encoder causal (cp_size), by the ends of their keys.
RECIPE_KEYS = (
    *("gradient_clipping", "gradient_accumulation_steps", "cp_size", "sp_size"),
    *("activation_checkpointing", "train_batch_size", "train_micro_batch_size_per_gpu"),
)


# Reading imports ----------------------------------------------------------------------------------


def python_files(root: Path, *folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (root / folder).rglob("*.py"))


def module_name(root: Path, path: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def module_path(root: Path, name: str) -> Path | None:
    base = root.joinpath(*name.split("."))
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


def statements(tree: ast.AST, *, on_import_only: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Import statements; `on_import_only` leaves out bodies of functions and of `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif on_import_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        elif on_import_only and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for branch in node.orelse:
                yield from statements(ast.Module([branch], []), on_import_only=True)
        else:
            yield from statements(node, on_import_only=on_import_only)


@cache
def imports(root: Path, path: Path, *, on_import_only: bool = False) -> frozenset[str]:
    """Dotted names that a file imports; `from data import fasta` gives `data` and `data.fasta`."""
    names: set[str] = set()
    package = module_name(root, path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in statements(ast.parse(path.read_text("utf-8")), on_import_only=on_import_only):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
            continue
        above = package[: len(package) - node.level + 1] if node.level else []
        source = ".".join([*above, *([node.module] if node.module else [])])
        names.add(source)
        ours = [f"{source}.{alias.name}" for alias in node.names]
        names.update(name for name in ours if module_path(root, name))
    return frozenset(names)


def tops(names: frozenset[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def third_party(names: frozenset[str]) -> set[str]:
    return tops(names) - set(sys.stdlib_module_names) - set(PACKAGES)


def reachable(root: Path, *names: str) -> dict[str, Path]:
    """Our modules that importing `names` runs, the packages above them included."""
    found: dict[str, Path] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        path = module_path(root, name)
        if name in found or path is None or name.partition(".")[0] not in PACKAGES:
            continue
        found[name] = path
        waiting += [name.rpartition(".")[0], *imports(root, path, on_import_only=True)]
    return found


# The rules ----------------------------------------------------------------------------------------


def against_direction(root: Path) -> list[str]:
    forbidden = {
        "data": {"pretrain", "finetune", "accelerate", "deepspeed"},
        "pretrain": {"finetune"},
    }
    return [
        f"{module_name(root, path)} imports {name}"
        for package, names in forbidden.items()
        for path in python_files(root, package)
        for name in sorted(tops(imports(root, path)) & names)
    ]


def engine_outside_its_room(root: Path) -> list[str]:
    return [
        f"{module_name(root, path)} imports {name}"
        for path in python_files(root, *PACKAGES)
        for name in sorted(tops(imports(root, path)) & {"accelerate", "deepspeed"})
        if not path.is_relative_to(root / "pretrain" / "engine")
    ]


def more_than_numpy(root: Path) -> list[str]:
    named: set[tuple[str, str]] = set()
    for start in (f"data.{name}" for name in NUMPY_ITSELF):
        if path := module_path(root, start):
            named |= {(start, name) for name in third_party(imports(root, path))}
    for module, path in reachable(root, *(f"data.{name}" for name in ARITHMETIC)).items():
        named |= {(module, name) for name in third_party(imports(root, path, on_import_only=True))}
    return sorted(f"{module} imports {name}" for module, name in named if name != "numpy")


def hot_path_not_lean(root: Path) -> list[str]:
    model = [module_name(root, path) for path in python_files(root, "pretrain/model")]
    return [
        f"{module} imports {name}"
        for module, path in sorted(reachable(root, *HOT_PATH, *model).items())
        for name in sorted(third_party(imports(root, path, on_import_only=True)) - HOT_PATH_MAY_NAME)
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

    from pretrain.engine.request import unknown_keys

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


def run_without(root: Path, modules: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Imports `modules` in a process where the packages of `MAY_BE_ABSENT` are not there."""
    # None in sys.modules makes both `import` and `importlib.util.find_spec` say "absent", so that a
    # library which asks before it imports behaves as on a machine without the package.
    program = (
        f"import sys\nsys.modules.update(dict.fromkeys({MAY_BE_ABSENT!r}))\n"
        f"import importlib\nfor name in {modules!r}:\n    importlib.import_module(name)\n"
    )
    return subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=120)


def git_ignores(root: Path, *paths: str) -> list[str]:
    command = ["git", "-c", "safe.directory=*", "check-ignore", "--no-index", "--", *paths]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.split()


# The tree keeps them ------------------------------------------------------------------------------

RULES = (
    against_direction,
    engine_outside_its_room,
    more_than_numpy,
    hot_path_not_lean,
    shadows_a_package,
    too_long_or_badly_named,
    unknown_yaml_keys,
    recipe_values_in_yaml,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_tree_keeps_the_rule(rule: Callable[[Path], list[str]]) -> None:
    assert rule(ROOT) == []


def test_the_rules_have_something_to_read() -> None:
    modules = {module_name(ROOT, path) for path in python_files(ROOT, *PACKAGES)}
    assert {"data.alphabet", "data.draw", *HOT_PATH} <= modules
    engines = {"single", "ddp", "fsdp2", "hsdp", "zero1", "zero2", "zero3", "zero3_offload"}
    assert {p.stem for p in (ROOT / "accelerate_configs").glob("*.yaml")} == engines


def test_hot_path_imports_without_the_other_packages() -> None:
    done = run_without(ROOT, HOT_PATH)
    assert done.returncode == 0, done.stderr


def test_contributing_names_the_imports_of_the_hot_path() -> None:
    text = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())
    _, _, said = text.partition("The path of a training step imports ")
    named = set(said.partition(" alone")[0].replace(" and ", ", ").split(", "))
    required_by_these = {"llvmlite", "huggingface_hub", "packaging", "psutil", "yaml"}
    assert named == HOT_PATH_MAY_NAME - required_by_these


def test_git_sees_the_data_package() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    sources = [str(path.relative_to(ROOT)) for path in python_files(ROOT, *CODE)]
    assert git_ignores(ROOT, "data/fasta.py", *sources) == []


# A broken tree does not ---------------------------------------------------------------------------


def tree(root: Path, **files: str) -> Path:
    """Writes the files, by their path, beside packages that are empty."""
    for folder in ("data", "pretrain", "pretrain/engine", "pretrain/model"):
        (root / folder).mkdir(parents=True)
        (root / folder / "__init__.py").write_text("")
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


YAML = "accelerate_configs/a.yaml"
BROKEN = [
    (against_direction, "data/a.py", "def f(): from pretrain import x", "data.a imports pretrain"),
    (against_direction, "data/a.py", "import accelerate.utils", "data.a imports accelerate"),
    (against_direction, "pretrain/a.py", "import finetune", "pretrain.a imports finetune"),
    (engine_outside_its_room, "pretrain/a.py", "import deepspeed", "pretrain.a imports deepspeed"),
    (more_than_numpy, "data/masking.py", "def f(): import Bio", "data.masking imports Bio"),
    (hot_path_not_lean, "pretrain/step.py", "if 1: import rich", "pretrain.step imports rich"),
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


def test_rules_follow_imports_through_our_modules(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        **{
            "data/loader.py": "import typing\nfrom . import store\nif typing.TYPE_CHECKING:\n    import Bio\n",
            "data/store.py": "import data.fasta as fasta\ndef f():\n    import pandas\n",
            "data/fasta.py": "from isal import igzip\n",
            "data/order.py": "from data.store import f\n",
        },
    )
    assert hot_path_not_lean(root) == ["data.fasta imports isal"]
    assert more_than_numpy(root) == ["data.fasta imports isal"]


@pytest.mark.parametrize("text", ["import rich\n", "import importlib\nimportlib.import_module('Bio.SeqIO')\n"])
def test_blocked_package_fails_the_import(tmp_path: Path, text: str) -> None:
    done = run_without(tree(tmp_path, **{"data/loader.py": text}), ("data.loader",))
    assert done.returncode != 0
    assert "ModuleNotFoundError" in done.stderr


def test_git_ignore_is_asked(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("data/\n")
    assert git_ignores(tmp_path, "data/fasta.py", "pretrain/step.py") == ["data/fasta.py"]
