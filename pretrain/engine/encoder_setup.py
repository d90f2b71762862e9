"""An encoder as an engine computes it: with this machine's attention, compiled or not, sharing batches or not.

In: an encoder before it is prepared, what the recipe asks for. Out: the encoder, set up in place. Kept: nothing.
"""

from pretrain.engine.engine import Engine
from pretrain.engine.ranks import share_context
from pretrain.model.compute import configure
from pretrain.model.encoder import Encoder
from pretrain.model.settings import ComputeSettings, ExchangeRequest


def set_up_encoder(
    encoder: Encoder, engine: Engine, settings: ComputeSettings, exchange: ExchangeRequest, num_slots: int
) -> list[str]:
    """Set `encoder` up; collective. Names of parameters stay as they are.

    Args:
        encoder: before `Engine.prepare`.
        engine: the one that will prepare it.
        settings: what the recipe asks for.
        exchange: what ranks that share every batch exchange.
        num_slots: slots of one batch, over all ranks that share it.

    Returns:
        Lines for the start of a run.

    Raises:
        ValueError: what was asked for by name cannot be had here.
    """
    lines = configure(
        encoder,
        settings,
        engine.device,
        engine.compute_dtype,
        engine.compile_obstacle,
        launched=engine.launched,
        gather=engine.gather,
        num_slots=num_slots // engine.context.size,
    )
    return lines + share_context(encoder, engine.context, exchange)
