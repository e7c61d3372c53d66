"""A request to a policy server of this package, for a thread that may wait."""

from __future__ import annotations

from concurrent.futures import TimeoutError as Late

from embodied_kv.errors import CodedError, ErrorCode, failure_code
from embodied_kv.serving.remote_policy.connection import RemotePolicy, Reply, Request, Unanswered
from embodied_kv.text import shown


def answered(policy: RemotePolicy | None, wanted: str, request: Request, seconds: float) -> Reply:
    """Return the reply of a server that can do what is wanted, a field of its extensions.

    policy: the connection; None while the node that has it is not active. seconds: that the
    server has. Raises CodedError.
    """
    if policy is None or not policy.is_connected:
        why = policy.problem if policy is not None else 'the node of the connection is not active'
        raise CodedError(
            f'the policy server must be connected (got: {why})', ErrorCode.UNAVAILABLE
        )
    if not getattr(policy.extensions, wanted, False):
        raise CodedError(
            f'the policy server must offer {wanted} (got one that does not); use the policy '
            'server of this package',
            ErrorCode.UNAVAILABLE,
        )
    try:
        reply = policy.ask(request, seconds).result(2 * seconds)
    except (Unanswered, Late) as error:
        raise CodedError(
            f'the policy server did not answer: {error}', ErrorCode.UNAVAILABLE
        ) from error
    if 'error' in reply:
        code = reply.get('error_code')
        raise CodedError(
            f'the policy server refused it: {shown(reply["error"], 300)}',
            failure_code(code if isinstance(code, int) else 0),
        )
    return reply
