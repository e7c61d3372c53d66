"""What the policy server counts, in Prometheus' format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from embodied_kv.kv.budget import KvBudget

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

    def __init__(self, kv_budget: KvBudget) -> None:
        self._kv_budget = kv_budget

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """As a registry asks for it."""
        pools = self._kv_budget.stats()
        for name, text in OF_POOL.items():
            family = GaugeMetricFamily(f'{PREFIX}kv_{name}', text, labels=['pool'])
            sizes: dict[str, int] = {}  # of pools of one name together
            for pool in pools:
                sizes[pool.name] = sizes.get(pool.name, 0) + getattr(pool, name)
            for label, size in sizes.items():
                family.add_metric([label], size)
            yield family


OF_KEY = {  # of an account: what rises and falls, and what only rises
    'connections': (GaugeMetricFamily, 'Clients that are connected, by the name of their key'),
    'message_bytes': (GaugeMetricFamily, 'Messages that are read or answered, by key'),
    'requests': (CounterMetricFamily, 'Requests that were received, by key'),
    'frames': (CounterMetricFamily, 'Frames of any kind that were received, by key'),
    'received_bytes': (CounterMetricFamily, 'Bytes that were received, by key'),
    'sessions': (GaugeMetricFamily, 'Sessions that a client holds, by key'),
    'ended_sessions': (GaugeMetricFamily, 'Sessions that are remembered, by key'),
    'capsule_bytes': (GaugeMetricFamily, 'Capsules of these sessions, by key'),
}


def merged(*found: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the values of each key from all of these."""
    names = dict.fromkeys(name for each in found for name in each)
    return {
        name: {k: v for each in found for k, v in each.get(name, {}).items()} for name in names
    }


class AccountCollector:
    """What each key has and takes, whenever somebody looks: keys come and go."""

    def __init__(self, values: Callable[[], Mapping[str, Mapping[str, float]]]) -> None:
        self._values = values

    def collect(self) -> Iterator[Metric]:
        """As a registry asks for it."""
        found = self._values()
        for name, (family, text) in OF_KEY.items():
            metric = family(f'{PREFIX}key_{name}', text, labels=['key'])
            for key, values in found.items():
                metric.add_metric([key], float(values.get(name, 0)))
            yield metric


class Metrics:
    """values: of the sessions; kv_budget: of the engine; both asked whenever somebody looks."""

    def __init__(self, values: Callable[[], Mapping[str, object]], kv_budget: KvBudget) -> None:
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
            'off for a message that is too long (message), or for pings or a revoked key (policy)',
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
        self._registry.register(PoolCollector(kv_budget))

    def of_keys(self, values: Callable[[], Mapping[str, Mapping[str, float]]]) -> None:
        """Show the values of each key too."""
        self._registry.register(AccountCollector(values))

    def page(self) -> bytes:
        """As text, in version 0.0.4 of the format."""
        return generate_latest(self._registry)
