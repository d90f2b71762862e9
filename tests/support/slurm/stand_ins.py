"""Stand-ins of Slurm's commands for everyday tests.

They are made from the log of the real one: `PROBE` is the script that both run, and `PROBED` what both say.
"""

import os
from pathlib import Path

from support.launching import environment

PROBE = """#!/bin/bash
signal_of() { case $1 in kill) kill -TERM "$step" ;; scancel) scancel --signal=TERM "$SLURM_JOB_ID" ;; esac; }
number=0
for how in kill scancel; do
    srun bash -c 'trap "echo task: SIGTERM; exit 5" TERM; touch "$0"; while :; do sleep 0.05; done' "begun-$how" &
    step=$!
    until [[ -e begun-$how && $(squeue --noheader --steps="$SLURM_JOB_ID.$number") ]]; do sleep 0.05; done
    signal_of "$how"
    status=0
    wait "$step" || status=$?
    echo "$how: $status"
    number=$((number + 1))
done
squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T
"""
PROBED = ["kill: 137", "task: SIGTERM", "scancel: 5", "RUNNING"]
"""SIGTERM kills the tasks of srun, which are not asked; `scancel` asks them, and srun ends with their status."""

STAND_INS = {
    "srun": """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
SLURM_NODEID=0 setsid "$@" &
task=$!
trap 'interrupted=1; echo "srun: forcing job termination" >&2; kill -KILL -- "-$task"' TERM
echo "$task" >"$SLURM_STAND_IN/task"
while :; do
    interrupted= status=0
    wait "$task" || status=$?
    [[ $interrupted && $status == 143 ]] || break  # 143: SIGTERM interrupted the wait, and the task's status follows
done
rm "$SLURM_STAND_IN/task"
exit "$status"
""",
    "scancel": """#!/bin/bash
[[ $1 == --signal=* && -e $SLURM_STAND_IN/task ]] || exit 0  # Slurm drops a signal to a step that does not run yet
kill "-${1#--signal=}" "$(cat "$SLURM_STAND_IN/task")"
""",
    "squeue": """#!/bin/bash
case $2 in
--steps=*) cat "$SLURM_STAND_IN/task" 2>/dev/null ;;
--jobs=*) cat "$SLURM_STAND_IN/state" 2>/dev/null || echo RUNNING ;;
esac
exit 0
""",
    "scontrol": """#!/bin/bash
if [[ $1 == show ]]; then echo 127.0.0.1; else echo "$@" >>"$SLURM_STAND_IN/asked"; fi
""",
}


def write_stand_ins(folder: Path) -> dict[str, str]:
    """Write the stand-ins into a folder; the variables of a job in which they stand for Slurm's commands."""
    folder.mkdir()
    for name, text in STAND_INS.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    numbers = {"SLURM_JOB_ID": os.getpid(), "SLURM_NNODES": 1, "SLURM_GPUS_ON_NODE": 2, "SLURM_CPUS_PER_TASK": 1}
    job = {"SLURM_JOB_NODELIST": "a", "SLURM_STAND_IN": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"}
    return environment() | {name: str(value) for name, value in numbers.items()} | job
