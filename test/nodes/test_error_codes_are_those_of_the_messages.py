"""Error codes are equal in Python and ROS 2, and every response and result has one."""

import errno

import pytest

from embodied_kv import action, msg, srv
from embodied_kv.capsule.tiers import NoRoomError
from embodied_kv.errors import CodedError, ErrorCode, code_of, failure_code
from embodied_kv.kv.handle import StaleHandleError


def kinds(module, part):
    return [kind for kind in vars(module).values() if hasattr(kind, part)]


def test_python_and_ros_2_have_the_same_codes():
    constants = {code.name: getattr(msg.ErrorCode, code.name) for code in ErrorCode}
    assert constants == {code.name: code.value for code in ErrorCode}
    assert len(set(constants.values())) == len(constants)


@pytest.mark.parametrize('kind', kinds(srv, 'Response'), ids=lambda kind: kind.__name__)
def test_a_response_has_success_code_and_message(kind):
    response = kind.Response()
    assert (response.success, response.error_code, response.message) == (False, 0, '')


@pytest.mark.parametrize('kind', kinds(action, 'Result'), ids=lambda kind: kind.__name__)
def test_a_result_has_success_code_and_message(kind):
    result = kind.Result()
    assert (result.success, result.error_code, result.message) == (False, 0, '')


@pytest.mark.parametrize(
    'error, code',
    [
        (CodedError('x must be y'), ErrorCode.INVALID_ARGUMENT),
        (CodedError('x', ErrorCode.MISMATCH), ErrorCode.MISMATCH),
        (NoRoomError('full'), ErrorCode.NO_ROOM),
        (StaleHandleError('gone'), ErrorCode.STALE_FRAME),
        (TimeoutError(), ErrorCode.TIMEOUT),
        (FileNotFoundError(), ErrorCode.UNAVAILABLE),
        (OSError(errno.ENOSPC, 'full'), ErrorCode.NO_ROOM),
        (KeyError('a'), ErrorCode.NOT_FOUND),
        (ZeroDivisionError(), ErrorCode.UNKNOWN),
    ],
)
def test_an_error_has_its_own_code_or_that_of_its_type(error, code):
    assert code_of(error) == code
    assert str(CodedError('x must be y')) == 'x must be y'


@pytest.mark.parametrize('number, code', [(0, 1), (99, 1), (10, ErrorCode.TIMEOUT)])
def test_the_code_of_a_failure_is_never_that_of_success(number, code):
    assert failure_code(number) == code != ErrorCode.NONE
