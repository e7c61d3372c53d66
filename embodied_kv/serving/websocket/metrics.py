"""The metrics of the policy server, in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from embodied_kv.kv.budget import KvBudget

PREFIX = 'embodied_kv_server_'
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
COUNTED, MEASURED = CounterMetricFamily, GaugeMetricFamily  # only rises; rises and falls
OF_SESSIONS = {
    'batches': (COUNTED, 'Batches that were sent to the engine'),
    'served': (COUNTED, 'Requests in these batches'),
    'engine errors': (COUNTED, 'Batches in which the engine failed'),
    'overdue': (COUNTED, 'Times that the engine did not answer in time'),
    'capsules given up': (COUNTED, 'Capsules that were evicted for those of other sessions'),
    'prefills shared': (COUNTED, 'Texts that read the row of a frame, not prefilled again'),
    'copies without room': (COUNTED, 'Compressed rows that were not made for lack of room'),
    'seconds saved': (MEASURED, 'Prefills shared, times the present seconds of one'),
    'bytes saved': (MEASURED, 'Whole rows that compressed ones replace, less the size of these'),
    'sessions': (MEASURED, 'Sessions that a client holds'),
    'waiting': (MEASURED, 'Requests that wait for the engine'),
    'capsule bytes': (MEASURED, 'Bytes of the capsules of all sessions'),
}
OF_POOL = {  # fields of `PoolBytes`
    'bytes': 'Bytes that are held for KV on the device, by pool',
    'bytes_used': 'Bytes of these that are in use',
}
OF_KEY = {
    'connections': (MEASURED, 'Connected clients, by the name of their key'),
    'message_bytes': (MEASURED, 'Bytes of messages that are read or answered, by key'),
    'requests': (COUNTED, 'Received requests, by key'),
    'frames': (COUNTED, 'Received frames of any kind, by key'),
    'received_bytes': (COUNTED, 'Received bytes, by key'),
    'sessions': (MEASURED, 'Sessions that a client holds, by key'),
    'ended_sessions': (MEASURED, 'Sessions that are remembered, by key'),
    'capsule_bytes': (MEASURED, 'Bytes of the capsules of these sessions, by key'),
}
Values = Callable[[], Mapping[str, Any]]
ValuesByKey = Callable[[], Mapping[str, Mapping[str, float]]]


class Metrics(Collector):
    """Own metrics of the server, and values that are collected at each request of the page.

    Args:
        values: Returns the values of the sessions.
        of_keys: Returns the values of each key.
        kv_budget: The KV budget; its pools may change.
    """

    def __init__(self, values: Values, of_keys: ValuesByKey, kv_budget: KvBudget) -> None:
        self._values, self._of_keys, self._kv_budget = values, of_keys, kv_budget
        self._registry = CollectorRegistry()
        own: dict[str, Any] = {'registry': self._registry}
        self.connections = Gauge(f'{PREFIX}connections', 'Clients that are connected', **own)
        self.requests = Counter(
            f'{PREFIX}requests',
            'Requests by outcome: answered, missed, refused, late, failed or left',
            ['endpoint', 'outcome'],
            **own,
        )
        self.rejected = Counter(
            f'{PREFIX}rejected',
            'Connections that were not admitted (key, connections, browser, sockets), or were '
            'closed for a message that is too long (message), or for pings or a revoked key '
            '(policy)',
            ['reason'],
            **own,
        )
        self.seconds = Histogram(
            f'{PREFIX}infer_seconds',
            'From the receipt of a request to its chunk',
            buckets=SECONDS,
            **own,
        )
        self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the current values of sessions, pools and keys."""
        found = self._values()
        for name, (family, text) in OF_SESSIONS.items():
            value = float(found.get(name, 0))
            yield family(PREFIX + name.replace(' ', '_'), text, value=value)
        pools = self._kv_budget.stats()
        for name, text in OF_POOL.items():
            metric = GaugeMetricFamily(f'{PREFIX}kv_{name}', text, labels=['pool'])
            for label in dict.fromkeys(pool.name for pool in pools):  # several may have one name
                sizes = (getattr(pool, name) for pool in pools if pool.name == label)
                metric.add_metric([label], sum(sizes))
            yield metric
        keys = self._of_keys()
        for name, (family, text) in OF_KEY.items():
            metric = family(f'{PREFIX}key_{name}', text, labels=['key'])
            for key, values in keys.items():
                metric.add_metric([key], float(values.get(name, 0)))
            yield metric

    def page(self) -> bytes:
        """Return all metrics as text, in version 0.0.4 of the format."""
        return generate_latest(self._registry)
