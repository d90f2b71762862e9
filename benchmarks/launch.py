"""Launches of a program of this project under an engine, as a user makes them.

In: an engine, a number of processes, the program's words. Out: what the program writes. Kept: nothing.
"""

import os
import subprocess
import sys


def launched(engine: str, processes: int, *words: str, precision: str = "no") -> None:
    """Run the module and its arguments `words` under Accelerate's launcher; where that fails, exit with its output."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", f"accelerate_configs/{engine}.yaml"]
    command += ["--num_processes", str(processes), "--mixed_precision", precision, "-m", *words]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
