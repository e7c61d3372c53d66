"""A second engine, elsewhere: edge first, the cloud for whom it is sooner, if there is Ray."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fleet_suite import Fleets

from embodied_kv.nodes.fleet import server_node as fleet_node
from embodied_kv.nodes.fleet.server_node import Fleet
from embodied_kv.serving.remote import EngineActor, pack_observations, unpack_results


class PlayedEngine:
    """A RemoteEngine without Ray: the actor on a thread of this process."""

    def __init__(self, address, model, checkpoint, config, contract):
        self._actor = EngineActor(model, checkpoint, vars(config), contract.model_dump())
        self._thread = ThreadPoolExecutor(1)
        self.seconds = {1: 0.001, 2: 0.001, 4: 0.001}
        self.served = []

    def __call__(self, frames, deadline):
        self.served += [frame.robot for frame in frames]
        packed = pack_observations(frames, 60.0)
        return self._thread.submit(lambda: unpack_results(self._actor.serve(packed), deadline))

    def close(self):
        self._thread.shutdown()


def test_who_would_wait_for_the_edge_goes_to_the_cloud(robots, tmp_path, monkeypatch):
    monkeypatch.setattr(fleet_node, 'RemoteEngine', PlayedEngine)
    fleet = Fleets(robots, tmp_path)
    node = fleet.up(cloud='local', cloud_device='cpu', cloud_latency=0.001)
    first, second = fleet.join(seed=1), fleet.join(seed=2)
    gate = threading.Event()
    node.host.device.call(gate.wait)
    first.ask()
    fleet.until(lambda: fleet.counts['batches'] == 1)
    second.ask()
    fleet.until(second.got)  # while the edge is busy
    assert not first.got()
    gate.set()
    fleet.until(first.got)
    assert node._cloud.served == [second.namespace]


def test_without_ray_configure_fails_with_the_reason(robots, monkeypatch, tmp_path, capfd):
    monkeypatch.setitem(sys.modules, 'ray', None)
    stand_in = robots()
    path = Fleets(robots, tmp_path).profile
    node = stand_in.bring(Fleet, cloud='local', profile=path, engine__robots=4)
    assert node.trigger_configure().name == 'FAILURE'
    assert 'pip install ray' in capfd.readouterr().err


@pytest.mark.parametrize(
    'wrong, reason',
    [
        (dict(scheduler='luck'), 'parameter scheduler'),
        (dict(execution_horizon='far'), 'parameter execution_horizon'),
        (dict(profile='/nowhere.yaml'), '/nowhere.yaml'),
    ],
)
def test_parameters_that_are_none_fail_configure(robots, capfd, wrong, reason):
    node = robots().bring(Fleet, engine__robots=4, **wrong)
    assert node.trigger_configure().name == 'FAILURE'
    assert reason in capfd.readouterr().err
