"""The session that a connection holds, and how another connection takes it over.

Knows names, keys and pings. Does not know what is asked. All of it runs on the event loop.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from websockets.exceptions import ConnectionClosed

from embodied_kv.serving.websocket.accounts import Bucket
from embodied_kv.serving.websocket.dialect import Refused
from embodied_kv.serving.websocket.session import Session
from embodied_kv.serving.websocket.sessions import Sessions
from embodied_kv.serving.websocket.visitor import Visitor

GOODBYE_SECONDS = 2.0  # that a client has to read why it is sent away, and then to close
RENAME_RATE, RENAME_BURST = 1.0, 8  # changes of a connection's session, per second and at once
ANSWER_SECONDS = 2.0  # that who holds a session has to answer a ping, where names have no key


class Hold:
    """Of one connection. holds: of all, by the name of the session that each holds.

    A robot that lost power comes back before its old connection is known to be dead, and goes on
    with its session: with keys at once, as the key says that it may. Without keys a name is no
    proof, so it is given over by a connection alone that answers no ping.

    lost: done once another connection has it, with words for whoever had it.
    """

    def __init__(self, sessions: Sessions, holds: dict[str, Hold], connection: Visitor) -> None:
        self._sessions, self._holds, self._connection = sessions, holds, connection
        self._session: Session | None = None
        self._renames = Bucket(RENAME_RATE, RENAME_BURST)
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def take(self, name: str) -> Session:
        """The session of that name, '' for whichever is held. Raises Refused.

        A connection that names another one too often waits.
        """
        held, scope = self._session, self._connection.scope
        name = self.named(name)
        if held is None or (name and name != held.name):
            await asyncio.sleep(self._renames.take())
            while (holder := self._holds.get(name)) is not None:
                await self._take_over(name, holder)
            session = self._sessions.open(name, self._connection.id, scope)
            self.end()
            self._session, self._holds[session.name] = session, self
        return self._session

    def named(self, session: str) -> str:
        """Return the name of a session of the same key, by its id; '' for ''."""
        scope = self._connection.scope
        return f'{scope}:{session}' if session and scope else session  # no client can send that

    def end(self) -> None:
        """Nothing is held any more."""
        session, self._session = self._session, None
        if session is not None:
            del self._holds[session.name]
            self._sessions.close(session)

    async def _take_over(self, name: str, holder: Hold) -> None:
        """Nobody holds it then, or somebody else."""
        if not self._connection.scope and await holder._is_there():
            raise Refused(f'session {name} is in use by another connection')
        if self._holds.get(name) is holder:
            holder._lose()

    async def _is_there(self) -> bool:
        async def answered() -> None:
            await (await self._connection.ping())

        with suppress(asyncio.TimeoutError, ConnectionClosed):
            await asyncio.wait_for(answered(), ANSWER_SECONDS)
            return True
        return False

    def _lose(self) -> None:
        """Whoever had it is told, and has some time to hear it."""
        name = self._session.name.rpartition(':')[2]
        self.end()
        self.lost.set_result(f'another connection goes on with session {name}')
        abort = self._connection.transport.abort
        asyncio.get_running_loop().call_later(2 * GOODBYE_SECONDS, abort)
