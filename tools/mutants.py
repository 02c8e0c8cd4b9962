"""Mutation tests: change one central rule at a time and check that its fast tests fail.

    python -m tools.mutants            all
    python -m tools.mutants queue vad  those whose name starts so

A mutant that survives means that a test is missing. The working tree is not changed: each mutant is
a copy of `src/parley` in a temporary folder, which precedes the installed package on the path.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
LIMIT_S: Final = 120.0
"""A mutant whose tests run longer than this counts as detected."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """In `file` below `src/parley`, `old` (which occurs once) is replaced by `new`; `tests` must
    then fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str


def _mutants(name: str, file: str, tests: str, *changes: tuple[str, str]) -> list[Mutant]:
    return [
        Mutant(f"{name}-{number}", file, old, new, tests)
        for number, (old, new) in enumerate(changes, start=1)
    ]


DIALECT_TESTS: Final = "tests/dialects"
POOL_TESTS: Final = "tests/gateway/test_dispatcher.py"

MUTANTS: Final = [
    *_mutants(
        "queue", "gateway/dispatcher.py", f"{POOL_TESTS} tests/gateway/test_waiting.py",
        ("elif ticket.fingerprint is None and self.worker_pool.can_ever_serve(ticket.kind):", "elif False:"),
        ("elif ticket.fingerprint is None and self", "elif self"),
        ("WORKERS_TO_TRY: Final = 2", "WORKERS_TO_TRY: Final = 3"),
        ("away_s > self._no_worker_refuse_s", "away_s > 2 * self._no_worker_refuse_s"),
        ("if self._is_closed or self.is_paused:", "if self._is_closed:"),
        ("        elif ticket.lease is not None:\n            ticket.lease.release()\n        return was_waiting", "        return was_waiting"),
        ("if not lease.is_lost:\n            lease.worker.said_free = 0", "pass"),
    ),
    *_mutants(
        "move", "gateway/moving.py", "tests/gateway/test_moving.py",
        ("while slot.is_behind and session.slot is slot and is_open():", "while False:"),
        ("            session.slot, is_offered = slot, True\n", "            is_offered = True\n"),
        ("return worker.is_draining and lease.lease_id in worker.leases", "return lease.lease_id in worker.leases"),
        ("if session.slot is slot or not is_offered:", "if not is_offered:"),
    ),
    *_mutants(
        "successor", "gateway/rebuilding.py", "tests/gateway/test_moving.py",
        ("if not slot.follows:", "if True:"),
        ("            self.dispatcher.cancel(slot.ticket)\n            slot.ticket =", "            slot.ticket ="),
    ),
    *_mutants(
        "follow", "worker/rebuilding.py", "tests/worker/test_rebuilding.py -k followed",
        ("fresh, self._done = self._entries[self._done :], len(self._entries)", "fresh, self._done = self._entries, len(self._entries)"),
        ("            await self._take_over()\n            began_s", "            began_s"),
    ),
    *_mutants("unanswered", "worker/rebuilding.py", "tests/worker/test_rebuilding.py -k question_that", ("        done -= len(self.unanswered)\n", "")),
    *_mutants("conclude", "session/replay.py", "tests/session/test_replay.py", ("        await self._make_silenced()\n        await self._context.settle()\n", ""), ("        await self._make_silenced()\n        await self._context.settle()\n", "        await self._make_silenced()\n")),
    *_mutants("peek", "session_log/redis_logs.py", "tests/session_log/test_backends.py", ("await self._read(log_id, 0)", "await self._read(log_id, 1)")),
    *_mutants(
        "gone", "gateway/worker_control.py", "tests/gateway/test_workers_die.py",
        ("            # A process that is being killed may still listen for a moment.\n            await asyncio.sleep(GONE_EVERY_S)\n", "            return\n"),
    ),
    *_mutants(
        "queue-order", "gateway/queue.py", f"{POOL_TESTS} tests/gateway/test_waiting.py",
        ("bisect.insort(self._tickets, ticket, key=lambda one: one.order)", "self._tickets.insert(0, ticket)"),
        ("bisect.insort(self._tickets, ticket, key=lambda one: one.order)", "self._tickets.append(ticket)"),
        ("ticket.rank = held + len(own)", "ticket.rank = held"),
        ("count(max(old.rank, held))", "count(held)"),
        (" if rank not in taken)", ")"),
        ("max(ticket.order, max(own, default=0))", "ticket.order"),
        ("if len(self._tickets) >= self.limit:", "if len(self._tickets) > self.limit:"),
        ("                ticket.changed.notify()", "                pass"),
    ),
    *_mutants(
        "lease", "gateway/worker_pool.py", f"{POOL_TESTS} tests/gateway/test_operating.py",
        ("        if self.is_held:\n            self.is_held = False", "        if True:\n            self.is_held = False"),
        ("min(by_us, self.said_free - unseen)", "min(by_us, self.said_free)"),
        ("min(by_us, self.said_free - unseen)", "self.said_free - unseen"),
        ("self.slots - len(self.leases) - len(self.closing)", "self.slots - len(self.leases)"),
        ("RECLAIM_BEATS: Final = 2", "RECLAIM_BEATS: Final = 1"),
        ("known.hello.pid == hello.pid and known.hello.url == hello.url", "True"),
        ("if not self.is_usable or self.is_draining or", "if not self.is_usable or"),
        ("if silent_s > SILENCE_LIMIT_S:", "if silent_s > 2 * SILENCE_LIMIT_S:"),
    ),
    *_mutants(
        "eta", "gateway/eta.py", "tests/gateway/test_eta.py",
        ("eta - elapsed_s if elapsed_s < eta else OVERRUN_S", "max(0.0, eta - elapsed_s)"),
        ("heapq.heapreplace(heap, free + eta.eta(kind))", "pass"),
        ("if self.samples[kind] >= self.min_samples:", "if self.samples[kind] > self.min_samples:"),
    ),
    *_mutants(
        "scheduler", "engine/scheduler.py", "tests/engine/test_scheduler.py",
        ("PATIENCE_S = 1.5", "PATIENCE_S = 15.0"),
        ("leader.urgency_s - now_s >= MARGIN_S", "True"),
        ("if leader.stage not in _SHARED and leader.due_s is not None:", "if False:"),
        ("_SHARED = frozenset({Stage.DECODE, Stage.SPEECH})", "_SHARED = frozenset({Stage.DECODE})"),
        ("if one.due_s is not None and one.stage in _CATCH_UP", "if one.stage in _CATCH_UP"),
    ),
    *_mutants(
        "vad", "vad/utterance.py", "tests/vad/test_utterance.py",
        ("if probability < self._threshold:", "if probability <= self._threshold:"),
        ("HYSTERESIS = 0.15", "HYSTERESIS = 0.0"),
        ("needed *= (LONGEST_MS - spoken_ms) / (LONGEST_MS - LONG_MS)", "pass"),
        ("if spoken_ms >= LONGEST_MS:", "if False:"),
        ("if speech_end - speech_start >= self._min_speech:", "if True:"),
        ("self._floor = utterance.end_sample", "pass"),
        ("self._rest = samples[whole:].copy()", "self._rest = samples[:0]"),
        ("LOWEST_QUIET = 0.01", "LOWEST_QUIET = -1.0"),
    ),
    *_mutants(
        "codec", "protocol/codec.py", "tests/protocol/test_codec.py",
        ("size - 2 > limit_bytes", "size > 2 * limit_bytes"),
        ("    if len(data) % SAMPLE_BYTES:", "    if False:"),
        ("strict_mode=True", "strict_mode=False"),
        ("if found is not None and name not in value:", "if found is not None:"),
        ("abs(item) < _EXACT_INTEGERS", "True"),
        ('[A-Za-z0-9_-]{1,64}", re.ASCII', '[\\w-]{1,64}"'),
    ),
    *_mutants(
        "frames", "protocol/codec.py", "tests/protocol/test_codec.py tests/protocol/test_decode.py tests/protocol/test_direct_decoding.py",
        ("if _is_deeper(value, raw, MESSAGE_DEPTH_LIMIT):", "if False:"),
        ("is_plain = shape.indirect.isdisjoint(fields) and shape.usual <= fields.keys()", "is_plain = True"),
        ("if fields.get(name) is None:\n            fields.pop(name, None)", "fields.pop(name, None)"),
        ("brackets <= DEPTH_LIMIT:", "True:"),
        ("if isinstance(clean.get(name), str):", "if False:"),
    ),
    *_mutants(
        "dialect", "dialects/base.py", DIALECT_TESTS,
        (" and not isinstance(failure, self.closes_after)", ""),
        ("if answer.close_code is not None:", "if True:"),
        ("data[: REASON_BYTES - 3]", "data[:REASON_BYTES]"),
    ),
    *_mutants(
        "sound", "dialects/sound.py", DIALECT_TESTS,
        ("self.text(last, ends=ends) or", "self.text(last) or"),
        ("        raise InvalidPayload(str(error), field=error.what) from error", "        raise"),
        ("        if not extensions:\n            return\n", ""),
    ),
    *_mutants(
        "duplex", "dialects/duplex.py", DIALECT_TESTS,
        ("                self.sound.forget()\n                return [", "                return ["),
        ("ends=result.end_of_turn and not others", "ends=result.end_of_turn"),
        ("if phase is Phase.PREPARING and type_name", "if False and type_name"),
    ),
    *_mutants(
        "realtime", "dialects/realtime.py", DIALECT_TESTS,
        ("                self._is_in_turn = False\n", ""),
        (" and phase is not Phase.CLEANUP:", ":"),
        ("if not self._wants_transcript:", "if False:"),
    ),
    *_mutants(
        "realtime-call", "dialects/realtime_call.py", DIALECT_TESTS,
        ("within(message.frame_bytes) if sees_video else ()", "within(message.frame_bytes)"),
    ),
    *_mutants(
        "loop", "engine/loop.py", "tests/engine",
        ("            request.waiting_since_s = ended_s\n", ""),
        ("            line = (request, *self._order.waiting[row])", "            line = (request,)"),
        ("if self.fault is None and request.checkpoint is not None:", "if False:"),
        ("        if request.is_cancelled:\n            request.job.cancel()\n", ""),
        ("            if request.prefilled is not None:\n                self._guarded", "            if False:\n                self._guarded"),
    ),
    *_mutants(
        "slots", "engine/engine.py", "tests/engine/test_engine.py",
        ("self._free.popleft()", "self._free.pop()"),
        ("        if self._is_open:\n            self._lose()", "        if True:\n            self._lose()"),
    ),
    *_mutants(
        "context", "engine/context.py", "tests/engine/test_context.py",
        ("if self.length_tokens + tokens > room:", "if self.length_tokens + tokens > room + 1:"),
        ("if not entry.is_kept:\n                length", "if True:\n                length"),
        ("max(0, len(carried) - self.window.previous_max_tokens)", "0"),
    ),
    *_mutants(
        "checkpoint", "models/job.py", "tests/models/test_parrot.py",
        ("return not is_past and ", "return "),
        ("        if checkpoint.conversation is not conversation:\n            return False\n", ""),
    ),
    *_mutants(
        "outbox", "session/outbox.py", "tests/session/test_outbox.py tests/session/test_session.py",
        ("if self.waiting and self._waiting_bytes + size", "if self._waiting_bytes + size"),
        ("self._waiting_bytes -= len(frame)", "pass"),
        ("self.waiting = deque(item for item in self.waiting if item[1] is None)", "self.waiting = deque()"),
    ),
    *_mutants(
        "stalled", "session/resumable.py", "tests/session/test_session.py",
        ("self.output.send_s(len(frame))):\n                await self._first", "None):\n                await self._first"),
    ),
    *_mutants(
        "mailbox", "session/mailbox.py", "tests/session/test_mailbox.py",
        ("self.forces_listen = self.forces_listen or heard.force_listen", "pass"),
        ("oldest = self.units.popleft()", "oldest = self.units.pop()"),
        ("force_listen=waiting.force_listen or heard.force_listen", "force_listen=heard.force_listen"),
        ("min(last, message_samples) < round(self.own * size)", "last < round(self.own * size)"),
        ("if index == 0\n", "if True\n"),
    ),
    *_mutants(
        "fence", "session/interruption.py", "tests/session/test_interruption.py",
        ("            self.is_cut = True\n", "            pass\n"),
        ("self.playback.unsend(self._session.drop_output())", "self._session.drop_output()"),
        ("self.playback.unsend(self._session.drop_output())", "pass"),
        ('if self._options is None or self._options.mode != "stop":', 'if False:'),
        ('case "over" if not self._is_interruption:', 'case "over":'),
    ),
    *_mutants(
        "unsent", "session/duplex.py", "tests/session/test_interruption.py",
        ("self._unsent_units += 1", "pass"),
    ),
    *_mutants(
        "turn", "session/item_context.py", "tests/session/test_half_duplex.py",
        ("TURN_DUE_S: Final = 5.0", "TURN_DUE_S: Final = 500.0"),
    ),
    *_mutants(
        "resume", "session/log.py", "tests/session/test_resumable.py",
        ("ends_at <= self._ends_at - self.waiting_bytes:", "ends_at:"),
        ("is_old = now_s - oldest.at_s > self._bounds.limit_s", "is_old = False"),
        ("return output if output.seq <= self._released_seq else None", "return output"),
        ("self._stored_seq if is_held_back else sys.maxsize", "self._sent_seq if is_held_back else sys.maxsize"),
        ("if self._kept_bytes > self._limit_bytes:", "if False:"),
        ("since = 0 if is_tail_whole else self._sent_seq", "since = self._sent_seq"),
    ),
    *_mutants(
        "away", "session/resumable.py", "tests/session/test_resumable.py",
        ("return min(self._window_s, max(self.window_left_s, least_s))", "return self._window_s"),
        ("kept_s = LAST_WORDS_S if self._is_confirmed else self.window_left_s", "kept_s = LAST_WORDS_S"),
        ("self._repeated = self._received - received", "self._repeated = 0"),
        ("while not self._is_handed_over and (output := log.tail(seq)) is not None:", "while (output := log.tail(seq)) is not None:"),
    ),
    *_mutants(
        "moved", "worker/host.py", "tests/worker/test_host.py",
        ('if order.reason == "moved" and', 'if order.reason == "" and'),
    ),
    *_mutants(
        "log-file", "session_log/file_logs.py", "tests/session_log/test_backends.py",
        ("return self._path.stat().st_ino == self._tail.inode", "return True"),
        ("epoch = tails[0][0] + 1", "epoch = tails[0][0]"),
        ("        is_ours = self._tail is not None and self._is_ours()", "        is_ours = True"),
    ),
    *_mutants(
        "token", "session/tokens.py", "tests/session/test_resumable.py",
        ('self._revoke(self.previous)\n            self.previous = ""', "pass"),
        ("hmac.compare_digest(one.encode(), other.encode())", "True"),
    ),
    *_mutants(
        "state", "session_log/state_codec.py", "tests/session/test_state_codec.py",
        ('if module.startswith("parley.") else None', ""),
        ("or found.__module__ != module", ""),
        ("if depth > _DEPTH_LIMIT:", "if False:"),
        ("or math.prod(shape) > _ZEROS_LIMIT", ""),
    ),
    *_mutants(
        "playback", "session/playback.py", "tests/session/test_playback.py",
        ("self._reports.clear()", "pass"),
        ("self.ends_s = min(ends_s, max(now_s, self._computed_s + LATEST_S))", "self.ends_s = ends_s"),
        ("starts_s = max(self.ends_s, now_s)", "starts_s = now_s"),
    ),
    *_mutants(
        "tickets", "gateway/dispatcher.py", "tests/gateway/test_dispatcher.py tests/gateway/test_eta.py",
        ("if self._held_until < 0 and (has_returned", "if (has_returned"),
        ("is_held and ticket.fingerprint is None", "is_held"),
        ("if one.fingerprint is None]", "]"),
        ("REFUSALS_TO_BEAR: Final = 30", "REFUSALS_TO_BEAR: Final = 31"),
        (">= ESTIMATES_FRESH_S", "> 10 * ESTIMATES_FRESH_S"),
    ),
    *_mutants(
        "estimate", "gateway/eta.py", "tests/gateway/test_dispatcher.py tests/gateway/test_eta.py",
        ("if duration_s <= 0:", "if duration_s < -1:"),
        ("not 0 < alpha <= 1", "not 0 <= alpha <= 1"),
    ),
    *_mutants(
        "pool", "gateway/worker_pool.py", "tests/gateway/test_dispatcher.py tests/gateway/test_eta.py",
        ("FORGET_AFTER_S: Final = 600.0", "FORGET_AFTER_S: Final = 60.0"),
        ("taken = dataclasses.replace(self, is_held=True, lost=Signal())\n        self.is_held = False", "taken = dataclasses.replace(self, is_held=True, lost=Signal())"),
        ("remaining = max(remaining, lease.resume_ends_at - now)", "pass"),
        ("times += [CLEANUP_S] * len(worker.closing)", "pass"),
        ("times += [LOADING_S] * worker.slots", "times += [LOADING_S]"),
    ),
    *_mutants(
        "logged", "session/log.py", "tests/session/test_resumable.py",
        ("        seq = min(seq, self.last_seq)\n", ""),
        ("            self.waiting_bytes = min(self.waiting_bytes, behind)", "            pass"),
        ("max(self._acknowledged, self.given_up)", "self._acknowledged"),
        ("if now_s - self._updated_s < QUIET_S:", "if False:"),
        ("self._is_whole_due or self.waiting_bytes <= self.room_bytes)", "self._is_whole_due)"),
    ),
    *_mutants(
        "tokens", "session/tokens.py", "tests/session/test_resumable.py",
        ("if generation == self.generation and self.previous:", "if self.previous:"),
    ),
    *_mutants(
        "forgotten", "client/connection.py", "tests/client/test_returning.py",
        ("if self._ask() or self._silent_s < ANSWER_S:", "if self._ask():"),
        ("self.sent.in_flight_s < self._live_s or self._silent_s > STALLED_S", "self.sent.in_flight_s < self._live_s"),
        ("        self._ask()\n        return self.sent.in_flight_s", "        return self.sent.in_flight_s"),
    ),
    *_mutants(
        "unheard", "client/live.py", "tests/client",
        ("            and self._in_vain < IN_VAIN_LIMIT\n", ""),
        ("        self._in_vain = 0\n        if self._returning", "        if self._returning"),
    ),
    *_mutants(
        "arrived", "session/resumable.py", "tests/session/test_resumable.py",
        (" or has_arrived >= ARRIVAL_ACK_EVERY", ""),
        ("                if ack.ask:\n                    self._is_ack_due = True", "                if ack.ask:\n                    self._is_ack_due = False"),
        ("self._told, self._told_arrived = safe, self._received\n", "self._told = safe\n"),
    ),
    *_mutants(
        "client-resume", "client/resuming.py", "tests/client/test_returning.py",
        ("        self._received = self._arrived = number\n        return again", "        return again"),
        ("self._bytes, self.in_flight_s, self.asked_s = 0, 0.0, None", "self.in_flight_s, self.asked_s = 0.0, None"),
        ("self._bytes, self.in_flight_s, self.asked_s = 0, 0.0, None", "self._bytes, self.asked_s = 0, None"),
        ("while self._bytes > UNSURE_BYTES and len(self._unsure) > 1:", "while self._bytes > UNSURE_BYTES:"),
        ("            self.in_flight_s -= sound_s\n        self._received += 1\n", "            self.in_flight_s -= sound_s\n"),
        ("        self.asked_s = None\n        first, last", "        first, last"),
        ("            self._arrived += 1\n            self.in_flight_s -= sound_s\n\n", "            self._arrived += 1\n\n"),
        ("if numbers.seq <= self._seq:", "if numbers.seq < self._seq:"),
        ("        is_due |= self._unacknowledged_bytes >= ACK_BYTES\n", ""),
        ("self._seq - self._acknowledged >= ACK_EVERY", "self._seq - self._acknowledged > ACK_EVERY"),
        ("generation=self._generation)", "generation=0)"),
        ("            self.waits_s = answer.window_s\n", ""),
        ("self.window_s, self.waits_s = answer.resume_window_s, 0.0", "self.window_s = answer.resume_window_s"),
        ("if answer.status_code not in (404, 502, 503):", "if answer.status_code != 404:"),
    ),
    *_mutants(
        "retention", "recording/retention.py", "tests/recording/test_retention.py",
        ("elif retention_days >= 0 and age_s > retention_days * DAY_S:", "elif retention_days > 0 and age_s > retention_days * DAY_S:"),
        ("[one for one in found if one.reason is None]", "found"),
        ("            report.errors += 1", "            report.errors += 0"),
    ),
    *_mutants(
        "recorder", "recording/journal_writer.py", "tests/recording/test_recorder.py",
        ("                self._waiting_bytes -= job.size", "                pass"),
    ),
    *_mutants(
        "tail", "recording/placing.py", "tests/recording/test_render.py",
        ("default=0.0) + TAIL_S", "default=0.0)"),
    ),
    *_mutants(
        "title", "recording/finish.py", "tests/recording/test_render.py",
        ("[: timeline.TITLE_CHARS]", ""),
        ("words[0].strip(", "words[-1].strip("),
    ),
    *_mutants(
        "keys", "gateway/authenticator.py", "tests/gateway/test_authenticator.py",
        ("while recent and recent[0] <= now_s - 60:", "while recent and recent[0] < now_s - 60:"),
        ("key.expires_s is not None and key.expires_s <= self._clock.time()", "key.expires_s is not None and key.expires_s < self._clock.time()"),
        ("if any(caller is None for caller in callers):", "if callers and callers[0] is None:"),
        ("next((caller for caller in found if caller.kind == \"admin\"), found[0])", "found[0]"),
        ("if facts is None or \"key\" not in facts:", "if facts is None:"),
        ("elif before is None or before.burst != per_minute:", "else:"),
        ("limit.take(network_of(address))", "limit.take(address)"),
        ("            raise Unauthorized(\"This client secret has expired.\")", "            pass"),
    ),
    *_mutants(
        "depth", "protocol/codec.py", "tests/protocol/test_codec.py",
        ("return len(data) >= 12 and data[:4] in (b\"RIFF\", b\"RF64\") and data[8:12] == b\"WAVE\"", "return data[:4] in (b\"RIFF\", b\"RF64\")"),
        ("DEPTH_LIMIT: Final = 32", "DEPTH_LIMIT: Final = 40"),
        ("[_tidied(each, depth - 1) for each in item]", "[_tidied(each, depth) for each in item]"),
    ),
    *_mutants(
        "margin", "engine/scheduler.py", "tests/engine/test_scheduler.py",
        ("MARGIN_S = 0.25", "MARGIN_S = 0.0"),
        ("leader.stage is Stage.DECODE and leader.urgency_s", "leader.stage in _SHARED and leader.urgency_s"),
    ),
    *_mutants(
        "due", "engine/loop.py", "tests/engine/test_loop.py",
        ("min(dues, default=None)", "max(dues, default=None)"),
        ("            self._step_began_s = None\n", "            pass\n"),
    ),
    *_mutants(
        "reclaim", "gateway/worker_pool.py", POOL_TESTS,
        ("        self.worker.leases[self.lease_id] = taken\n", "        pass\n"),
        ("heartbeat.free_slots >= worker.slots - seen", "heartbeat.free_slots >= worker.slots + seen"),
        ("for lease in worker.leases.values() if lease.phase is not None)\n        if", "for lease in worker.leases.values() if lease.phase is None)\n        if"),
        ("if worker.closing and heartbeat", "if worker.closing or heartbeat"),
        ("                    lease.worker = worker\n", "                    pass\n"),
        ("        if lease.was_ready:\n            self._eta", "        if not lease.was_ready:\n            self._eta"),
        ("        else:\n            worker.idle_beats = 0\n", "        else:\n            pass\n"),
    ),
    *_mutants("proxy-user", "gateway/authenticator.py", "tests/gateway/test_forward_auth.py", ("        if is_user:\n            return False", "        if False:\n            return False")),
    *_mutants("proxy-tls", "gateway/admission.py", "tests/gateway/test_safety.py -k proxy", ('return self._security.trust_proxy and said == "https"', 'return said == "https"')),
    *_mutants("last-dot", "gateway/admission.py", "tests/gateway/test_safety.py -k public_name", ('"").lower().rstrip(".")', '"").lower()')),
    *_mutants("stood-still", "transport/connection.py", "tests/gateway/test_connection.py -k stood_still", ("        self._pong_due_at += late_s\n", ""), ("        self._progress_at += late_s\n", "")),
    *_mutants("full-scale", "media/resample.py", "tests/media/test_resample.py", ("        np.clip(found, -1.0, 1.0, out=found)\n", ""), ("np.clip(samples, -1.0, 1.0)", "np.clip(samples, -2.0, 2.0)")),
    *_mutants("overlap", "recording/render.py", "tests/recording/test_render.py -k together", ("room[:] = np.clip(mixed, -32768, 32767)", "room[:] = mixed")),
    *_mutants("kept-place", "gateway/dispatcher.py", POOL_TESTS, ("self._cut_off.pop(waited_as, (None, now))", "self._cut_off.get(waited_as, (None, now))")),
    *_mutants("late-end", "gateway/sessions.py", "tests/gateway/test_session_registry.py -k still_ends", ("if lease.resume is None or (found is not None and lease.lease_id in found.left):", "if lease.resume is None:")),
    *_mutants("two-workers", "session_log/file_logs.py", "tests/session_log/test_backends.py -k find_one_log", ("os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))\n        except", "os.O_WRONLY | os.O_CREAT, 0o600))\n        except")),
    *_mutants("room", "session/outbox.py", "tests/session/test_outbox.py", ("self._waiting_bytes > self._limits.waiting_bytes // 2:", "self._waiting_bytes > 2 * self._limits.waiting_bytes:")),
    *_mutants("packed-owner", "recording/store.py", "tests/gateway/test_sessions.py -k download", ('            if path.name.startswith("."):\n                continue\n', "")),
    *_mutants("tokens-used", "session/conversation.py", "tests/worker/test_host.py -k tokens", ("        self._session.log(entries.TokensGenerated(tokens))\n", "")),
    *_mutants("minutes-used", "gateway/usage.py", "tests/gateway/test_key_limits.py", ("            self._count_running()\n            self._day", "            self._day"), ("        self._count_running()\n        rows", "        rows"), ("lease.counted_s += used.seconds", "pass")),
    *_mutants("cleared", "session/listener.py", "tests/session/test_conversation_interruption.py -k cleared", ("self._found.append(replace(ended, utterance=None))", "self._found.append(ended)")),
    *_mutants("migrate", "gateway/state.py", "tests/gateway/test_admin_state.py -k older", ("for number in range(version, len(MIGRATIONS)):", "for number in range(version + 1, len(MIGRATIONS)):")),
    *_mutants(
        "user-level", "turns/user_voice.py", "tests/turns/test_words.py",
        ("KNOWN_S: Final = 0.8", "KNOWN_S: Final = 0.1"),
        ("        self._usual = None\n        self._stretch.append", "        self._stretch.append"),
    ),
    *_mutants(
        "returning", "session/resumable.py", "tests/session/test_resumable.py",
        ("if self.is_enabled or self._window_s <= 0:", "if self.is_enabled:"),
        ("away_s = 2 * self._window_s if self._left_s is None else", "away_s = 0.0 if self._left_s is None else"),
        ("self._takes_input, self._is_handed_over = True, False\n        if self._is_restored", "self._takes_input = True\n        if self._is_restored"),
    ),
    *_mutants(
        "left", "gateway/queue.py", POOL_TESTS,
        ("count(max(old.rank, held))", "count(old.rank)"),
        ("if ticket.position != position:", "if True:"),
    ),
    *_mutants("seldom", "gateway/rates.py", "tests/gateway/test_who_may_stop.py", (">= SELDOM_S", ">= 9 * SELDOM_S")),
    *_mutants("wait", "transport/allowance.py", "tests/gateway/test_who_may_stop.py", ("math.ceil(", "math.floor(")),
    *_mutants("judged", "vad/utterance.py", "tests/vad/test_utterance.py", ("self._needed, self._is_judged = self._min_silence, False", "self._needed = self._min_silence")),
    *_mutants("learn", "turns/interruption.py", "tests/turns/test_interruption.py", ("            self._position += len(self._rest)\n", "")),
    *_mutants("suspended", "transport/keepalive.py", "tests/gateway/test_connection.py", ("if late_s > TICK_S:", "if False:")),
    *_mutants("in-flight", "session/outbox.py", "tests/session/test_outbox.py", ("(self._waiting_bytes + self._last_bytes) /", "self._waiting_bytes /")),
    *_mutants("connected", "gateway/worker_pool.py", POOL_TESTS, ("if self.knows(worker) and not worker.is_connected:", "if self.knows(worker):")),
    *_mutants(
        "copy", "worker/rebuilding.py", "tests/worker/test_rebuilding.py",
        ("if self._follows and self.has_ended:", "if False:"),
        ("            lease_id=lease.lease_id,\n", ""),
    ),
    *_mutants(
        "meter", "worker/meter.py", "tests/worker/test_meter.py",
        ("self._asked_s = None\n                self._meter", "self._meter"),
        ("taken, self.counts = self.counts, Counts()", "taken = self.counts"),
    ),
    *_mutants("buckets", "protocol/control.py", "tests/worker/test_meter.py", ("counts[bisect_left(", "counts[-1 + bisect_left(")),
    *_mutants(
        "learned", "gateway/worker_pool.py", f"{POOL_TESTS} tests/gateway/test_session_registry.py",
        ("worker.is_connected = self.knows(worker)\n        worker.is_silent", "worker.is_connected = True\n        worker.is_silent"),
        ("is_held=message.phase is not Phase.ENDED", "is_held=True"),
        ("if loading is not None and loading.pid == hello.pid:", "if loading is not None:"),
        ("(worker.hello.index, worker.hello.pid) == (index, pid)", "worker.hello.pid == pid"),
    ),
    *_mutants(
        "turns", "gateway/admission.py", "tests/gateway/test_safety.py -k turn",
        (" if len(turns) < TURNS else 0.0", ""),
        ("                del counts[caller]\n            self._freed.notify()", "                del counts[caller]"),
        ("return turns[0] is turn and there", "return there"),
    ),
    *_mutants(
        "registry", "gateway/sessions.py", "tests/gateway/test_session_registry.py tests/gateway/test_moving.py",
        ("if found is not None and found.key_id == key_id:\n                found.asked.set()", "if found is not None:\n                found.asked.set()"),
        ("return found if found is not None and found.key_id == key_id else None", "return found"),
        ("if found is not None and found.lease is not None and not _is_of(found, lease):", "if False:"),
        ("            if not self._is_leaving:\n                self._lose", "            if True:\n                self._lose"),
    ),
    *_mutants("owner", "worker/finished.py", "tests/gateway/test_handover.py", (" and path != folder.owner", "")),
    *_mutants(
        "arrives", "gateway/handover.py", "tests/gateway/test_handover.py",
        (" and parts != (layout.OWNER,)", ""),
        ("if erased_s is None:", "if True:"),
    ),
    *_mutants("refused", "gateway/state.py", "tests/gateway/test_handover.py", ("[-REFUSED_LIMIT:]\n\n\nasync", "\n\n\nasync")),
    *_mutants("no-link", "recording/store.py", "tests/recording/test_retention.py", (" | os.O_NOFOLLOW", "")),
    *_mutants("late-log", "session/log.py", "tests/session/test_resumable.py", ("self._is_late = self.is_failing = True", "self._is_late = True")),
    *_mutants(
        "evicted", "session_log/redis_logs.py", "tests/session_log/test_backends.py -k evicted",
        ("redis.call('exists', KEYS[2], KEYS[3]) == 2", "true"),
        ("if redis.call('exists', KEYS[2], KEYS[3]) < 2 then return {} end\n", ""),
        ("if redis.call('exists', KEYS[2], KEYS[3]) < 2 then return 0 end\n", ""),
    ),
    *_mutants("folder-gone", "session_log/file_logs.py", "tests/session_log/test_backends.py -k folder", ("if self._stored.inode() == self._inode:", "if True:")),
    *_mutants("far-voice", "vad/utterance.py", "tests/vad/test_utterance.py", ("return replace(self, far_ms=0)", "return self")),
    *_mutants("erased-key", "gateway/http/openai/kept_responses.py", "tests/gateway/test_erasing.py -k revoked", ("        if who.key_id is not None and who.access.authenticator.find_key(who.key_id) is None:\n            return False\n", "")),
    *_mutants("elsewhere", "gateway/worker_control.py", "tests/gateway/test_operating.py -k introduces", ("        self.admission.check_worker_url(first.url)\n", "")),
    *_mutants("not-held", "gateway/session_relay.py", "tests/gateway/test_session_registry.py -k leaves", ("lease.resume is None or not lease.is_held:", "lease.resume is None:")),
    *_mutants("silent", "gateway/worker_pool.py", "tests/gateway/test_session_registry.py -k returns_while", ("if must_clean and not lease.is_lost:", "if must_clean:")),
    *_mutants("behind-end", "session_log/redis_logs.py", "tests/session_log/test_backends.py -k in_flight", ("await asyncio.wait({self._appending})", "pass")),
    *_mutants("drift", "session/listener.py", "tests/session/test_conversation_interruption.py -k positions", ("        self._start -= self._added_samples\n", "")),
    *_mutants("other-answer", "session/conversation.py", "tests/openai/test_realtime.py -k cancels", ("if response_id not in (None, response.response_id):", "if False:")),
    *_mutants("slow-ears", "session/interruption.py", "tests/session/test_interruption.py -k newest", ("self._waiting_s > WAITING_S and", "False and")),
    *_mutants("digits", "worker/trust.py", "tests/test_certificates_trust.py -k compared", ("if shown not in expected:", "if not any((one or '')[:60] == shown[:60] for one in expected):")),
    *_mutants("again", "client/resuming.py", "tests/client/test_returning.py -k arrived", ("self._received = self._arrived = number", "self._received = number")),
    *_mutants("two-cuts", "client/connection.py", "tests/client/test_returning.py -k long_time", ("            self._meanwhile_bytes -= len(frame)\n", "")),
    *_mutants("quiet-acks", "session/log.py", "tests/session/test_resumable.py -k nothing_is_said", ("if self._sending is None and self.handled", "if False and self.handled")),
    *_mutants("old-closes", "session/resumable.py", "tests/session/test_resumable.py -k racing", ("if error.is_leaving and attached is self._attached:", "if error.is_leaving:")),
    *_mutants("cut-text", "transport/framing.py", "tests/gateway/test_rfc6455.py -k not_utf", ("check(plain, is_last=is_whole)", "check(plain, is_last=False)")),
    *_mutants("parted", "transport/connection.py", "tests/gateway/test_connection.py -k part", ("            self._joined = None\n            self._hold_reading(\"congestion\", False)\n", "            self._joined = None\n")),
    *_mutants("ended", "worker/host.py", "tests/worker/test_host.py -k only_its_last", ("len(self._ended) > ENDED_LIMIT", "len(self._ended) > 2 * ENDED_LIMIT")),
    *_mutants("call-length", "worker/host.py", "tests/session/test_realtime.py -k total_limit", ("is_audio = lease.kind is Kind.AUDIO_DUPLEX", "is_audio = lease.kind is not Kind.AUDIO_DUPLEX")),
    *_mutants("follows", "dialects/openai_realtime/items.py", "tests/dialects/test_openai_session.py -k behind", ("ids.index(after) + 1 if after", "ids.index(after) if after")),
    *_mutants("last-second", "dialects/duplex.py", "tests/dialects/test_translation.py -k longer_than", ("end_of_turn=result.end_of_turn and index == len(others)", "end_of_turn=result.end_of_turn")),
    *_mutants("upload", "recording/store.py", "tests/gateway/test_sessions.py -k too_large", ("            size += len(piece)\n", "            size = len(piece)\n")),
    *_mutants("still-waits", "client/live.py", "tests/client/test_returning.py -k asked_for_again", ("due_s, returning.waits_s = max(due_s, now_s + returning.waits_s), 0.0", "returning.waits_s = 0.0")),
    *_mutants("past-turns", "session/conversation.py", "tests/worker/test_rebuilding.py -k every_copy", ("        self._started_s = now_s - remembered[\"started_ago_s\"]\n", "")),
    *_mutants("past-units", "session/duplex.py", "tests/worker/test_rebuilding.py -k every_copy", ("        self._paused_s = now_s - remembered[\"paused_ago_s\"]\n", "")),
    *_mutants("warned", "session/session.py", "tests/worker/test_rebuilding.py -k every_copy", ("        self._announced = set(remembered[\"announced\"])\n", "")),
    *_mutants("stops", "transport/limits.py", "tests/gateway/test_connection.py -k slowly", ("min(self._due + earned_s, now + self._grace_s)", "self._due + earned_s")),
]  # fmt: skip


