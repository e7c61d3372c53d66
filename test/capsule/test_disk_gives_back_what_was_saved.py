"""load(save(capsule)) = capsule, byte for byte, whatever its tensors and facts are."""

import json
import tempfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from embodied_kv.capsule.capsule import Boundary, Capsule, CapsuleError
from embodied_kv.capsule.disk import Disk

DTYPES = sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)}, key=str)
PLAIN = [dtype for dtype in DTYPES if not str(dtype).startswith('torch.q')]
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
pytestmark = pytest.mark.filterwarnings('ignore:ComplexHalf', 'ignore:torch.quantize')


def raw(tensor):
    """Return the tensor's bytes in C order, read by numpy alone."""
    return tensor.view(WORDS[tensor.itemsize]).numpy().tobytes()


def assert_equal(one, other):
    about = ('name', 'boundary', 'fingerprint', 'facts', 'created', 'bytes')
    assert [getattr(one, field) for field in about] == [getattr(other, field) for field in about]
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensor in one.tensors.items():
        loaded = other.tensors[name]
        assert (loaded.dtype, loaded.shape) == (tensor.dtype, tensor.shape)
        assert raw(loaded) == raw(tensor)


def capsule(name='a', fingerprint='f', facts=None, created=1.5, **tensors):
    return Capsule(name, Boundary('s', 3, 4), fingerprint, tensors, facts or {}, created)


@st.composite
def tensors(draw):
    """Draw a tensor of any plain dtype and content, of 0 to 3 axes, maybe empty or a view.

    Some are transposed or sliced.
    """
    dtype = draw(st.sampled_from(PLAIN))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    content = draw(st.binary(min_size=size, max_size=size))
    tensor = torch.tensor(list(content), dtype=torch.uint8).view(dtype).reshape(shape)
    if shape and draw(st.booleans()):
        tensor = tensor.transpose(0, -1)
    if shape and draw(st.booleans()):
        tensor = tensor[::2]
    return tensor


names = st.text(st.characters(categories=('L', 'N', 'P'), exclude_characters='_'), min_size=1)
facts = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


capsules = st.builds(
    Capsule,
    st.from_regex(r'[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}', fullmatch=True),
    st.builds(Boundary, st.text(), st.integers(), st.integers()),
    st.text(),
    st.dictionaries(names, tensors(), max_size=4),
    st.dictionaries(st.text(), facts, max_size=4),
    st.floats(0, 1e12),
)


@settings(max_examples=100, deadline=None)
@given(capsules)
def test_load_of_save_is_the_capsule(saved):
    with tempfile.TemporaryDirectory() as folder:
        size = Disk(folder).save(saved)
        disk = Disk(folder)
        assert disk.names() == (saved.name,)
        assert (disk.folder / f'{saved.name}.safetensors').stat().st_size == size
        assert_equal(saved, disk.load(saved.name, saved.fingerprint))


@pytest.mark.parametrize('dtype', PLAIN, ids=str)
def test_every_dtype_keeps_its_bytes(dtype, tmp_path):
    content = torch.randint(256, (8 * dtype.itemsize,), dtype=torch.uint8).view(dtype)
    scalar, empty = content[:1].reshape(()), content[:0].reshape(0, 5)
    saved = capsule(content=content, scalar=scalar, empty=empty)
    Disk(tmp_path).save(saved)
    assert_equal(saved, Disk(tmp_path).load('a', 'f'))


def test_views_of_one_memory_and_lazy_signs_are_kept_as_they_read(tmp_path):
    whole = torch.randn(4, 6)
    lazy = torch.view_as_complex(torch.randn(3, 2)).conj()
    saved = capsule(whole=whole, part=whole[1:3, ::2], again=whole, lazy=lazy, sign=lazy.imag)
    Disk(tmp_path).save(saved)
    loaded = Disk(tmp_path).load('a', 'f').tensors
    assert all(torch.equal(loaded[name], tensor) for name, tensor in saved.tensors.items())
    loaded['whole'].zero_()
    assert torch.equal(loaded['again'], whole)


def test_a_loaded_capsule_outlives_its_file(tmp_path):
    saved = capsule(x=torch.arange(10_000))
    disk = Disk(tmp_path)
    disk.save(saved)
    loaded = disk.load('a', 'f')
    (tmp_path / 'a.safetensors').write_bytes(b'')
    assert_equal(saved, loaded)


def test_the_library_reads_the_file(tmp_path):
    shown = {
        str(dtype): torch.randint(256, (2, 3 * dtype.itemsize), dtype=torch.uint8).view(dtype)
        for dtype in (torch.bool, torch.int64, torch.bfloat16, torch.float8_e5m2, torch.float64)
    }
    Disk(tmp_path).save(capsule(odd=torch.ones(3, dtype=torch.complex128), **shown))
    with safe_open(tmp_path / 'a.safetensors', 'pt') as file:
        assert all(raw(file.get_tensor(name)) == raw(tensor) for name, tensor in shown.items())
        assert all(file.get_tensor(name).dtype == tensor.dtype for name, tensor in shown.items())
        assert file.get_tensor('odd').nbytes == 48
        manifest = json.loads(file.metadata()['manifest'])
    assert (manifest['version'], manifest['name'], manifest['fingerprint']) == (2, 'a', 'f')


