"""Launches in which processes do not come, or whose variables are not whole."""

from pathlib import Path

from support.other_machines import Row, table

ROWS = [
    Row(
        fault=19,
        situation=f"{name} is {text!r}",
        words=("-m", "pretrain", "tiny.toml"),
        environment={name: text},
        status=78,
        says=(rf"error: {name} is '{text}' in the environment; it must be a whole number", rf"unset {name}"),
    )
    for name, text in (("RANK", ""), ("WORLD_SIZE", "two"), ("LOCAL_RANK", ""))
] + [
    Row(
        fault=19,
        situation="WORLD_SIZE alone",
        words=("-m", "pretrain", "tiny.toml"),
        environment={"WORLD_SIZE": "2"},
        status=78,
        says=("error: RANK is missing in the environment, which has WORLD_SIZE=2; .* MASTER_ADDR",),
    )
]


@table(ROWS)
def test_row(row: Row, tmp_path: Path) -> None:
    row.run(tmp_path)
