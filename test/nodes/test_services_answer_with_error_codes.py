"""A live suite answers failed requests with the error code of the cause."""

import pytest
from capsule_suite import begin

from embodied_kv.errors import ErrorCode
from embodied_kv.srv import (
    Ask,
    CapsuleDrop,
    CapsuleMove,
    CapsuleRestore,
    CapsuleRollback,
    CapsuleSnapshot,
    Evict,
    SetLimits,
)


@pytest.mark.parametrize(
    'kind, name, fields, code',
    [
        (CapsuleSnapshot, 'capsule/snapshot', {'name': '../a'}, ErrorCode.INVALID_ARGUMENT),
        (CapsuleSnapshot, 'capsule/snapshot', {'tier': 'cloud'}, ErrorCode.INVALID_ARGUMENT),
        (CapsuleRestore, 'capsule/restore', {'name': 'missing'}, ErrorCode.NOT_FOUND),
        (CapsuleRollback, 'capsule/rollback', {}, ErrorCode.NOT_FOUND),
        (CapsuleMove, 'capsule/move', {'name': 'missing', 'tier': 'disk'}, ErrorCode.NOT_FOUND),
        (CapsuleDrop, 'capsule/drop', {'name': 'missing'}, ErrorCode.NOT_FOUND),
        (Ask, 'language/ask', {'question': ' '}, ErrorCode.INVALID_ARGUMENT),
        (Ask, 'language/ask', {'question': '?', 'temperature': -1.0}, ErrorCode.INVALID_ARGUMENT),
        (Evict, 'kv/evict', {'stream': 10**9}, ErrorCode.NOT_FOUND),
        (SetLimits, 'kv/set_limits', {'streams': 10**6}, ErrorCode.INVALID_ARGUMENT),
    ],
)
def test_a_failed_request_has_the_code_of_its_cause(robot, tmp_path, kind, name, fields, code):
    begin(robot, tmp_path)
    response = robot.call(kind, name, **fields)
    assert (response.success, response.error_code) == (False, code), response.message
    assert response.message


def test_a_capsule_that_was_cut_short_is_damaged(robot, tmp_path):
    begin(robot, tmp_path)
    taken = robot.call(CapsuleSnapshot, 'capsule/snapshot', name='a', tier='disk')
    assert (taken.success, taken.error_code) == (True, ErrorCode.NONE)
    (file,) = tmp_path.rglob('a.safetensors')
    file.write_bytes(file.read_bytes()[:-100])
    response = robot.call(CapsuleRestore, 'capsule/restore', name='a')
    assert (response.success, response.error_code) == (False, ErrorCode.DAMAGED), response.message


def test_inactive_node_refuses_with_its_state(robot, tmp_path):
    *_, language, session = begin(robot, tmp_path)
    language.trigger_deactivate()
    assert robot.call(Ask, 'language/ask', question='?').error_code == ErrorCode.NOT_ACTIVE
    session.trigger_deactivate()
    response = robot.call(CapsuleSnapshot, 'capsule/snapshot', name='a')
    assert response.error_code == ErrorCode.NOT_ACTIVE
