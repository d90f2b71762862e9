"""Who imports whom, and how lean: one direction, rooms that may know each other, a hot path of few packages.

Each rule is a function of a root folder that returns its offences, so that every test has a twin in which a broken tree
is found out.
"""

import ast
import subprocess
import sys
from collections.abc import Callable
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from support.places import ROOT
from support.source_tree import (
    PACKAGES,
    imports,
    module_name,
    module_path,
    python_files,
    reachable,
    third_party,
    tops,
    tree,
)

# What a room may import of its package besides itself. In `data`, files (sources, store, homology) and arithmetic
# (order, batches) are two wings that do not know each other; they meet in corpus.
GROUND = ("alphabet",)
DATA_ROOMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(GROUND, GROUND),
    "order": GROUND,
    "batches": (*GROUND, "order"),
    "settings": (*GROUND, "order", "batches"),
    "transport": (*GROUND, "settings"),
    "sources": (*GROUND, "settings", "transport"),
    "store": (*GROUND, "settings", "transport", "sources"),
    "homology": (*GROUND, "settings", "transport", "sources", "store"),
}
DATA_ROOMS["corpus"] = (*GROUND, "settings", "sources", "store", "homology", "order", "batches")
DATA_ROOMS["commands"] = (*DATA_ROOMS["corpus"], "corpus")
DATA_ROOMS["__main__"] = (*GROUND, "commands")
# In `pretrain`, each room imports rooms above it alone. None imports a module that stands beside the rooms (loop, step,
# ...): those compose the rooms and may import all of them. The recipe, one module, composes settings of rooms alone.
PRETRAIN_ROOMS: dict[str, tuple[str, ...]] = {
    "model": (),
    "run": (),
    "optimizer": ("model",),
    "engine": ("model", "run", "optimizer"),
    "recipe": ("model", "run", "optimizer", "engine"),
    "telemetry": ("model", "run", "engine"),
    "checkpoint": ("run", "engine"),
    "recovery": ("engine", "run", "checkpoint"),
    "inspect": ("engine", "run", "checkpoint", "recovery"),
    "evaluation": ("model", "engine", "run"),
    "baselines": ("engine", "evaluation", "recipe"),
    "proposal": ("model", "run", "telemetry"),
    "report": ("engine", "run", "evaluation"),
    "card": ("run", "evaluation", "report"),
    "ship": ("model", "engine", "run", "checkpoint", "evaluation", "card"),
    "contacts": ("model", "engine", "evaluation", "ship"),
    "compare": ("model", "engine", "run", "evaluation", "ship"),
    "push": ("model", "engine", "run", "checkpoint", "evaluation", "ship", "compare"),
}
# In `finetune`, tables, tasks and labels stand on each other; heads, losses, metrics and splits on their types alone.
FINETUNE_ROOMS: dict[str, tuple[str, ...]] = {
    "tables": (),
    "tasks": ("tables",),
    "labels": ("tables", "tasks"),
    "heads": ("tasks",),
    "losses": ("tasks", "labels"),
    "adaptation": (),
    "metrics": ("tasks", "labels"),
    "baselines": ("tasks", "labels", "metrics"),
    "splits": ("tables",),
    "results": ("tasks", "labels", "metrics", "baselines", "splits"),
    "report": ("tasks", "metrics", "splits", "results"),
    "look": ("tables", "tasks", "labels", "splits"),
    "bundle": ("tables", "tasks", "heads", "losses", "adaptation", "metrics", "splits", "results"),
    "embed": ("adaptation", "bundle"),
    "score": ("tables", "tasks", "labels", "metrics"),
    "proteingym": ("tables", "metrics", "score"),
    "compare": ("tasks", "labels", "metrics", "splits", "results", "bundle"),
}
OF_PACKAGES = {"data": DATA_ROOMS, "pretrain": PRETRAIN_ROOMS, "finetune": FINETUNE_ROOMS}

ARITHMETIC = "data/order"  # with all that it imports
NUMPY_ITSELF = ("data/batches/masking.py", "data/sources/synthetic.py", "zymogen/keyed_random.py", "data/alphabet.py")
HOT_PATH = ("pretrain.step", "pretrain.model.encoder", "data.batches.loader", "data.corpus.reader")
THE_LOOP = ("pretrain/loop.py", "pretrain/step.py", "pretrain/job.py")
OF_A_JOB = (  # what the loop may not know of
    *("data.corpus", "data.homology", "data.sources", "data.store"),
    *("pretrain.corpora", "pretrain.evaluation", "pretrain.model", "pretrain.masked_language_job", "pretrain.ship"),
)
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


def against_direction(root: Path) -> list[str]:
    forbidden = {
        "zymogen": {"data", "pretrain", "finetune", "accelerate", "deepspeed"},
        "data": {"pretrain", "finetune", "accelerate", "deepspeed"},
        "pretrain": {"finetune"},
    }
    return [
        f"{module_name(root, path)} imports {name}"
        for package, names in forbidden.items()
        for path in python_files(root, package)
        for name in sorted(tops(imports(root, path)) & names)
    ]


def against_the_rooms(root: Path) -> list[str]:
    """Imports of a room by one of the same package that may not know it, wherever in a file they stand."""

    def room(module: str) -> str:
        return [*module.split("."), ""][1]

    paths = python_files(root, "data")
    for package in ("pretrain", "finetune"):
        paths += [path for path in python_files(root, package) if path.parent != root / package]
    arrows = [(module_name(root, path), name) for path in paths for name in sorted(imports(root, path))]
    may_know = {f"{package}.{name}": known for package, rooms in OF_PACKAGES.items() for name, known in rooms.items()}
    return [
        f"{module} imports {name}"
        for module, name in arrows
        if tops(frozenset({module})) == tops(frozenset({name})) and room(name)
        if room(name) not in (room(module), *may_know.get(f"{module.partition('.')[0]}.{room(module)}", ()))
    ]


