"""The program with a deliberate fault, by its name in `wrong_engine.FAULTS`, for tests with a real launcher.

accelerate launch ... -m support.jobs.faulty_program fails_on_rank_1 recipe.toml
"""

import sys

from pretrain.__main__ import main
from support.wrong_engine import FAULTS

if __name__ == "__main__":
    with FAULTS[sys.argv[1]]():
        status = main(sys.argv[2:])
    sys.exit(status)
