"""What deciding on roles costs in tables of many columns."""

from pathlib import Path

import numpy as np
import pytest

from finetune.look import terms
from finetune.look.column_profile import columns_of
from finetune.look.columns import relations
from finetune.look.roles import infer_roles
from finetune.tables.read import read_table
from support.assays.messy_tables import lines, saved


def test_names_and_pairs_of_columns_grow_with_the_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are read a few times each, and of more than 60 columns of numbers equal ones alone are compared."""
    calls = {"plain": 0, "_relation": 0}

    def counted(module: object, name: str) -> None:
        function = getattr(module, name)

        def call(*given: object) -> object:
            calls[name] += 1
            return function(*given)

        monkeypatch.setattr(module, name, call)

    counted(terms, "plain")
    counted(relations, "_relation")
    seen = {}
    for count in (100, 400):
        numbers = np.random.default_rng(count).normal(size=(count, 20)).round(3)
        numbers[7] = numbers[3]
        header = ",".join(f"CHEMBL{at}" for at in range(count))
        table = read_table(*saved(tmp_path, lines(header, *numbers.tolist()), name=f"{count}.csv"))
        calls.update(plain=0, _relation=0)
        roles = infer_roles(columns_of(table), {}, np.full(20, 50))
        assert len(roles.tasks) == count - 1
        assert roles.of["CHEMBL7"][0] == "copy"
        seen[count] = dict(calls)
    assert seen[400]["plain"] <= 4.1 * seen[100]["plain"] <= 4.1 * 20 * 100
    assert seen[100]["_relation"] == seen[400]["_relation"] == 1
