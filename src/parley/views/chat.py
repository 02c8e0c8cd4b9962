"""Chat: a whole request is prefilled into an empty context and answered once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

from parley.engine.work import Generate, GenerateResult, PrefillResult, StartSession
from parley.errors import InvalidRequest, UpstreamFailed
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm, join
from parley.protocol.values import Generation, Tool, TtsMode
from parley.views.content import Layout, Message, with_tools
from parley.views.plain import PlainMessage, decoded
from parley.views.prompts import system_message
from parley.views.turns import StreamingChunk, TurnView, command


@dataclass(frozen=True, slots=True, eq=False)
class ChatAnswer:
    """A complete answer.

    Args:
        audio: 24 kHz; None if nothing was spoken.
    """

    text: str
    audio: Pcm | None
    decoded: GenerateResult


class ChatView(TurnView):
    """`prefill`, then `streaming_generate` or `generate`. Every prefill starts a new context."""

    _may_call = False

    async def prefill(
        self,
        session_id: str,
        msgs: Sequence[Message | PlainMessage],
        *,
        omni_mode: bool = False,
        max_slice_nums: int | None = None,
        use_image_id: bool | None = True,
        voice: Pcm | None = None,
        speak: bool = True,
        tts_mode: TtsMode = "default",
        language: str | None = None,
        seed: int | None = None,
        is_seed_chosen: bool = False,
        tools: tuple[Tool, ...] = (),
        due_s: float | None = None,
    ) -> PrefillResult:
        """Put all messages into an empty context.

        Args:
            msgs: as `Message`, or plain values as in the chat protocol.
            omni_mode: True: no separators between the parts of a message, instead of line breaks.
            voice: reference for the vocoder, 16 kHz; None: the model's own.
            speak: True if the answer may have audio; the voice is prepared here.
            tts_mode, language: select the system message that is added if there is none (see
                `prompts`).
            seed, is_seed_chosen: see `StartSession`.
            tools: functions that the model may call, if it supports that.

        Raises:
            InvalidRequest: there are no messages, or the first is neither a system nor a user
                message.
            ContextFull: the messages do not fit into the context.
        """
        # The imitated voice is also in the prompt, as on the published pages.
        heard = self.spec.prompt_voice if voice is None and speak else voice
        messages = self._with_system(
            await decoded(msgs), heard, tts_mode if speak else "default", language
        )
        if tools:
            messages = with_tools(messages, tools)
        layout = Layout("clip", not omni_mode, max_slice_nums, use_image_id)
        segments = [segment for message in messages for segment in layout.message(message)]
        self.session_id = None
        opening = StartSession("chat", voice, speak, seed, is_seed_chosen)
        await self._slot.start(opening)
        prefilled = await self._slot.prefill(segments, due_s=due_s)
        self.session_id, self._may_call = session_id, bool(tools)
        return prefilled

    async def streaming_generate(
        self,
        session_id: str,
        generation: Generation | None = None,
        *,
        generate_audio: bool = True,
        due_s: float | None = None,
    ) -> AsyncGenerator[StreamingChunk, None]:
        """The answer in pieces. Afterwards, `decoded` has the result.

        Leaving the loop early stops the model.
        """
        self._check_session(session_id)
        reply = self._reply(generation, speak=generate_audio, streaming=True)
        async for chunk in self._stream(reply, due_s):
            yield chunk
        self._check_answer()

    async def generate(
        self,
        session_id: str,
        generation: Generation | None = None,
        *,
        generate_audio: bool = True,
        due_s: float | None = None,
    ) -> ChatAnswer:
        """The answer in one piece: the complete text, then its audio."""
        self._check_session(session_id)
        reply = self._reply(generation, speak=generate_audio, streaming=False)
        sounds = [
            chunk.audio async for chunk in self._stream(reply, due_s) if chunk.audio is not None
        ]
        self._check_answer()
        assert self.decoded is not None
        audio = join(sounds, OUTPUT_RATE_HZ) if sounds else None
        return ChatAnswer(self.decoded.text, audio, self.decoded)

    def _reply(self, generation: Generation | None, *, speak: bool, streaming: bool) -> Generate:
        reply = command(
            generation or Generation(), speak=speak, streaming=streaming, is_whole=not streaming
        )
        return replace(reply, may_call=self._may_call)

    def _check_answer(self) -> None:
        """Raises `UpstreamFailed` if a server behind the model did not answer."""
        if self.decoded is not None and self.decoded.problem:
            raise UpstreamFailed(self.decoded.problem)

    def _with_system(
        self, msgs: Sequence[Message], voice: Pcm | None, mode: TtsMode, language: str | None
    ) -> list[Message]:
        if not msgs:
            raise InvalidRequest("messages must not be empty.", field="messages")
        if msgs[0].role == "assistant":
            raise InvalidRequest(
                "The first message must have the role system or user.", field="messages"
            )
        if any(message.role == "system" for message in msgs):
            return list(msgs)
        extra = system_message(mode, voice, language)
        return [*([extra] if extra else []), *msgs]
