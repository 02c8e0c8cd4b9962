"""An answer that is made again, in the context of a session that another worker has begun."""

from __future__ import annotations

from dataclasses import replace

from parley.errors import InferenceFailed
from parley.protocol.values import Generation
from parley.views.half_duplex import HalfDuplexView


async def answer_again(
    view: HalfDuplexView,
    session_id: str,
    generation: Generation,
    *,
    said: str,
    is_whole: bool,
    chosen: object,
    speaks: bool,
) -> None:
    """Have the model make an answer as it made it, or only say it where it did not come to its end
    and nobody knows what was chosen.

    Args:
        session_id: of the view's request.
        said: what the context held of it.
        is_whole: whether that is all that the model had to say.
        chosen: what the model decided about it; None: it decides once more, from the same seed.
        speaks: whether it was spoken.

    Raises:
        InferenceFailed: the model answers otherwise than it did.
    """
    is_decided = is_whole or chosen is not None
    if not is_decided:
        generation = replace(generation, say=said)
    stream = view.generate(
        session_id, generation, generate_audio=is_decided and speaks, again=chosen
    )
    async for _ in stream:
        pass
    if view.decoded is None or view.decoded.text != said:
        raise InferenceFailed("The model answers otherwise than it did.")
