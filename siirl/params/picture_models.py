"""Whether a language model takes pictures, and whether the engine passes them; without torch."""

from siirl.errors import CheckpointError, ConfigError, MissingAssetError
from siirl.files.documents import read_object
from siirl.files.hub_files import local_copy
from siirl.files.hub_place import MODEL, HubPlace, is_hub_id
from siirl.files.paths import find
from siirl.files.weight_files import CONFIG_FILE
from siirl.params.domains import SERVER, VLLM
from siirl.params.key_names import MODEL_PATH, ROLLOUT
from siirl.params.model_args import ActorRolloutRefArguments
from siirl.params.policies import VISION_MODEL_TYPES


def check_engine_shows_pictures(policy: ActorRolloutRefArguments) -> None:
    """Refuse an engine that does not pass pictures to a vision-language model.

    Raises:
        ConfigError: The engine is vLLM, in this process or behind a server.
    """
    engine, path = policy.rollout.name, policy.model.path
    if engine in (VLLM, SERVER) and path is not None and takes_pictures(path):
        raise ConfigError(
            f"{ROLLOUT}.name={engine} does not pass pictures to the model, but "
            f"{MODEL_PATH}={path} is a vision-language model: set rollout=hf."
        )


def takes_pictures(path: str) -> bool:
    """Whether the config.json of a folder or of a hub id is that of a model that takes pictures.

    False if there is none that can be read: other checks report it.
    """
    file = find(path) / CONFIG_FILE
    try:
        if not find(path).is_dir() and is_hub_id(path):
            file, _ = local_copy(HubPlace(MODEL, path, path=CONFIG_FILE), key=MODEL_PATH)
        return read_object(file, remedy="").get("model_type") in VISION_MODEL_TYPES
    except (CheckpointError, MissingAssetError, OSError):
        return False