def engine_outside_its_room(root: Path) -> list[str]:
    return [
        f"{module_name(root, path)} imports {name}"
        for path in python_files(root, *PACKAGES)
        for name in sorted(tops(imports(root, path)) & {"accelerate", "deepspeed"})
        if not path.is_relative_to(root / "pretrain" / "engine")
    ]


def loop_knows_its_job(root: Path) -> list[str]:
    return [
        f"{module_name(root, path)} imports {name}"
        for path in filter(Path.is_file, (root / file for file in THE_LOOP))
        for name in sorted(imports(root, path))
        if any(f"{name}.".startswith(f"{theirs}.") for theirs in OF_A_JOB)
    ]


def step_taken_elsewhere(root: Path) -> list[str]:
    """Calls of `train_step` outside of the loop and of what times it, and each but the first one in both."""
    calls = [
        module_name(root, path)
        for path in python_files(root, *PACKAGES)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "train_step"
    ]
    for module in ("pretrain.loop", "pretrain.timing"):
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

RULES = (
    *(against_direction, against_the_rooms, engine_outside_its_room, loop_knows_its_job, step_taken_elsewhere),
    *(more_than_numpy, hot_path_not_lean),
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_tree_keeps_the_rule(rule: Callable[[Path], list[str]]) -> None:
    assert rule(ROOT) == []


def test_the_rules_have_something_to_read() -> None:
    modules = {module_name(ROOT, path) for path in python_files(ROOT, *PACKAGES)}
    assert {"data.order.plan", *HOT_PATH} <= modules
    assert {f"data.{room}" for room in DATA_ROOMS if room not in GROUND and room != "__main__"} <= modules
    assert {f"pretrain.{room}" for room in PRETRAIN_ROOMS} <= modules
    assert all((ROOT / path).is_file() for path in THE_LOOP)
    assert all(module_path(ROOT, name) for name in OF_A_JOB)
    assert "train_step(" in (ROOT / "pretrain/loop.py").read_text()


def test_no_circle_of_rooms_is_allowed() -> None:
    for rooms in (DATA_ROOMS, PRETRAIN_ROOMS):
        above = {room: set(known) - set(GROUND) for room, known in rooms.items() if room not in GROUND}
        assert set(TopologicalSorter(above).static_order()) == set(above)


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
    (against_direction, "data/a.py", "def f(): from pretrain import x", "data.a imports pretrain"),
    (against_direction, "data/a.py", "import accelerate.utils", "data.a imports accelerate"),
    (against_direction, "pretrain/a.py", "import finetune", "pretrain.a imports finetune"),
    (against_the_rooms, "data/order/a.py", "import data.store.journal", "data.order.a imports data.store"),
    (against_the_rooms, "data/batches/a.py", "from data import store", "data.batches.a imports data.store"),
    (against_the_rooms, "data/store/a.py", "def f(): from data.order import x", "data.store.a imports data.order"),
    (
        against_the_rooms,
        "data/alphabet.py",
        "import data.settings",
        "data.alphabet imports data.settings",
    ),
    (against_the_rooms, "data/nowhere/a.py", "import data.alphabet", "data.nowhere.a imports data.alphabet"),
    (against_direction, "zymogen/a.py", "def f(): from data import x", "zymogen.a imports data"),
    (against_the_rooms, "pretrain/model/a.py", "import pretrain.recipe", "pretrain.model.a imports pretrain.recipe"),
    (against_the_rooms, "pretrain/run/a.py", "def f(): import pretrain.loop", "pretrain.run.a imports pretrain.loop"),
    (against_the_rooms, "pretrain/run/a.py", "import pretrain.engine.ranks", "pretrain.run.a imports pretrain.engine"),
    (
        against_the_rooms,
        "pretrain/model/a.py",
        "from pretrain import engine",
        "pretrain.model.a imports pretrain.engine",
    ),
    (against_the_rooms, "pretrain/nowhere/a.py", "import pretrain.run", "pretrain.nowhere.a imports pretrain.run"),
    (engine_outside_its_room, "pretrain/a.py", "import deepspeed", "pretrain.a imports deepspeed"),
    (loop_knows_its_job, "pretrain/loop.py", "from pretrain import model", "pretrain.loop imports pretrain.model"),
    (loop_knows_its_job, "pretrain/job.py", "def f(): import data.store.x", "pretrain.job imports data.store.x"),
    (loop_knows_its_job, "pretrain/step.py", "import pretrain.corpora", "pretrain.step imports pretrain.corpora"),
    (step_taken_elsewhere, "pretrain/a.py", "def f(): step.train_step(1)", "pretrain.a calls train_step"),
    (step_taken_elsewhere, "pretrain/loop.py", "train_step(1), train_step(2)", "pretrain.loop calls train_step"),
    (step_taken_elsewhere, "pretrain/timing.py", "train_step(1), train_step(2)", "pretrain.timing calls train_step"),
    (more_than_numpy, "data/batches/masking.py", "def f(): import Bio", "data.batches.masking imports Bio"),
    (hot_path_not_lean, "pretrain/step.py", "if 1: import rich", "pretrain.step imports rich"),
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
