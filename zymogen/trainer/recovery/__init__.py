"""What keeps a run from failing, or waiting, for ever.

Read shared_directory and restart_limit, which refuse a start that would lose its saves or only repeat a failure, then
watchdog, which by the heartbeats of all ranks ends blocked ones.
"""
