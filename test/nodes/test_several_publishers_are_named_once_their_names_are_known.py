"""Several publishers of a topic are reported with the names of their nodes."""

from types import SimpleNamespace

import pytest

from embodied_kv.nodes.common.publishers import PATIENCE, UNKNOWN, UNNAMED, SinglePublishers

TOPIC = '/arm/joint_states'


class Graph:
    """A stand-in for a node: it has publishers, and records what it logs."""

    def __init__(self, *names):
        self.names, self.infos, self.warnings = names, [], []

    def resolve_topic_name(self, topic):
        return topic

    def count_publishers(self, topic):
        return len(self.names)

    def get_publishers_info_by_topic(self, topic):
        return [SimpleNamespace(node_namespace='/arm', node_name=name) for name in self.names]

    def log_info(self, key, text):
        self.infos.append(text)

    def log_warning(self, key, text):
        self.warnings.append(text)


@pytest.fixture
def graph():
    return Graph('driver')


@pytest.fixture
def watch(graph):
    return SinglePublishers(graph, 'stop all nodes but one')


def test_one_publisher_is_no_problem(graph, watch):
    for _ in range(3):
        watch.check([TOPIC])
    assert not watch.problem and not watch.values() and not graph.warnings


def test_publishers_found_by_two_checks_are_reported_once(graph, watch):
    graph.names = 'driver', 'other'
    watch.check([TOPIC])
    assert not watch.problem
    for _ in range(3):
        watch.check([TOPIC])
    assert watch.problem == f'several publishers of {TOPIC}'
    assert watch.values() == {f'publishers of {TOPIC}': '/arm/driver, /arm/other'}
    (warning,) = graph.warnings
    assert '(got several publishers: /arm/driver, /arm/other); stop all nodes' in warning
    graph.names = ('driver',)
    watch.check([TOPIC])
    assert not watch.problem and len(graph.infos) == 1


def test_a_node_is_reported_once_its_name_is_known(graph, watch):
    graph.names = 'driver', UNKNOWN
    for _ in range(PATIENCE - 1):
        watch.check([TOPIC])
    assert not graph.warnings
    graph.names = 'driver', 'other'
    watch.check([TOPIC])
    watch.check([TOPIC])
    assert len(graph.warnings) == 1 and '/arm/other' in graph.warnings[0]


def test_a_node_whose_name_stays_unknown_is_reported(graph, watch):
    graph.names = 'driver', UNKNOWN
    for _ in range(PATIENCE):
        watch.check([TOPIC])
    (warning,) = graph.warnings
    assert f'/arm/driver, {UNNAMED}' in warning