def test_what_is_listed_is_what_was_saved(tmp_path):
    disk = Disk(tmp_path / 'made' / 'here')
    assert disk.names() == disk.entries() == ()
    for name in ('b', 'a.1', 'C-_'):
        disk.save(capsule(name, created=7.0, facts={'arm': [1, 2]}, x=torch.zeros(5)))
    (disk.folder / 'note.txt').write_text('not ours')
    (disk.folder / 'torn.safetensors').write_bytes(b'torn')
    assert disk.names() == ('C-_', 'a.1', 'b', 'torn')
    assert [entry.name for entry in disk.entries()] == ['C-_', 'a.1', 'b']
    entry = disk.entry('b')
    assert (entry.boundary, entry.fingerprint) == (Boundary('s', 3, 4), 'f')
    assert (entry.created, entry.tensors[0].shape) == (7.0, (5,))


@pytest.mark.parametrize('facts', [{}, {'arm': 'x' * 100_000}], ids=('none', 'many'))
def test_bytes_are_those_of_the_file(facts, tmp_path):
    saved = capsule(facts=facts, x=torch.randn(100), y=torch.zeros(3, dtype=torch.uint8))
    disk = Disk(tmp_path)
    size = disk.save(saved)
    assert size == (tmp_path / 'a.safetensors').stat().st_size
    assert saved.bytes == disk.entry('a').bytes == disk.load('a', 'f').bytes == size


def test_a_name_in_use_is_refused(tmp_path):
    Disk(tmp_path).save(capsule(x=torch.zeros(5)))
    with pytest.raises(CapsuleError, match=r'there is a file .*a\.safetensors already: drop a'):
        Disk(tmp_path).save(capsule(y=torch.ones(2)))
    assert_equal(capsule(x=torch.zeros(5)), Disk(tmp_path).load('a', 'f'))
    assert [path.name for path in tmp_path.iterdir()] == ['a.safetensors']


def test_dropped_capsule_is_removed(tmp_path):
    disk = Disk(tmp_path)
    disk.save(capsule('a'))
    disk.save(capsule('b'))
    disk.drop('a')
    assert disk.names() == ('b',)
    for gone in (disk.drop, disk.entry, lambda name: disk.load(name, 'f')):
        with pytest.raises(CapsuleError, match=r'^no capsule a in .*; there is b$'):
            gone('a')


@pytest.mark.parametrize(
    'fact',
    [
        float('nan'),
        float('inf'),
        (1, 2),
        {1: 'a'},
        b'bytes',
        torch.zeros(1),
        pytest.param([object()], id='object'),
        {'deep': [(0,)]},
    ],
    ids=repr,
)
def test_a_fact_that_would_not_come_back_is_refused(fact, tmp_path):
    with pytest.raises(CapsuleError, match='capsule a: the facts of arm do not come back from'):
        Disk(tmp_path).save(capsule(facts={'arm': fact}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ('tensor', 'reason'),
    [
        (lambda: torch.eye(2).to_sparse(), 'torch.sparse_coo'),
        (lambda: torch.empty(2, device='meta'), 'no data'),
        (lambda: torch.empty(2, dtype=torch.qint8), 'its scale would be lost'),
    ],
    ids=('sparse', 'meta', 'quantised'),
)
def test_a_tensor_without_plain_bytes_is_refused(tensor, reason, tmp_path):
    with pytest.raises(CapsuleError, match=rf'capsule a: x \(.*{reason}'):
        Disk(tmp_path).save(capsule(x=tensor()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('name', ['', '__metadata__', 'a\nb', '\ud800'], ids=ascii)
def test_a_tensor_name_that_a_header_cannot_hold_is_refused(name, tmp_path):
    with pytest.raises(CapsuleError, match='cannot name a tensor'):
        Disk(tmp_path).save(capsule(**{name: torch.zeros(1)}))
    assert list(tmp_path.iterdir()) == []


def test_fields_of_another_kind_are_refused(tmp_path):
    odd = Capsule('a', Boundary('s', 1.5, 4), 'f', {}, {})
    with pytest.raises(CapsuleError, match='capsule a: boundary.number cannot be 1.5'):
        Disk(tmp_path).save(odd)


def test_more_facts_than_a_capsule_holds_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr('embodied_kv.capsule.facts.MAX_FACTS', 4096)
    with pytest.raises(CapsuleError, match='at most 4096 bytes .* large facts should be tensors'):
        Disk(tmp_path).save(capsule(facts={'arm': 'x' * 4096}))
    assert list(tmp_path.iterdir()) == []
