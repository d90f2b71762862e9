"""What keeps a run from failing, or waiting, for ever.

Read shared_directory and restart_limit, which refuse a start that would lose its saves or only repeat a failure, then
run_checkpoints, which finds the checkpoint to begin at, here or in the object store, then watchdog, which by the
heartbeats of all ranks ends blocked ones, and loss_monitor, for numerical faults.
"""
