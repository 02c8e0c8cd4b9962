"""A response of another server, received in a separate thread while the engine does other work.

The thread queues what arrives. Cancelling shuts down the connection, even while it waits. A failure
(an unreachable server, a refusal, silence for longer than the timeout, invalid data) becomes an
`AnswerProblem`, which contains neither addresses nor keys. After a complete response the connection
stays open for the next one.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Generic, TypeVar

import httpx

from parley import logs
from parley.models.cascade.connection import ConnectionPool, PooledConnection
from parley.models.cascade.writer import AnswerProblem

log = logs.get(__name__)

PIECES_MOST: Final = 1000
"""Size of the queue of pieces; when it is full, the server has to wait."""
ERROR_BYTES: Final = 1 << 16
"""Maximum number of bytes of an error response."""

Piece = TypeVar("Piece")


class StreamedResponse(ABC, Generic[Piece]):
    """One response in flight. Its thread ends when the response is cancelled or complete.

    After its last piece, `problem` is the failure, if there was one.

    Args:
        path: below the address.
        news: called when a piece arrives.
        done: called with the problem, or None, when the response is complete and was not cancelled.
    """

    event: ClassVar[str]
    """Log event of a failure."""
    silent: ClassVar[AnswerProblem]
    unreachable: ClassVar[AnswerProblem]
    cut_off: ClassVar[AnswerProblem]
    nonsense: ClassVar[AnswerProblem]

    def __init__(
        self,
        connections: ConnectionPool,
        path: str,
        body: Mapping[str, Any],
        news: Callable[[], None],
        done: Callable[[AnswerProblem | None], None],
    ) -> None:
        self.pieces: queue.Queue[Piece | None] = queue.Queue(PIECES_MOST)
        self.problem: AnswerProblem | None = None
        self._news, self._done = news, done
        self._is_cancelled = threading.Event()
        self._is_over = self._is_ended = False
        """True if the rest of the response cannot fail; True after the last piece."""
        self._lock = threading.Lock()
        self._connection: PooledConnection | None = None
        self._connections, self._path, self._body = connections, path, body
        self._endpoint = connections.endpoint
        threading.Thread(target=self._run, name=type(self).__name__, daemon=True).start()

    @property
    def is_waiting(self) -> bool:
        """True if nothing has arrived since the last call of `taken`."""
        return self.pieces.empty()

    def taken(self, most: int = PIECES_MOST) -> tuple[list[Piece], bool]:
        """The pieces that have arrived, and whether the response ended with them."""
        pieces: list[Piece] = []
        while len(pieces) < most:
            try:
                piece = self.pieces.get_nowait()
            except queue.Empty:
                break
            if piece is None:
                return pieces, True
            pieces.append(piece)
        return pieces, False

    def cancel(self) -> None:
        """Close the connection now, even while no data arrives."""
        self._is_cancelled.set()
        self._shut()

    @abstractmethod
    def _receive(self, reply: httpx.Response) -> bool:
        """Queue the pieces of a successful response; returns True if it was read to its end.

        Raises:
            ValueError, KeyError, TypeError, AttributeError, RecursionError: it is not what was
                requested.
        """

    @abstractmethod
    def _refused(self, reply: httpx.Response, message: str) -> AnswerProblem:
        """The problem that an error response stands for."""

    def _run(self) -> None:
        connection = self._hold(self._connections.take())
        is_read = False
        try:
            with contextlib.closing(connection.send(self._path, self._body)) as reply:
                if reply.is_success:
                    is_read = self._receive(reply)
                else:
                    message = message_of(reply)
                    problem = self._refused(reply, message)
                    self._fail(problem, f"answered {reply.status_code}: {message}")
        except httpx.TimeoutException as error:
            self._fail(self.silent, f"was silent for too long ({type(error).__name__})")
        except (httpx.ConnectError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            self._fail(self.unreachable, f"failed: {error}")
        except (httpx.HTTPError, httpx.StreamError) as error:
            self._fail(self.cut_off, f"broke off: {error}")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self._fail(self.nonsense, f"sent nonsense: {error}")
        finally:
            if not self._is_cancelled.is_set():
                self._done(self.problem)
            self._end()
            with self._lock:
                self._connection = None
            if is_read:
                self._connections.give_back(connection)
            else:
                connection.close()

    def _hold(self, connection: PooledConnection) -> PooledConnection:
        with self._lock:
            self._connection = connection
            if self._is_cancelled.is_set():
                connection.shut()
        return connection

    def _shut(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.shut()

    def _end(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._put(None)

    def _fail(self, problem: AnswerProblem, how: str) -> None:
        if self._is_cancelled.is_set() or self._is_over:
            return
        self.problem = problem
        why = self._endpoint.hidden(how)[:500]
        log.warning(self.event, url=self._endpoint.name, why=why)

    def _put(self, piece: Piece | None) -> bool:
        """Queue a piece; false if the response was cancelled."""
        while not self._is_cancelled.is_set():
            try:
                self.pieces.put(piece, timeout=0.5)
            except queue.Full:
                continue
            self._news()
            return True
        return False


def message_of(reply: httpx.Response) -> str:
    """What a server says in an error response, in one line."""
    body = b""
    with contextlib.suppress(httpx.HTTPError):
        for data in reply.iter_bytes():
            body += data
            if len(body) > ERROR_BYTES:
                break
    return " ".join(body[:ERROR_BYTES].decode("utf-8", "replace").split())
