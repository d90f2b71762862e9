"""Imported first by the server from which loader workers are forked: has the server end with the process it serves.

In: nothing. Out: nothing. Kept: nothing. The import is the act, as a server runs nothing else before it imports torch,
which takes longer than an orphan should live. Later it would notice by itself.
"""

from signal import SIGKILL

from zymogen.processes.parent import signal_at_its_end

signal_at_its_end(SIGKILL)
