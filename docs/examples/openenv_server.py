"""An OpenEnv server to train on: repeat a word, in three turns.

pip install openenv-core==0.3.0       # in a separate environment
python openenv_server.py 8000

siirl train pipeline=grpo env=openenv env.url=http://127.0.0.1:8000 \
    trainer.total_steps=2 trainer.val_episodes=8 data.max_response_length=96 \
    data.train_batch_size=4 actor_rollout_ref.rollout.n=4 \
    actor_rollout_ref.actor.ppo_mini_batch_size=4

These two steps only show that the parts fit. The shipped model knows sums and says none of the
words, so that all rewards are 0 and nothing is learned: train with a model of your own.
"""

import random
import sys
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

WORDS = ("red", "green", "blue", "black", "white")
TURNS = 3
SESSIONS = 8


class Say(Action):
    """The model's text."""

    text: str


class Heard(Observation):
    """The text that the model reads."""

    heard: str = ""


class Repeat(Environment):
    """One word per episode; the reward is 1 for repeating it."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Heard:
        """Draw the word by the seed."""
        self._state = State(episode_id=episode_id)
        self._word = random.Random(seed).choice(WORDS)
        return Heard(heard=f"Say {self._word}.")

    def step(self, action: Say, timeout_s: float | None = None, **_: Any) -> Heard:
        """Compare one text with the word."""
        self._state.step_count += 1
        right = action.text == self._word
        done = right or self._state.step_count == TURNS
        return Heard(heard=f"No, say {self._word}.", reward=float(right), done=done)

    @property
    def state(self) -> State:
        """Episode and number of turns."""
        return self._state


if __name__ == "__main__":
    app = create_fastapi_app(Repeat, Say, Heard, max_concurrent_envs=SESSIONS)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
