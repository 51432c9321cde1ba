"""Embodied episode: observations and chunks of actions alternate until the simulator ends it."""

# C chunk (one observation each), K action of a chunk, A action dimension, T = C*K*A token of the
# whole episode, D embedding

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.base import IMAGES, INSTRUCTION, PROPRIOCEPTION, RECORDER_STREAM, FrameRequest
from siirl.engine.rollout.acting import ActRequest
from siirl.engine.rollout.vla.action_noise import ActionNoise
from siirl.engine.rollout.vla.embodied_engine import EmbodiedEngine
from siirl.engine.rollout.workflow import (
    EpisodeRequest,
    RolloutWorkflow,
    Trajectory,
)
from siirl.env_server.pool import EnvPool
from siirl.models.policy import Policy


class EmbodiedWorkflow(RolloutWorkflow):
    """Runs an episode until success or the limit of steps.

    Args:
        pool: Simulators; an episode holds one slot of it.
        policy: Tokenizes the instruction and decodes actions; the engine runs its forward pass.
        streams: Frame streams to request; the recorder's stream only for episodes with `record`.
        blind: Zero every image, as a control without visual input.
    """

    def __init__(
        self,
        *,
        pool: EnvPool,
        policy: Policy,
        streams: Mapping[str, FrameRequest],
        blind: bool = False,
    ) -> None:
        self.pool = pool
        self.policy = policy
        self.streams = dict(streams)
        self.blind = blind
        self.marks_versions = False
        """Whether rows get the column `policy_versions`, because new weights may arrive within an
        episode."""

    async def arun_episode(self, engine: EmbodiedEngine, data: EpisodeRequest) -> Trajectory:
        """Run one episode; raises SimulationFailed if the pool could not simulate it."""
        filmed = data.record and self.pool.spec.renders
        streams = {
            name: request
            for name, request in self.streams.items()
            if name != RECORDER_STREAM or filmed
        }
        async with self.pool.slot() as slot:
            recorder = self.recorder()
            observation, _ = await slot.reset(
                seed=data.seed,
                options={**data.options, "task": data.task, "frames": streams},
            )
            noise = ActionNoise(data, self.policy)
            executed: list[Any] = []
            terminated = truncated = False
            while not (terminated or truncated):
                request = self.request(observation, data, noise.chunk())
                response = await engine.act(request)
                actions = self.policy.action_tokenizer.decode(response.values)
                recorder.read(request, observation.get(INSTRUCTION, ""))
                observation, reward, terminated, truncated, info = await slot.step_chunk(actions)
                recorder.add(request, response, reward, info["executed"])
                executed += actions[: info["executed"]].tolist()
            frames = {name: await slot.frames(name) for name in streams}
        return Trajectory(
            row=recorder.row(data, info, truncated=truncated),
            instruction=observation.get(INSTRUCTION, ""),
            frames=frames,
            # siirl.replay needs only this and the seed
            record={"actions": executed, "options": dict(data.options)} if filmed else {},
            changed_instruction=recorder.changed_instruction,
        )

    def recorder(self) -> "RowRecorder":
        """A recorder for a new row."""
        return RowRecorder(
            self.policy,
            marks_versions=self.marks_versions,
            instruction_changes=self.pool.spec.instruction_changes,
        )

    def request(
        self,
        observation: Mapping[str, Any],
        data: EpisodeRequest,
        uniforms: NDArray[np.float32] | None,
    ) -> ActRequest:
        """The policy's inputs for an observation; `uniforms` choose the actions, None the mode."""
        images = observation.get(IMAGES)
        if self.blind and images is not None:
            images = np.zeros_like(images)
        proprioception = observation.get(PROPRIOCEPTION)
        if proprioception is not None:
            proprioception = np.asarray(proprioception, np.float32).reshape(-1)
        images, proprioception = self.policy.prepare(images=images, proprioception=proprioception)
        return ActRequest(
            uid=data.uid,
            pixel_values=images,
            proprioception=proprioception,
            instruction_ids=self.policy.tokenize_instruction(observation.get(INSTRUCTION, "")),
            uniforms=uniforms,
        )


class RowRecorder:
    """Collects the training row of an episode, or of a part of one, chunk by chunk."""

    def __init__(self, policy: Policy, *, marks_versions: bool, instruction_changes: bool) -> None:
        self.dimensions = policy.action_tokenizer.dimensions
        self.marks_versions = marks_versions
        self.instruction_changes = instruction_changes
        self.chunks: list[tuple[ActRequest, Any]] = []
        self.mask: list[NDArray[np.int64]] = []
        self.rewards: list[NDArray[np.float32]] = []
        self.steps = 0
        self.env_return = 0.0
        self.changed_instruction = ""
        """See `Trajectory.changed_instruction`."""
        self._instruction = ""

    def read(self, request: ActRequest, instruction: str) -> None:
        """Record the instruction of the observation at which the next chunk begins."""
        if not self.chunks:
            self._instruction = instruction
        elif self.instruction_changes:
            return
        elif not np.array_equal(request.instruction_ids, self.chunks[0][0].instruction_ids):
            self.changed_instruction = self.changed_instruction or (
                f"from {self._instruction!r} to {instruction!r}, {self.steps} steps later"
            )

    def add(self, request: ActRequest, response: Any, reward: float, executed: int) -> None:
        """Add a chunk, of which the environment executed the first `executed` actions."""
        self.chunks.append((request, response))
        end = executed * self.dimensions
        mask_T = np.zeros(len(response.values), np.int64)
        rewards_T = np.zeros(len(response.values), np.float32)
        mask_T[:end] = 1
        rewards_T[end - 1] = reward
        self.mask.append(mask_T)
        self.rewards.append(rewards_T)
        self.steps += executed
        self.env_return += reward

    def row(
        self, data: EpisodeRequest, info: Mapping[str, Any], *, truncated: bool
    ) -> dict[str, Any]:
        """The training sample; `info` is that of the last chunk."""
        requests, responses = zip(*self.chunks, strict=True)
        row: dict[str, Any] = {
            "uid": data.uid,
            "index": data.group_id,
            "task_name": data.task,
            "task_id": data.task_id,
            "trial_id": data.trial_id,
            "seed": data.seed,
            "instruction_ids": requests[0].instruction_ids,
            "responses": np.concatenate([response.choices for response in responses]),
            "response_mask": np.concatenate(self.mask),
            "rollout_log_probs": np.concatenate([response.log_probs for response in responses]),
            "finish_step": self.steps,
            "complete": bool(info.get("success", False)),
            "truncated": bool(truncated),
            "env_return": float(self.env_return),
            "env_rewards": np.concatenate(self.rewards),
            "policy_version": min(response.policy_version for response in responses),
        }
        if self.marks_versions:
            row["policy_versions"] = np.concatenate(
                [np.full(len(answer.values), answer.policy_version) for answer in responses]
            )
        if self.instruction_changes:
            row["chunk_instruction_ids"] = np.stack([each.instruction_ids for each in requests])
        if requests[0].pixel_values is not None:
            row["pixel_values"] = np.stack([request.pixel_values for request in requests])
        if requests[0].proprioception is not None:
            row["proprioception"] = np.stack([request.proprioception for request in requests])
        if "oracle_distance" in info:
            row["oracle_distance"] = float(info["oracle_distance"])
        return row
