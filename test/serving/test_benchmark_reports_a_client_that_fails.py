"""A client of the benchmark that fails reports the reason and blocks no other client."""

import queue
import socket
import threading

import pytest
from server_cases import running_server

from benchmarks.serving.client import ask
from embodied_kv.serving.websocket import codec


def test_client_without_a_server_reports_it():
    ready, answers = threading.Barrier(2), queue.Queue()
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))  # no server listens there
        ask(taken.getsockname()[1], b'', 1, ready, answers)
    assert 'ConnectionRefusedError' in answers.get_nowait()
    with pytest.raises(threading.BrokenBarrierError):
        ready.wait()


def test_refused_client_reports_it():
    answers = queue.Queue()
    with running_server() as opened:
        ask(opened.port, codec.pack({}), 1, threading.Barrier(1), answers)
    assert 'must be present' in answers.get_nowait()
