"""Every fault that was met on other people's machines is a row of a table in this folder."""

from importlib import import_module
from pathlib import Path

from support.other_machines import FAULTS, Row


def test_every_fault_has_a_row() -> None:
    modules = [import_module(path.stem) for path in sorted(Path(__file__).parent.glob("test_machines_*.py"))]
    rows: list[Row] = [row for module in modules for row in getattr(module, "ROWS", [])]
    assert {row.fault for row in rows} == set(FAULTS)