def main(prefixes: list[str]) -> int:
    """Run the selected mutants; returns 1 if one survives or cannot be created."""
    chosen = [one for one in MUTANTS if not prefixes or one.name.startswith(tuple(prefixes))]
    outcomes = {mutant.name: _run(mutant) for mutant in chosen}
    bad = [name for name, outcome in outcomes.items() if outcome != "killed"]
    print(f"{len(chosen) - len(bad)} of {len(chosen)} killed")
    return 1 if bad else 0


def _run(mutant: Mutant) -> str:
    text = (ROOT / "src/parley" / mutant.file).read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        outcome = "cannot be made: its text occurs " + str(text.count(mutant.old)) + " times"
    else:
        with tempfile.TemporaryDirectory() as folder:
            outcome = _run_in(Path(folder), mutant, text.replace(mutant.old, mutant.new))
    print(f"{mutant.name:16} {outcome:10} {mutant.file}: {mutant.new.strip()[:70]!r}", flush=True)
    return outcome


def _run_in(folder: Path, mutant: Mutant, text: str) -> str:
    shutil.copytree(ROOT / "src/parley", folder / "parley")
    changed = folder / "parley" / mutant.file
    changed.unlink()
    changed.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    paths = {"PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}
    try:
        done = subprocess.run(
            [*command, *mutant.tests.split()],
            cwd=ROOT, env={**os.environ, **paths}, capture_output=True, timeout=LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "killed"
    if done.returncode == 1:
        return "killed"
    return "SURVIVED" if done.returncode == 0 else done.stdout.decode()[-300:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
