"""The program, whose watchdog waits for six seconds only: `accelerate launch -m support.chaos.short_window`."""

import sys

from pretrain.__main__ import main
from zymogen.trainer.recovery import watchdog

WINDOW_S = 6.0

if __name__ == "__main__":
    watchdog.SILENT_S = WINDOW_S
    sys.exit(main())
