"""The host's inputs of a step lie in one buffer of separate fields; equal cuts share memory."""

import numpy as np
import pytest
import torch

from embodied_kv.runtime.inputs import StepInputs, longest

FIELDS = {'ids': (3, np.int64), 'share': (5, np.float64), 'rows': (7, np.int32)}


def test_the_device_reads_what_was_written_and_sent(device):
    inputs = StepInputs(device, FIELDS)
    cuts = {name: inputs.cut(name, numbers) for name, (numbers, _) in FIELDS.items()}
    for i, cut in enumerate(cuts.values()):
        cut.host[:] = np.arange(len(cut.host)) + 10 * i
    inputs.send()
    for i, (name, cut) in enumerate(cuts.items()):
        assert cut.device.device == device
        assert cut.device.tolist() == [10 * i + n for n in range(FIELDS[name][0])]
        assert cut.device.cpu().numpy().dtype == cut.host.dtype == FIELDS[name][1]


def test_equal_cuts_share_their_memory(device):
    inputs = StepInputs(device, FIELDS)
    whole, part = inputs.cut('rows', 7), inputs.cut('rows', 2, 3)
    whole.host[:] = range(7)
    inputs.send()
    assert part.device.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert part.device.data_ptr() == whole.device.data_ptr()
    assert part.device.is_contiguous()


def test_on_a_cpu_nothing_is_copied():
    cut = StepInputs('cpu', FIELDS).cut('share', 5)
    cut.host[2] = 0.5
    assert cut.device[2] == 0.5
    assert cut.device.data_ptr() == torch.from_numpy(cut.host).data_ptr()


def test_unknown_field_is_refused():
    inputs = StepInputs('cpu', FIELDS)
    with pytest.raises(LookupError, match="field must be one of ids, share, rows .got 'row'."):
        inputs.cut('row', 1)
    with pytest.raises(ValueError, match=r"'ids' must have at most 3 numbers \(got \[2, 2\]\)"):
        inputs.cut('ids', 2, 2)


def test_a_field_is_as_long_as_its_longest_use():
    uses = [FIELDS, {'ids': (9, np.int64)}, {'rows': (1, np.int32), 'more': (2, np.int32)}]
    expected = {**FIELDS, 'ids': (9, np.int64), 'more': (2, np.int32)}
    assert longest(uses) == expected
