"""One connection as the server's loop sees it: its frames are counted, and wait for their turn.

Knows frames and lengths. Does not know what a message says. The parser of `websockets` reads all
frames of a chunk of the socket at once, and any body that `max_size` allows. Here it stops after
some frames, so that the loop serves other connections, and before a body for which the account has
no bytes. A connection whose parser has stopped is not read.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Generator
from typing import Protocol

from websockets.asyncio.server import ServerConnection
from websockets.frames import CloseCode, Frame, Opcode

from embodied_kv.serving.websocket.accounts import Account, Bucket

CONTROL_RATE, CONTROL_BURST = 50.0, 100  # pings and pongs of a connection, per second and at once
FRAGMENTS = 4096  # of a message
TURN = 16  # frames that are read before other connections are served
SMALL = 64 * 1024  # bytes of a message that no account is asked for
HEAD = 125  # bytes of the body of a control frame, at most; each part of a head has fewer
DROPPED = 64 * 2**20  # bytes that a client may send after it was told the end
ABUSED = 256 * 1024  # of these, of one that sends too many frames

Reading = Generator[None, None, bytes]


class Door(Protocol):
    """What is told of the sockets of connections, and of the memory that they free."""

    def came(self, connection: Visitor) -> None: ...
    def went(self, connection: Visitor) -> None: ...
    def freed(self, size: int) -> None: ...


class Visitor(ServerConnection):
    """A connection that is counted from its socket on. scope: the name of its key, or ''.

    Sessions are named within their scope. address: of the client, without a port. end: why the
    connection ends, where the server decided so.
    """

    scope = key = end = ''
    account: Account | None = None

    def __init__(self, gate: Door, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        self._gate, self.began, self.requests, self.received = gate, time.monotonic(), 0, 0
        self.address = '?'
        self._control = Bucket(CONTROL_RATE, CONTROL_BURST)
        self._paused: set[str] = set()  # reasons not to read: admission, queue, turn, bytes
        self._turn = self._fragments = 0
        self._starts = True  # a frame, with what the parser reads next
        self._dropped, self._droppable = 0, DROPPED  # bytes that were received after the end
        self._body = 0  # bytes of the account, for the message that is being read
        self._free = SMALL  # bytes that this message may have without
        self._stuck: asyncio.TimerHandle | None = None  # while the client takes nothing
        self._held: deque[int] = deque()  # those of messages that have been read
        protocol = self.protocol
        self._read_exact, self._recv_frame = protocol.reader.read_exact, protocol.recv_frame
        protocol.reader.read_exact, protocol.recv_frame = self._read, self._frame

    def enter(self, account: Account, key: str) -> None:
        """Frames may follow."""
        self.account, self.scope, self.key = account, account.name, key
        self._rate = account.frame_rate()
        account.connections += 1
        self._resume('admission')

    def done(self) -> None:
        """The oldest message that was received is not needed any more."""
        if self._held:
            self._give(self._held.popleft())

    def fail(self, code: CloseCode, why: str) -> None:
        """Close at once: what else was received is dropped."""
        self.end = self.end or why
        self._droppable = ABUSED
        self.protocol.fail(code, why)

    def revoke(self) -> None:
        """Close it, as its key is not valid any more; nothing of it is answered."""
        self.fail(CloseCode.POLICY_VIOLATION, 'the key was revoked')
        self.send_data()
        self._refuse(0)

    # ------------------------------------------------------------------ of its socket

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        name = transport.get_extra_info('peername')
        self.address = str(name[0]) if isinstance(name, tuple) else 'local'
        queue = self.recv_messages
        queue.pause, queue.resume = lambda: self._pause('queue'), lambda: self._resume('queue')
        self._gate.came(self)

    def data_received(self, data: bytes) -> None:
        self._turn = 0
        self.received += len(data)
        if self.account is not None:
            self.account.bytes += len(data)
        super().data_received(data)
        if self.protocol.eof_sent:
            self._refuse(len(data))

    def pause_writing(self) -> None:
        """A client that takes nothing for as long as it may be silent is cut off."""
        super().pause_writing()
        self._stuck = self.loop.call_later(self.ping_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()

    def _refuse(self, size: int) -> None:
        """The end has been sent: a client that goes on sending, or does not close, is cut off."""
        if not self._dropped:
            self.loop.call_later(self.close_timeout, self.transport.abort)
        self._dropped += size or 1
        if self._dropped > self._droppable:
            self.transport.abort()

    def eof_received(self) -> None:
        self.protocol.reader.discard()  # nothing can be answered any more
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.protocol.reader.discard()
        super().connection_lost(exc)
        self.recv_messages.frames.queue.clear()
        if self.account is not None:
            self.account.pool.forget(self._granted)
            self._give(self._body + sum(self._held))
            self._body = 0
            self._held.clear()
            self.account.connections -= 1
        self._gate.went(self)

    # ------------------------------------------------------------------ of its parser

    def _read(self, size: int) -> Reading:
        """In place of the reader's `read_exact`: it waits until the connection may be read."""
        while self.account is None:  # a frame that comes before the answer to the handshake
            if self.protocol.reader.eof:
                raise EOFError('the client left during the handshake')
            self._pause('admission')
            yield
        if self._starts:
            self._starts = False
            self._count()
        elif size > max(self._free, HEAD):
            self._charge(size)
        while self.protocol.eof_sent or (self._paused and not self.protocol.reader.eof):
            yield  # once the end has been sent, the protocol has another parser
        return (yield from self._read_exact(size))

    def _count(self) -> None:
        """A frame begins."""
        self._turn += 1
        self.account.frames += 1
        wait = self._rate.take()
        if wait or self._turn > TURN:
            self._pause('turn')
            self.loop.call_later(wait, self._resume, 'turn')

    def _charge(self, size: int) -> None:
        """A body of so many bytes is announced.

        A message that has bytes of the account never waits for more of them: two such messages
        would wait for each other, or for those in front of them.
        """
        pool = self.account.pool
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
        """In place of the protocol's `recv_frame`: a frame has been read."""
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
        frame.data = b''  # the parser keeps its frame until the next one comes
        self._recv_frame(mine)

    # ------------------------------------------------------------------ whether it is read

    def _pause(self, why: str) -> None:
        self._paused.add(why)
        self.transport.pause_reading()

    def _resume(self, why: str) -> None:
        self._paused.discard(why)
        if not self._paused:
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Read what has been received already, then the socket."""
        if not (self._paused or self.protocol.reader.eof or self.transport.is_closing()):
            self.transport.resume_reading()
            self.data_received(b'')

    def _give(self, size: int) -> None:
        self.account.pool.give(size)
        self._gate.freed(size)
