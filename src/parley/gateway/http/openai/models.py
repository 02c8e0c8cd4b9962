"""`GET /v1/models`: the loaded models and their abilities."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from parley.clock import Clock
from parley.errors import ParleyError
from parley.gateway.http.routing import Router
from parley.gateway.worker_pool import Worker, WorkerPool
from parley.protocol.control import Ability

NAME_CHARS: Final = 200


class NoModel(ParleyError):
    """No model is loaded, or the name is too long."""

    code = "model_not_found"
    http_status = 404
    is_client_error = True

    def __init__(self, model_id: str) -> None:
        self.field = "model"
        super().__init__(f"The model '{model_id[:NAME_CHARS]}' does not exist.")


class ModelCard(msgspec.Struct, kw_only=True):
    """A model that a worker has loaded. The fields after `owned_by` are our addition."""

    id: Annotated[str, Meta(examples=["pocket"])]
    object: str = "model"
    created: Annotated[int, Meta(description="Unix seconds; when it was first seen")]
    owned_by: str = "parley"
    modes: Annotated[list[str], Meta(examples=[["chat", "half_duplex", "duplex"]])]
    abilities: Annotated[
        list[str],
        Meta(
            description="`speech`: answers are spoken; `reading`: speaks a given text; "
            "`transcription`: writes down what it hears; `tools`: calls functions; "
            "`tool_choice`: can be made to call one; `json`: answers in JSON of a schema; "
            "`penalties`: heeds penalties of presence and frequency; `logprobs`: reports the "
            "probabilities of its tokens",
            examples=[["speech", "reading", "transcription"]],
        ),
    ]
    context_window: Annotated[int, Meta(description="tokens")]


class ModelCards(msgspec.Struct, kw_only=True):
    """All models that are loaded."""

    object: str = "list"
    data: list[ModelCard]


@dataclass(slots=True)
class ModelList:
    """The models of the connected workers."""

    worker_pool: WorkerPool
    clock: Clock
    _seen_s: dict[str, int] = field(default_factory=dict)

    @property
    def workers(self) -> list[Worker]:
        """One connected worker per model."""
        found = {worker.hello.model: worker for worker in self.worker_pool if worker.is_connected}
        return list(found.values())

    @property
    def current(self) -> str:
        return self.worker_pool.model or "none"

    def can(self, ability: Ability) -> bool:
        """True if a worker's model has this ability; also if there is no worker, which is another
        error."""
        workers = self.workers
        return not workers or any(ability in worker.hello.abilities for worker in workers)

    @property
    def transcription_prompt(self) -> str:
        """Prompt that makes the model transcribe; "" if none is needed."""
        able = (w.hello for w in self.workers if "transcription" in w.hello.abilities)
        return next((hello.transcription_prompt for hello in able), "")

    def cards(self) -> list[ModelCard]:
        return [self._card(worker) for worker in self.workers]

    def _card(self, worker: Worker) -> ModelCard:
        hello = worker.hello
        return ModelCard(
            id=hello.model,
            created=self._seen_s.setdefault(hello.model, int(self.clock.time())),
            modes=list(hello.modes),
            abilities=list(hello.abilities),
            context_window=hello.context_tokens,
        )


def routes(models: ModelList) -> Router:
    router = Router("/v1/models", tag="openai")

    @router.get("")
    async def listed() -> ModelCards:
        """The models that are loaded now, with their abilities."""
        return ModelCards(data=models.cards())

    @router.get("/{model_id:path}", errors=(404,))
    async def one(model_id: str) -> ModelCard:
        """A loaded model; for any other name, which requests may use too, the model that answers
        them."""
        cards = models.cards()
        for card in cards:
            if card.id == model_id:
                return card
        if not cards or len(model_id) > NAME_CHARS:
            raise NoModel(model_id)
        return msgspec.structs.replace(cards[0], id=model_id)

    return router
