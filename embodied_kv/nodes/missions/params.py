"""The parameters of missions, and whether a robot can carry out any."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_kv.capsule.tiers import Tier
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.common.parameters import SuiteParams, param


@dataclass(frozen=True)
class MissionParams:
    """How a mission is carried out."""

    step_time_limit: float = param(
        20.0, 'That a step may take, s, where the goal names none', 'live', range=(1.0, 3600.0)
    )
    rewind: bool = param(
        True,
        'A step that failed rolls the computation back to where it was before it; never the arm',
        'live',
    )
    boundary_tier: str = param(
        'disk',
        'Where the capsule from before a step is kept: disk, which outlives the process; host or '
        'device',
        'live',
        check=Tier,
    )


def can_carry_out(node: SuiteNode) -> bool:
    """Return whether the policy answers questions; the log says why not."""
    language = node.params.read(SuiteParams).embodiment().contract.language
    if not language.questions:
        missing = 'language.questions must be true (got false)'
    elif not language.planner and not language.success:
        missing = 'language.success must be a question where there is no planner (got none)'
    else:
        return True
    node.log_info('questions', f'mission stays unconfigured: in the contract, {missing}')
    return False
