"""Episodes of text as a reward manager gets them."""

import numpy as np

from siirl.engine.reward_manager import EpisodeOutcomes


def outcomes(
    *responses: str, truths=None, sources=None, success=None, lengths=None, total=None, **columns
) -> EpisodeOutcomes:
    count = len(responses)
    texts = {
        "response_text": list(responses),
        "ground_truth": [f'"{truth}"' for truth in (truths or [""] * count)],
        "data_source": list(sources or ["sums"] * count),
        "extra_info": ["{}"] * count,
        **columns,
    }
    return EpisodeOutcomes(
        uid_B=[f"u{i}" for i in range(count)],
        task_name_B=["sums"] * count,
        index_B=np.arange(count),
        complete_B=np.array(success or [False] * count, bool),
        env_return_B=np.array([0.25] * count, np.float32),
        video_embedding_BD=None,
        oracle_distance_B=None,
        texts_B=texts,
        response_length_B=None if lengths is None else np.array(lengths),
        total=count if total is None else total,
    )
