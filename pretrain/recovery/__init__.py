"""What keeps a run from failing for ever: starts that would only repeat a failure are refused.

Read starts, which reads what a run directory says of them, then breaker, which refuses one more.
"""
