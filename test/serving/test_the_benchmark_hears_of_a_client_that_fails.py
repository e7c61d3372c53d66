"""A client of the benchmark that cannot ask says why, and lets nobody wait for it."""

import queue
import socket
import threading

import pytest
from door_cases import door

from benchmarks.serving.client import ask
from embodied_kv.serving.websocket import codec


def test_one_that_finds_no_server_says_so():
    ready, answers = threading.Barrier(2), queue.Queue()
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))  # nobody listens there
        ask(taken.getsockname()[1], b'', 1, ready, answers)
    assert 'ConnectionRefusedError' in answers.get_nowait()
    with pytest.raises(threading.BrokenBarrierError):
        ready.wait()


def test_one_that_is_refused_says_so():
    answers = queue.Queue()
    with door() as opened:
        ask(opened.port, codec.pack({}), 1, threading.Barrier(1), answers)
    assert 'is missing' in answers.get_nowait()
