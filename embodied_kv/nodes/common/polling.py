"""Subscriptions whose messages stay in the middleware until they are taken.

An executor of rclpy spends far longer on waking up for a message than on taking it, and polled
messages are available even if the executor is busy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.subscription import Subscription


class PolledGroup(CallbackGroup):
    """Callback group of subscriptions that the executor serves only while they are `awake`."""

    awake = False

    def can_execute(self, entity: object) -> bool:
        return self.awake

    def beginning_execution(self, entity: object) -> bool:
        return self.awake

    def ending_execution(self, entity: object) -> None:
        """Let the next callback begin."""


def queued(subscription: Subscription) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Take the queued messages, each with its info, oldest first; at most the queue depth."""
    handle = subscription.handle
    with handle:
        for _ in range(subscription.qos_profile.depth):
            taken = handle.take_message(subscription.msg_type, subscription.raw)
            if taken is None:
                return
            yield taken
