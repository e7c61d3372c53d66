"""The committed workloads name the source of each number, match the paper, and hold equal work."""

from dataclasses import replace

import numpy as np
import pytest
import yaml

from benchmarks.fleet.workload import FILE, WorkloadError, draw, read

COMMON, WORKLOADS = read()


def test_the_eight_of_the_paper():
    assert len({workload.name for workload in WORKLOADS}) == 8
    assert (COMMON.period, COMMON.chunk) == (1 / 30, 50)
    assert COMMON.wifi.latency == 0.0025 and COMMON.wan.latency == 0.1


@pytest.mark.parametrize('workload', WORKLOADS, ids=lambda workload: workload.name)
def test_both_horizons_execute_the_same_actions(workload):
    static, dynamic = draw(workload, COMMON, 100, seed=0)
    assert [sum(job.horizons) for job in static] == [sum(job.horizons) for job in dynamic]
    assert max(max(job.horizons) for job in dynamic) <= 50
    for job in static:
        assert len(set(job.horizons[:-1])) <= 1 and job.horizons[0] >= job.horizons[-1]
    assert draw(workload, COMMON, 100, seed=0)[1] == dynamic


@pytest.mark.parametrize('workload', WORKLOADS, ids=lambda workload: workload.name)
def test_consecutive_rounds_are_as_alike_as_in_figure_10(workload):
    _, dynamic = draw(workload, COMMON, 600, seed=0)
    rounds = [np.array(job.horizons[:-1]) for job in dynamic]
    change = np.concatenate([np.abs(h[1:] / h[:-1] - 1) for h in rounds if len(h) > 1])
    assert 0.45 < (change < 0.1).mean() < 0.854
    assert (change > 1).mean() < 0.101


@pytest.mark.parametrize('cv', [0.1, 0.5, 1.0])
def test_rounds_vary_as_told_and_actions_follow(cv):
    """Rounds are gamma distributed; rounding and the minimum 1 hardly matter at a mean of 20."""
    workload = replace(next(w for w in WORKLOADS if w.rounds == 20), cv=cv)
    static, _ = draw(workload, COMMON, 2000, seed=0)
    rounds = np.array([len(job.horizons) for job in static])
    assert rounds.mean() == pytest.approx(20, rel=0.05)
    assert rounds.std() / rounds.mean() == pytest.approx(cv, rel=0.1)
    assert all(len(set(job.horizons)) == 1 for job in static)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (lambda tree: tree['common'].update(chunk=50), r'common\.chunk: 50 does not say where'),
        (
            lambda tree: tree['workloads'][0]['rounds'].update({'from': 'a guess'}),
            r'LIBERO/SmolVLA\.rounds: from must begin with paper or ours .got .a guess.',
        ),
        (
            lambda tree: tree['workloads'][0]['ratio'].update(value=[[0, 2], [1, 1]]),
            r'LIBERO/SmolVLA\.ratio: points of a share and a value, neither falling',
        ),
        (lambda tree: tree['workloads'][0].pop('phase'), 'phase'),
        (lambda tree: tree.pop('common'), 'common'),
    ],
)
def test_a_number_without_provenance_is_refused(tmp_path, change, message):
    tree = yaml.safe_load(FILE.read_text())
    change(tree)
    path = tmp_path / 'w.yaml'
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(WorkloadError, match=rf'w\.yaml: .*{message}'):
        read(path)
