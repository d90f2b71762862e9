"""What keeps a run from failing, or waiting, for ever.

Read starts, which reads what a run directory says of them, then shared_directory and breaker, which refuse a start that
would lose its saves or only repeat a failure, and watchdog, which by the heartbeats of all ranks ends blocked ones.
"""
