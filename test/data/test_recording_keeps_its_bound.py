"""No recording exceeds its maximum size, summary included."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from recording_cases import MIB, TOPIC, begin, messages

from embodied_kv.data.recording_file import RecordingFullError


@settings(max_examples=10, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 60_000), min_size=1, max_size=20),
    flushes=st.integers(1, 40),
    most=st.integers(MIB // 16, MIB // 2),
)
def test_a_file_is_no_larger_than_its_bound(tmp_path_factory, sizes, flushes, most):
    folder = tmp_path_factory.mktemp('bound')
    file, taken = begin(folder, most), []
    draw = random.Random(0)
    try:
        for i in range(400):
            data = draw.randbytes(sizes[i % len(sizes)])
            file.add(TOPIC, i, data)
            taken.append((i, data))
            if i % flushes == 0:
                file.flush()
    except RecordingFullError:
        pass
    file.finish({})
    assert file.path.stat().st_size <= most
    assert messages(file.path) == taken
