"""What keeps a run from failing, or waiting, for ever.

Read starts, which reads what a run directory says of them, then breaker, which refuses one that would only repeat a
failure, and watchdog, which by the heartbeats of all ranks ends those that are blocked.
"""
