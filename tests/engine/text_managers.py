"""Text reward managers of a whole configuration."""

from siirl.engine.reward_manager import make_text_reward_manager
from siirl.params import SiiRLArguments


def text_manager(config: SiiRLArguments, **given):
    return make_text_reward_manager(
        config.reward,
        config.custom_reward_function,
        overlong=config.algorithm.overlong,
        max_response_length=config.data.max_response_length,
        **given,
    )
