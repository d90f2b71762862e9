"""Fine-tuning stands on pretraining: this package may import `pretrain` and `data`, and nothing imports it.

It takes assay tables in which most cells may be empty, and trains heads for all of their tasks at once, on the loop,
the engines and the checkpoints of pretraining (`zymogen.trainer`, docs/jobs.md). `setup.cfg` says which rooms may know
each other.
"""

from pathlib import Path
from runpy import run_path

# By its path, as a `zymogen.py` of the user's would be imported in place of the package.
run_path(str(Path(__file__).resolve().parents[1] / "zymogen" / "own_packages.py"))["require_own"](
    "zymogen", "data", "pretrain"
)
