"""What the policy server counts, in Prometheus' format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from embodied_kv.kv.plane import Plane

PREFIX = 'embodied_kv_server_'
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
COUNTED = {  # values of sessions that only rise
    'batches': 'Batches that went to the engine',
    'served': 'Requests in these batches',
    'engine errors': 'Batches in which the engine failed',
    'overdue': 'Times that the engine did not answer in time',
    'capsules given up': 'Capsules that gave way to those of other sessions',
}
MEASURED = {  # those that rise and fall
    'sessions': 'Sessions that a client holds',
    'waiting': 'Requests that wait for the engine',
    'capsule bytes': 'Of the capsules of all sessions',
}
OF_POOL = {  # of its `PoolBytes`
    'bytes': 'Held for KV on the device, by pool',
    'bytes_used': 'Of these, in use',
}


class ValueCollector:
    """Values of sessions, whenever somebody looks: `_total` is what only rises."""

    def __init__(self, values: Callable[[], Mapping[str, object]]) -> None:
        self._values = values

    def collect(self) -> Iterator[Metric]:
        """As a registry asks for it."""
        found = self._values()
        for family, named in ((CounterMetricFamily, COUNTED), (GaugeMetricFamily, MEASURED)):
            for name, text in named.items():
                value = float(found.get(name, 0))
                yield family(PREFIX + name.replace(' ', '_'), text, value=value)


class PoolCollector:
    """The KV of a device, by pool, whenever somebody looks: pools come and go."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """As a registry asks for it."""
        pools = self._plane.stats()
        for name, text in OF_POOL.items():
            family = GaugeMetricFamily(f'{PREFIX}kv_{name}', text, labels=['pool'])
            sizes: dict[str, int] = {}  # of pools of one name together
            for pool in pools:
                sizes[pool.name] = sizes.get(pool.name, 0) + getattr(pool, name)
            for label, size in sizes.items():
                family.add_metric([label], size)
            yield family


class Metrics:
    """values: of the sessions; plane: of the engine; both asked whenever somebody looks."""

    def __init__(self, values: Callable[[], Mapping[str, object]], plane: Plane) -> None:
        self._registry = CollectorRegistry()
        own = {'registry': self._registry}
        self.connections = Gauge(f'{PREFIX}connections', 'Clients that are connected', **own)
        self.requests = Counter(
            f'{PREFIX}requests',
            'Requests by what became of them: answered, missed, refused, late, failed or left',
            ['endpoint', 'outcome'],
            **own,
        )
        self.rejected = Counter(
            f'{PREFIX}rejected',
            'Connections that were not let in (key, connections, browser, sockets), or were cut '
            'off for a message that is too long (message)',
            ['reason'],
            **own,
        )
        self.seconds = Histogram(
            f'{PREFIX}infer_seconds',
            'From the receipt of a request to its chunk',
            buckets=SECONDS,
            **own,
        )
        self._registry.register(ValueCollector(values))
        self._registry.register(PoolCollector(plane))

    def page(self) -> bytes:
        """As text, in version 0.0.4 of the format."""
        return generate_latest(self._registry)
