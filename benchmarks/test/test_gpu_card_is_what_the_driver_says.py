"""The facts of the card are read from nvidia-smi by name; without nvidia-smi they are unknown."""

from benchmarks.gpu.facts import ASKED, card

LINE = 'NVIDIA H200, 580.159.03, 700.00, 114.20, 1980, 1980, 3201, 143771, 35'


def test_facts_have_their_names(tmp_path, monkeypatch):
    tool = tmp_path / 'nvidia-smi'
    asked = f'--query-gpu={",".join(ASKED.values())}'
    tool.write_text(f'#!/bin/sh\n[ "$1" = "{asked}" ] && echo "{LINE}" && echo "another card"\n')
    tool.chmod(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path}:/usr/bin:/bin')
    found = card()
    assert (found['name'], found['driver'], found['power_limit_w']) == (
        'NVIDIA H200',
        '580.159.03',
        '700.00',
    )
    assert (found['sm_mhz'], found['memory_mhz'], found['temperature_c']) == ('1980', '3201', '35')


def test_no_driver_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv('PATH', str(tmp_path))
    assert card()['name'].startswith('unknown: ')
