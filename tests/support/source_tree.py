"""Python files of a checkout, and what each of them imports, read without running any of it."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGES = ("zymogen", "data", "pretrain", "finetune")


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
    """Dotted names that a file imports; `from data import fasta` gives `data` and `data.sources.fasta`."""
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


def tree(root: Path, **files: str) -> Path:
    """Writes the files, by their path, beside packages that are empty."""
    for folder in ("zymogen", "data", "data/store", "pretrain", "zymogen/trainer/engine", "pretrain/model"):
        (root / folder).mkdir(parents=True)
        (root / folder / "__init__.py").write_text("")
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
