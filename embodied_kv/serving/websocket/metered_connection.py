"""A connection that counts its frames and bytes, and waits for its turn.

The parser of `websockets` reads all frames of a chunk of the socket at once, and any body that
`max_size` allows. Here it stops after some frames, so that the loop serves other connections, and
before a body for which the account has no bytes. While its parser is stopped, a connection is not
read.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Generator
from typing import Any, Protocol

from websockets.asyncio.server import ServerConnection
from websockets.frames import CloseCode, Frame, Opcode

from embodied_kv.serving.websocket.accounts import Account, Bucket

CONTROL_RATE, CONTROL_BURST = 50.0, 100  # control frames, per second and at once
FRAGMENTS = 4096  # maximum of a message
TURN = 16  # frames that are read before other connections are served
SMALL = 64 * 1024  # bytes of a message that are not charged
HEAD = 125  # maximum body of a control frame; each part of a frame header is shorter
DROPPED = 64 * 2**20  # bytes that a client may send after the close frame
ABUSED = 256 * 1024  # the same after a violation

Reading = Generator[None, None, bytearray]


class Observer(Protocol):
    """Receives the events of connections."""

    def opened(self, connection: MeteredConnection) -> None: ...
    def closed(self, connection: MeteredConnection) -> None: ...
    def freed(self, size: int) -> None: ...


class MeteredConnection(ServerConnection):
    """A connection whose limits apply from the opening of its socket on.

    `scope`: name of its key, or ''; sessions are named within their scope. `address`: of the
    client, without a port. `end`: the reason of its end, if the server decided it.
    """

    scope = key = end = ''
    account: Account | None = None  # from `enter` on
    ping_timeout: float  # the server sets both
    close_timeout: float

    def __init__(self, observer: Observer, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._observer, self.began, self.requests, self.received = observer, time.monotonic(), 0, 0
        self.address = '?'
        self._control = Bucket(CONTROL_RATE, CONTROL_BURST)
        self._paused: set[str] = set()  # reasons not to read: admission, queue, turn, bytes
        self._turn = self._fragments = 0
        self._starts = True  # whether the parser reads the start of a frame next
        self._dropped, self._droppable = 0, DROPPED  # bytes that were received after the end
        self._body = 0  # bytes charged for the message that is being read
        self._free = SMALL  # bytes of it that are not charged
        self._stuck: asyncio.TimerHandle | None = None  # runs while the client reads nothing
        self._held: deque[int] = deque()  # bytes charged for messages that have been read
        protocol: Any = self.protocol  # two methods of it are replaced
        self._read_exact, self._recv_frame = protocol.reader.read_exact, protocol.recv_frame
        protocol.reader.read_exact, protocol.recv_frame = self._read, self._frame

    def enter(self, account: Account, key: str) -> None:
        """Admit the connection to an account: frames may follow."""
        self.account, self.scope, self.key = account, account.name, key
        self._rate = account.frame_rate()
        account.connections += 1
        self._resume('admission')

    def done(self) -> None:
        """Free the oldest received message."""
        if self._held and self.account is not None:
            self._give(self.account, self._held.popleft())

    def fail(self, code: CloseCode, why: str) -> None:
        """Close at once, and drop what else is received."""
        self.end = self.end or why
        self._droppable = ABUSED
        self.protocol.fail(code, why)

    def revoke(self) -> None:
        """Close the connection because its key was removed; its requests are not answered."""
        self.fail(CloseCode.POLICY_VIOLATION, 'the key was revoked')
        self.send_data()
        self._refuse(0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        name = transport.get_extra_info('peername')
        self.address = str(name[0]) if isinstance(name, tuple) else 'local'
        queue = self.recv_messages
        queue.pause, queue.resume = lambda: self._pause('queue'), lambda: self._resume('queue')
        self._observer.opened(self)

    def data_received(self, data: bytes) -> None:
        self._turn = 0
        self.received += len(data)
        if self.account is not None:
            self.account.bytes += len(data)
        super().data_received(data)
        if self.protocol.eof_sent:
            self._refuse(len(data))

    def pause_writing(self) -> None:
        """Abort the connection if the client reads nothing for the ping timeout."""
        super().pause_writing()
        self._stuck = self.loop.call_later(self.ping_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()

    def _refuse(self, size: int) -> None:
        """Abort a client that keeps sending, or does not close, after the close frame."""
        if not self._dropped:
            self.loop.call_later(self.close_timeout, self.transport.abort)
        self._dropped += size or 1
        if self._dropped > self._droppable:
            self.transport.abort()

    def eof_received(self) -> None:
        self.protocol.reader.discard()  # no request can be answered now
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.protocol.reader.discard()
        super().connection_lost(exc)
        self.recv_messages.frames.queue.clear()
        if self.account is not None:
            self.account.pool.forget(self._granted)
            self._give(self.account, self._body + sum(self._held))
            self._body = 0
            self._held.clear()
            self.account.connections -= 1
        self._observer.closed(self)

    def _read(self, size: int) -> Reading:
        """Replace the reader's `read_exact`: wait until the connection may be read."""
        while self.account is None:  # a frame may arrive before the answer to the handshake
            if self.protocol.reader.eof:
                raise EOFError('the client left during the handshake')
            self._pause('admission')
            yield
        if self._starts:
            self._starts = False
            self._count(self.account)
        elif size > max(self._free, HEAD):
            self._charge(self.account, size)
        while self.protocol.eof_sent or (self._paused and not self.protocol.reader.eof):
            yield  # after the close frame the protocol has another parser
        return (yield from self._read_exact(size))

    def _count(self, account: Account) -> None:
        self._turn += 1
        account.frames += 1
        wait = self._rate.take()
        if wait or self._turn > TURN:
            self._pause('turn')
            self.loop.call_later(wait, self._resume, 'turn')

    def _charge(self, account: Account, size: int) -> None:
        """Charge a body of `size` bytes.

        A message that holds bytes of the account never waits for more of them: two such messages
        would wait for each other.
        """
        pool = account.pool
        if self._body and not pool.fits(size):
            self.fail(CloseCode.TRY_AGAIN_LATER, 'no room for a fragment of this length')
        elif pool.take(size, self._granted, first=self._body > 0):
            self._body += size
        else:
            self._pause('bytes')

    def _granted(self, size: int) -> None:
        self._body += size
        self._resume('bytes')

    def _frame(self, frame: Frame) -> None:
        """Replace the protocol's `recv_frame`: a frame has been read."""
        self._starts = True
        if frame.opcode in (Opcode.PING, Opcode.PONG):
            if self._control.take():
                return self.fail(CloseCode.POLICY_VIOLATION, 'too many pings')
        elif frame.opcode is not Opcode.CLOSE:
            self._fragments = self._fragments + 1 if frame.opcode is Opcode.CONT else 1
            if self._fragments > FRAGMENTS:
                return self.fail(CloseCode.MESSAGE_TOO_BIG, 'too many fragments')
            self._free -= len(frame.data)
            if frame.fin:
                self._held.append(self._body)
                self._body, self._free = 0, SMALL
        mine = Frame(frame.opcode, frame.data, frame.fin)
        frame.data = b''  # the parser keeps its frame until the next one
        self._recv_frame(mine)

    def _pause(self, why: str) -> None:
        self._paused.add(why)
        self.transport.pause_reading()

    def _resume(self, why: str) -> None:
        self._paused.discard(why)
        if not self._paused:
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Continue with received bytes, then read the socket."""
        if not (self._paused or self.protocol.reader.eof or self.transport.is_closing()):
            self.transport.resume_reading()
            self.data_received(b'')

    def _give(self, account: Account, size: int) -> None:
        account.pool.give(size)
        self._observer.freed(size)
