"""How a run is spread over processes; the only room that knows Accelerate and DeepSpeed.

In: what was launched, a model, an optimizer. Out: an `engine.Engine` that runs them, and their state by name. Kept:
nothing. Begin with `launch`, which chooses the engine that `accelerate launch` was told, as `launch_request` reads it,
then `engine` (one process and DDP), `fully_sharded` (FSDP2, HSDP), `zero` (DeepSpeed); `named_state` and `zero_state`
are what checkpoints read, `ranks` is what all do together.
"""
