"""What an episode's record says about its tokens."""

import numpy as np

from siirl.engine.rollout.dialogue import Dialogue
from siirl.engine.rollout.generation import GenerationResponse


def say(dialogue: Dialogue, versions: list[int]) -> None:
    start, count = len(dialogue.tokens), len(versions)
    dialogue.say(
        GenerationResponse(
            tokens=np.arange(count),
            log_probs=np.zeros(count, np.float32),
            versions=np.array(versions),
            finish_reason="stop",
        )
    )
    dialogue.end_turn("", start)


def test_a_turn_with_tokens_of_newer_weights_lists_their_versions():
    dialogue = Dialogue(prompt=(1,), messages=[])
    say(dialogue, [3, 3])
    dialogue.hear([8, 9], [{"role": "tool", "content": "4"}])
    say(dialogue, [3, 4])
    say(dialogue, [4])
    versions = [turn.get("policy_versions") for turn in dialogue.record()["turns"]]
    assert versions == [None, None, [3, 4], [4]]
    assert dialogue.versions_of_tokens().tolist() == [3, 3, 0, 0, 3, 4, 4]
