"""What keeps a run from failing for ever: starts that would only repeat a failure are refused.

Read breaker, which reads what a run directory says of its starts.
"""
