"""Training of any model on packed batches: one step, the loop around it, engines, checkpoints and recovery.

It knows tensors, batches and ranks, not proteins, encoders or labels: those are a `job`'s. Of `data` it imports
`batches` and `order` alone. Begin with `attempt.train`, then `loop`, which takes steps, and `step`, one update, whole.

    optimizer    parameter groups, AdamW, Muon, the rate  engine      how a run is spread over processes
    run          the directory of a run, and its files    checkpoint  one format for every engine, whole or not at all
    telemetry    memory, and how fast a machine could be  recovery    faults, stalls, restarts, where to begin

Beside the rooms stand `run_console` (the lines that a run prints), `metrics_log` (lines of metrics.jsonl),
`validation` (what each validation found), `flags` (what ranks tell each other with a step) and `collectives` (work that
ranks share).
"""
