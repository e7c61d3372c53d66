"""Engine parameters that contradict each other are refused when they are given, with a remedy."""

import pytest

from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig


@pytest.mark.parametrize(
    'parameters, said',
    [
        (
            dict(device='cuda:1'),
            'engine.device must be cpu or cuda; set CUDA_VISIBLE_DEVICES to ',
        ),
        (dict(device='cuda:0'), 'engine.device must be cpu or cuda'),
        (dict(device='gpu'), 'engine.device must be cpu or cuda'),
        (dict(device=''), 'engine.device must be cpu or cuda'),
        (dict(rows=2), r'engine.rows must be from 3 to 4096 \(got 2'),
        (dict(streams=0), r'engine.streams must be from 1 to 4096 \(got 0'),
        (dict(max_batch_robots=0), r'engine.max_batch_robots must be from 1 to 256 \(got 0'),
        (dict(decode_tokens=7), r'engine.decode_tokens must be from 8 to 4096 \(got 7'),
        (dict(reserved_rows=1), r'engine.reserved_rows must be from 2 to 64 \(got 1'),
        (dict(min_euler_steps=0), r'engine.min_euler_steps must be from 1 to 50 \(got 0'),
        (dict(compressed_rows=-1), r'engine.compressed_rows must be from 0 to 4096 \(got -1'),
        (dict(threads=0), r'engine.threads must be from 1 to 256 \(got 0'),
        (
            dict(deadline_margin_ms=float('nan')),
            r'engine.deadline_margin_ms must be from 0.0 to 1000.0 \(got nan',
        ),
        (
            dict(language_keep_ratio=0.0),
            r'engine.language_keep_ratio must be from 0.01 to 1.0 \(got 0.0',
        ),
        (dict(action_keep_ratio=1.5), r'engine.action_keep_ratio must be .* \(got 1.5'),
        (dict(seed=-1), r'engine.seed must be from 0 to .* \(got -1'),
        (
            dict(rows=4, reserved_rows=4),
            'reserved_rows must be below engine.rows 4 .*raise engine.rows',
        ),
        (dict(max_batch_robots=3, rows=5), 'engine.rows must be at least two .*raise it to 6'),
        (dict(euler_steps=3), 'engine.min_euler_steps must be <= engine.euler_steps 3'),
        (
            dict(streams=2, decode_batch_multiple=4),
            'engine.decode_batch_multiple must be <= engine.streams 2',
        ),
        (
            dict(compression_queries='layer'),
            'engine.compression_queries must be stream, row or text .got .layer',
        ),
        (dict(rtc='on'), "engine.rtc must be off, guided or trained .got 'on'"),
        (
            dict(rtc_schedule='exp'),
            'engine.rtc_schedule must be linear, exponential, ones or zeros',
        ),
        (dict(rtc_horizon=-1), r'engine.rtc_horizon must be from 0 to 1000 \(got -1'),
        (dict(rtc_max_guidance=float('inf')), r'engine.rtc_max_guidance must be .* \(got inf'),
        (
            dict(compressed_rows=0, language_keep_ratio=0.5),
            'engine.language_keep_ratio must be 1 .*engine.compressed_rows',
        ),
        (
            dict(compressed_rows=0, action_keep_ratio=0.5),
            'engine.action_keep_ratio must be 1 .*engine.compressed_rows',
        ),
    ],
)
def test_by_the_config(parameters, said):
    with pytest.raises(ValueError, match=said):
        EngineConfig(**parameters)


@pytest.mark.parametrize(
    'parameters, period, said',
    [
        (
            dict(deadline_margin_ms=100.0),
            0.1,
            'engine.deadline_margin_ms must be shorter .* 100.0 ms .got 100.0',
        ),
        (dict(compression_method='zip'), 0.1, 'zip'),
        (
            dict(compression_method='h2o', compression_queries='text'),
            0.1,
            'engine.compression_queries must be row for h2o',
        ),
    ],
)
def test_by_the_engine(policy, parameters, period, said):
    with pytest.raises(ValueError, match=said):
        Engine(policy, EngineConfig(**parameters), period)


@pytest.mark.parametrize(
    'parameters',
    [
        dict(max_batch_robots=3, rows=6, streams=1),
        dict(
            rows=3, streams=1, decode_tokens=8, euler_steps=1, min_euler_steps=1, compressed_rows=0
        ),
        dict(streams=4, decode_batch_multiple=4),
        dict(deadline_margin_ms=100.0, time_budget=False),
    ],
)
def test_at_its_bounds_an_engine_acts_and_speaks(policy, observe, parameters):
    config = EngineConfig(**{'time_budget': False} | parameters)
    engine = Engine(policy, config)
    for frame in range(2):
        robots = [observe(frame, robot=f'r{i}') for i in range(config.max_batch_robots)]
        handles = engine.prefill(robots)
        with engine.kv.frames.leases(handles) as leases:
            assert (
                len(engine.denoise(leases, [o.deadline for o in robots]))
                == config.max_batch_robots
            )
        engine.open(handles[0], 'w' * (config.decode_tokens - 1), max_tokens=1)
    assert 1 in [delta.tokens for delta in engine.decode()]
    engine.kv.check_integrity()
