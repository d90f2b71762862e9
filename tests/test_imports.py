"""How lean: a hot path of few packages, and arithmetic that needs NumPy alone. Who imports whom is in setup.cfg.

Each rule is a function of a root folder that returns its offences, so that every test has a twin in which a broken tree
is found out.
"""

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.places import ROOT
from support.source_tree import (
    PACKAGES,
    imports,
    module_name,
    python_files,
    reachable,
    third_party,
    tree,
)

ARITHMETIC = "data/order"  # with all that it imports
NUMPY_ITSELF = ("data/batches/masking.py", "data/sources/synthetic.py", "zymogen/keyed_random.py", "data/alphabet.py")
HOT_PATH = ("zymogen.trainer.step", "pretrain.model.encoder", "data.batches.loader", "data.corpus.reader")
HOT_PATH_MAY_NAME = {
    *("torch", "numpy", "accelerate", "transformers", "safetensors"),
    *(
        "huggingface_hub",
        "packaging",
        "psutil",
        "yaml",
    ),  # which accelerate and transformers require
}
# What a bare GPU machine may lack: all that we use, or will, besides the above.
MAY_BE_ABSENT = (
    *("numba", "llvmlite", "isal", "pydantic", "rich", "wandb", "tensorboard", "Bio", "datasets", "peft", "tyro"),
    *("trackio", "duckdb", "fsspec", "pyarrow", "backports", "s3fs", "moto"),
    *("matplotlib", "openpyxl", "pandas", "rdkit", "scipy", "sklearn", "tomli_w", "hypothesis"),
)


# The rules ----------------------------------------------------------------------------------------


def step_taken_elsewhere(root: Path) -> list[str]:
    """Calls of `train_step` outside of the loop and of what times it, and each but the first one in both."""
    calls = [
        module_name(root, path)
        for path in python_files(root, *PACKAGES)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "train_step"
    ]
    for module in ("zymogen.trainer.loop", "pretrain.timing"):
        if module in calls:
            calls.remove(module)
    return [f"{module} calls train_step" for module in calls]


def more_than_numpy(root: Path) -> list[str]:
    named: set[tuple[str, str]] = set()
    arithmetic = python_files(root, ARITHMETIC)
    for path in (*arithmetic, *filter(Path.is_file, (root / name for name in NUMPY_ITSELF))):
        named |= {(module_name(root, path), name) for name in third_party(imports(root, path))}
    for module, path in reachable(root, *(module_name(root, path) for path in arithmetic)).items():
        named |= {(module, name) for name in third_party(imports(root, path, on_import_only=True))}
    return sorted(f"{module} imports {name}" for module, name in named if name != "numpy")


def hot_path_not_lean(root: Path) -> list[str]:
    model = [module_name(root, path) for path in python_files(root, "pretrain/model")]
    return [
        f"{module} imports {name}"
        for module, path in sorted(reachable(root, *HOT_PATH, *model).items())
        for name in sorted(third_party(imports(root, path, on_import_only=True)) - HOT_PATH_MAY_NAME)
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


# The tree keeps them ------------------------------------------------------------------------------

RULES = (step_taken_elsewhere, more_than_numpy, hot_path_not_lean)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_tree_keeps_the_rule(rule: Callable[[Path], list[str]]) -> None:
    assert rule(ROOT) == []


def test_the_rules_have_something_to_read() -> None:
    modules = {module_name(ROOT, path) for path in python_files(ROOT, *PACKAGES)}
    assert {"data.order.plan", *HOT_PATH} <= modules
    assert "train_step(" in (ROOT / "zymogen/trainer/loop.py").read_text()


@pytest.mark.slow
def test_hot_path_imports_without_the_other_packages() -> None:
    done = run_without(ROOT, HOT_PATH)
    assert done.returncode == 0, done.stderr


def test_contributing_names_the_imports_of_the_hot_path() -> None:
    text = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())
    _, _, said = text.partition("The path of a training step imports ")
    named = set(said.partition(" alone")[0].replace(" and ", ", ").split(", "))
    required_by_these = {"huggingface_hub", "packaging", "psutil", "yaml"}
    assert named == HOT_PATH_MAY_NAME - required_by_these


# A broken tree does not ---------------------------------------------------------------------------

BROKEN = [
    (step_taken_elsewhere, "pretrain/a.py", "def f(): step.train_step(1)", "pretrain.a calls train_step"),
    (step_taken_elsewhere, "zymogen/trainer/loop.py", "train_step(1), train_step(2)", "trainer.loop calls train_step"),
    (step_taken_elsewhere, "pretrain/timing.py", "train_step(1), train_step(2)", "pretrain.timing calls train_step"),
    (more_than_numpy, "data/batches/masking.py", "def f(): import Bio", "data.batches.masking imports Bio"),
    (hot_path_not_lean, "zymogen/trainer/step.py", "if 1: import rich", "zymogen.trainer.step imports rich"),
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
            "data/batches/loader.py": """import typing
from ..store import token_store
if typing.TYPE_CHECKING: import Bio
""",
            "data/store/token_store.py": "import data.sources.fasta as fasta\ndef f():\n    import pandas\n",
            "data/sources/fasta.py": "from isal import igzip\n",
            "data/order/sampler.py": "from data.store.token_store import f\n",
        },
    )
    assert hot_path_not_lean(root) == ["data.sources.fasta imports isal"]
    assert more_than_numpy(root) == ["data.sources.fasta imports isal"]


@pytest.mark.parametrize("text", ["import rich\n", "import importlib\nimportlib.import_module('Bio.SeqIO')\n"])
def test_blocked_package_fails_the_import(tmp_path: Path, text: str) -> None:
    done = run_without(tree(tmp_path, **{"data/batches/loader.py": text}), ("data.batches.loader",))
    assert done.returncode != 0
    assert "ModuleNotFoundError" in done.stderr
