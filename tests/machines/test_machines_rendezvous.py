"""Launches by other programs, with other flags, in which processes do not come, or whose variables are not whole."""

from pathlib import Path

from support.other_machines import Row, table
from support.places import ROOT

ROWS = [
    *(
        Row(
            fault=19,
            situation=f"{name} is {text!r}",
            words=("-m", "pretrain", "tiny.toml"),
            environment={name: text},
            status=78,
            says=(rf"error: {name} is '{text}' in the environment; it must be a whole number", rf"unset {name}"),
        )
        for name, text in (("RANK", ""), ("WORLD_SIZE", "two"), ("LOCAL_RANK", ""))
    ),
    Row(
        fault=19,
        situation="WORLD_SIZE alone",
        words=("-m", "pretrain", "tiny.toml"),
        environment={"WORLD_SIZE": "2"},
        status=78,
        says=("error: RANK is missing in the environment, which has WORLD_SIZE=2; .* MASTER_ADDR",),
    ),
    Row(
        fault=12,
        situation="a process never comes",
        words=("-m", "pretrain", "tiny.toml"),
        environment={"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29641"},
        shell='"$@" > said 2>&1 & until grep -q "waits for" said || ! kill -0 $!; do sleep 0.1; done; '
        "kill -TERM $!; wait $!; status=$?; cat said; exit $status",
        status=75,
        says=(r"rank 0 waits for 1 of 2 processes at 127\.0\.0\.1:29641 since \d+ s", "stopped by SIGTERM"),
    ),
    Row(
        fault=8,
        situation="SIGTERM under torchrun",
        slow=True,
        words=(
            *("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
            *("-m", "pretrain", "tiny.toml", "schedule.total_tokens=9_000_000"),
        ),
        environment={"ACCELERATE_MIXED_PRECISION": "no"},
        shell='"$@" > said 2>&1 & until grep -q "^step " said || ! kill -0 $!; do sleep 0.1; done; '
        "kill -TERM $!; wait $!; cat said",
        says=(
            r"to continue: \S*python -m torch\.distributed\.run --standalone --nproc_per_node 2 -m pretrain tiny\.toml "
            r"schedule\.total_tokens=9_000_000",
        ),
        never=(),
    ),
    Row(
        fault=24,
        situation="flags of another engine",
        slow=True,
        words=(
            *("-m", "accelerate.commands.launch", "--config_file", f"{ROOT}/accelerate_configs/ddp.yaml"),
            *("--num_processes", "2", "--gradient_accumulation_steps", "4", "--gradient_clipping", "0.1"),
            *("-m", "pretrain", "tiny.toml"),
        ),
        status=1,  # of the launcher, whatever its processes end with
        says=(r"error: .*gradient_accumulation_steps.* 4",),
        never=("step 1 ",),
    ),
]


@table(ROWS)
def test_row(row: Row, tmp_path: Path) -> None:
    row.run(tmp_path)
