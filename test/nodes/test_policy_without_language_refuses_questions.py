"""A policy that was trained without text refuses questions with the reason.

The robot continues to act.
"""

import json

import numpy as np

from embodied_kv.config import TINY
from embodied_kv.model.checkpoints.own import SAYS, save
from embodied_kv.model.policy import Policy
from embodied_kv.model.processing.normalizer import Normalizer
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.language import Language
from embodied_kv.nodes.perception import Perception
from embodied_kv.srv import Ask


def folder_of(path, says):
    """Save random weights whose metadata lists the prompts `says`; return the path."""
    policy, joints = Policy.random(TINY), np.ones(7)
    relative = np.array([True] * 6 + [False])
    normalizer = Normalizer.from_quantiles(
        (-joints, joints), (-0.1 * joints, 0.1 * joints), relative
    )
    weights = dict(policy.model.named_parameters())
    save(path, weights, TINY, normalizer, policy.tokenizer, {SAYS: json.dumps(says)})
    return str(path)


def test_questions_and_prompts_are_refused_by_name_and_chunks_go_on(robot, tmp_path, capfd):
    mute = folder_of(tmp_path / 'mute', [])
    _, _, language = robot.up(
        Perception, Action, Language, checkpoint=mute, prompt_interval_frames=1
    )
    robot.until(lambda: robot.chunks)
    answer = robot.call(Ask, 'language/ask', question='what is red?')
    assert not answer.success and 'this policy is mute: it was trained on data' in answer.message
    robot.until(lambda: 'a prompt is not continued: this policy is mute' in capfd.readouterr().err)
    assert language.report()[1] == 'mute: the policy was trained without text'
    robot.more(robot.chunks)
    assert not robot.texts
