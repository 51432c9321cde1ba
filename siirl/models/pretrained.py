"""Reads causal language models from folders or the Hugging Face hub; errors name the remedy.

Left out: parts that training adds to a model (`siirl.models.language_model`).
"""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import safetensors
import torch

from siirl.errors import CheckpointError, ConfigError, MissingAssetError, SiirlError
from siirl.files.hub_place import is_only_path
from siirl.files.paths import find
from siirl.files.weight_files import (
    CONFIG_FILE,
    LANGUAGE_MODEL_FOLDER,
    check_safetensors,
    refuse_adapters,
    stored_policy,
    weight_files,
)
from siirl.models.adapters import adapted_layers, add_adapters
from siirl.models.hub import cached_folder, download_weights, find_on_hub
from siirl.models.weights import (
    PlannedWeights,
    UnscaledWeightsError,
    plan_weights,
    without_memory,
)
from siirl.params.key_names import MODEL, MODEL_PATH
from siirl.params.model_args import LoraArguments
from siirl.params.policies import VISION_MODEL_TYPES

DEQUANTISABLE = ("fp8", "mxfp4")
"""Quantisations that transformers turns into the weights of the architecture."""
MINIATURE_TOKENS = 64  # size of the vocabulary of `miniature`
GAIN = 2.0  # deviation of the outputs of its matrices for inputs with deviation 1
WORD_GAIN = 10.0  # of its logits, which a cap of 30 or 50 then changes by more than rounding does


def source_of(path: str | Path, *, place: str = MODEL_PATH) -> str:
    """The folder that `path` names, or the hub id; see `find_on_hub` for an unreachable hub.

    Raises:
        ConfigError: Not a valid name of a model on the Hub, or a folder of a robot's policy.
        MissingAssetError: A path to a missing folder, or an unavailable hub id.
        CheckpointError: Adapters of peft beside the weights.
    """
    folder = find(str(path))
    if folder.is_dir():
        _check_entries(folder)
        refuse_adapters(folder)
        acting = stored_policy(folder)
        if acting is not None:
            raise ConfigError(
                f"{place}={path} holds a {acting}, which outputs robot actions, but text needs a "
                f"language model: give {LANGUAGE_MODEL_FOLDER}, or choose an environment of robots."
            )
        return str(folder)
    if folder.exists():
        raise MissingAssetError(
            f"{place}={path} is a file; give the folder that holds config.json and "
            "model.safetensors."
        )
    name = str(path)
    if is_only_path(name):
        raise MissingAssetError(
            f"{place}={path}: there is no such folder. Give {LANGUAGE_MODEL_FOLDER}, a hub id "
            "(for example Qwen/Qwen2.5-0.5B-Instruct), or assets/tiny_lm; "
            "`siirl warm-start env=math --output FOLDER` makes one."
        )
    return find_on_hub(name, place=place)


def _check_entries(folder: Path) -> None:
    """Refuse a named pipe, which would block its reader, and a broken link."""
    for entry in sorted(folder.iterdir()):
        if not entry.is_file() and not entry.is_dir():
            raise MissingAssetError(
                f"{entry} is not a readable file (a broken link, a pipe or a "
                "device). Copy the model's file there, or remove it."
            )


def read_config(source: str, *, trust_remote_code: bool, place: str = MODEL_PATH) -> Any:
    """The configuration of a causal language model, which `place` names.

    Raises:
        MissingAssetError: The source has no configuration.
        ConfigError: It belongs to another kind of model, or to one that stays quantised.
    """
    import_model_classes()
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if Path(source).is_dir() and not (Path(source) / CONFIG_FILE).is_file():
        raise MissingAssetError(
            f"{place}={source} holds no {CONFIG_FILE}. Give a folder with one, or the id of a hub "
            "model."
        )
    with damage_named(source, CONFIG_FILE):
        try:
            config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
        except OSError as error:
            raise MissingAssetError(
                f"{place}={source}: {first_line(error)} Give a folder with {CONFIG_FILE}, or the "
                "id of a hub model."
            ) from error
        except ValueError as error:
            trust = "trust_remote_code"
            remedy = f" If you trust it, set {MODEL}.{trust}=true." if trust in str(error) else ""
            raise ConfigError(
                f"{place}={source} holds no model type known to transformers: {first_line(error)}"
                f"{remedy}"
            ) from error
        quantisation = _quantisation(config)
        if quantisation is not None and quantisation.get("quant_method") not in DEQUANTISABLE:
            raise ConfigError(
                f"{place}={source} is quantised ({quantisation.get('quant_method', 'unnamed')}), "
                "but training needs weights in floating point: give the model before quantisation."
            )
    if takes_pictures(config):
        return config
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    brings_code = "AutoModelForCausalLM" in (config.to_dict().get("auto_map") or {})
    architectures = config.architectures or []
    if not brings_code and (known is None or (architectures and known not in architectures)):
        found = ", ".join(architectures) or config.model_type
        raise ConfigError(
            f"{place}={source} is not a causal language model: it is {found}. Text is generated "
            "token by token, from left to right; choose a model whose config.json names "
            f"{known or '...ForCausalLM'}."
        )
    return config


def takes_pictures(config: Any) -> bool:
    """Whether a configuration belongs to a model that takes pictures."""
    return config.model_type in VISION_MODEL_TYPES


def picture_model_config(source: str) -> Any | None:
    """The configuration of a model that takes pictures; None for other models."""
    from transformers import AutoConfig, PreTrainedConfig

    try:
        described, _ = PreTrainedConfig.get_config_dict(source)
    except OSError:
        return None
    if described.get("model_type") not in VISION_MODEL_TYPES:
        return None
    return AutoConfig.from_pretrained(source)


def model_class(config: Any) -> Any:
    """The class of transformers that builds the model of a configuration."""
    import_model_classes()
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    return AutoModelForImageTextToText if takes_pictures(config) else AutoModelForCausalLM


def read_causal_lm(source: str, config: Any, *, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    """The model with all its weights, in floating point also if they are quantised in the files.

    Raises:
        ConfigError: Quantised weights with scales that transformers would leave out.
        MissingAssetError: No weight file.
        CheckpointError: A truncated weight file, or one of another model.
    """
    quantisation = _quantisation(config)
    if quantisation is not None:
        config = copy.deepcopy(config)
        vars(config.get_text_config()).pop("quantization_config", None)
        # without the key it stays quantised if this machine has a GPU
        config.quantization_config = quantisation | {"dequantize": True}
    try:
        with quiet_transformers():
            loaded: Any = model_class(config).from_pretrained(
                source,
                config=config,
                dtype=dtype,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
            )
    except safetensors.SafetensorError as error:
        damage = _first_cut(source) or f"a weight file is truncated: {error}."
        raise CheckpointError(f"{MODEL_PATH}={source}: {damage}") from error
    except OSError as error:
        raise MissingAssetError(
            f"{MODEL_PATH}={source} has no readable weights: {first_line(error)}"
        ) from error
    except RuntimeError as error:
        raise CheckpointError(
            f"{source} holds weights of another model than its config.json: {first_line(error)}"
        ) from error
    causal_lm, report = loaded
    if quantisation is not None:
        del causal_lm._weight_conversions  # save_pretrained would quantise with them again
        for weight in causal_lm.parameters():  # MXFP4 becomes bfloat16, whatever `dtype` is
            if weight.dtype != torch.float32:
                weight.data = weight.data.to(dtype)
    unused = sorted(name for name in report["unexpected_keys"] if "weight_scale" in name)
    if unused:
        raise ConfigError(
            f"{MODEL_PATH}={source}: transformers does not apply the scale {unused[0]} of its "
            "quantised weights: give the model before quantisation."
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise CheckpointError(
            f"{source} lacks {len(missing)} weights of a {type(causal_lm).__name__}, the first of "
            f"them {missing[0]!r}; they would be random. Use the whole checkpoint, or a "
            "config.json that fits it."
        )
    return causal_lm


def _quantisation(config: Any) -> dict[str, Any] | None:
    """What config.json says of quantised weights, where transformers looks for it."""
    found = (
        getattr(part, "quantization_config", None) for part in (config, config.get_text_config())
    )
    return next((quantisation for quantisation in found if quantisation is not None), None)


def plan_causal_lm(
    source: str, config: Any, *, dtype: torch.dtype, trust_remote_code: bool
) -> tuple[Any, PlannedWeights] | None:
    """See `plan_model`; use `read_causal_lm` where it returns None."""
    found = plan_model(
        model_class(config), source, config, dtype=dtype, trust_remote_code=trust_remote_code
    )
    if found is not None:
        _read_generation_config(found[0], source)
    return found


def plan_adapted(
    source: str,
    config: Any,
    lora: LoraArguments,
    *,
    dtype: torch.dtype,
    trust_remote_code: bool,
) -> tuple[Any, PlannedWeights]:
    """The model of a checkpoint's folder with adapters, without memory for the weights below them,
    and the plan to read all.

    Raises:
        CheckpointError: Weights of another model.
    """
    causal_lm = _without_memory(
        model_class(config), config, dtype=dtype, trust_remote_code=trust_remote_code
    )
    _read_generation_config(causal_lm, source)
    add_adapters(causal_lm, lora)
    return causal_lm, plan_weights(causal_lm, Path(source), merges=False)


def plan_model(
    kind: Any, source: str, config: Any, *, dtype: torch.dtype, trust_remote_code: bool
) -> tuple[Any, PlannedWeights] | None:
    """A model of transformers without memory for its weights, and the plan to read them.

    None if transformers computes weights from those in the files (quantised ones, separate experts)
    instead of only renaming them, if it keeps some in float32 whatever `dtype` is, or if they are
    not in safetensors files: use `from_pretrained` for those.

    Args:
        kind: The class of transformers that builds the model from `config`.
        source: Folder or hub id.
        config: Configuration of the model.
        dtype: Type of the weights.
        trust_remote_code: Run code that comes with the model.

    Raises:
        UnscaledWeightsError: Quantised weights, which config.json does not describe.
        CheckpointError: Adapters of peft beside the weights.
    """
    folder = Path(source)
    if not folder.is_dir():
        with quiet_transformers():
            folder = download_weights(source)
    refuse_adapters(folder)
    if _quantisation(config) is not None or not weight_files(folder):
        return None
    model = _without_memory(kind, config, dtype=dtype, trust_remote_code=trust_remote_code)
    if dtype != torch.float32 and (
        model._keep_in_fp32_modules or model._keep_in_fp32_modules_strict
    ):
        return None
    own, renamed = model.state_dict(), _renaming(model)
    try:
        planned = plan_weights(
            model, folder, left_out=lambda name: renamed(name) not in own, renamed=renamed
        )
    except UnscaledWeightsError:
        raise
    except CheckpointError:
        return None
    return model, planned


def _without_memory(kind: Any, config: Any, *, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    """The model with its weights on the meta device; buffers have the values of
    `from_pretrained`.
    """
    with without_memory():
        model = kind.from_config(config, dtype=dtype, trust_remote_code=trust_remote_code)
    model.tie_weights()
    for part in model.modules():
        part._is_hf_initialized = False
    model.initialize_weights()  # computes buffers in float32; the constructor did in `dtype`
    return model


def _read_generation_config(causal_lm: Any, source: str) -> None:
    from transformers import GenerationConfig

    with contextlib.suppress(OSError):  # without such a file the model keeps its own settings
        causal_lm.generation_config = GenerationConfig.from_pretrained(source)


def _renaming(model: Any) -> Callable[[str], str]:
    """Maps names in files to the model's, as `from_pretrained` does; a weight that it computes from
    those in the files gets a name that the model does not have.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        rename_source_key,
    )

    steps = get_model_conversion_mapping(model)
    renamings = [step for step in steps if isinstance(step, WeightRenaming)]
    converters = [step for step in steps if isinstance(step, WeightConverter)]
    own, prefix = model.state_dict(), model.base_model_prefix

    def renamed(name: str) -> str:
        found, converted = rename_source_key(name, renamings, converters, prefix, own)
        if found not in own and name in own:
            found, converted = name, None
        return found if converted is None else f"{found} ({converted})"

    return renamed


def miniature(config: Any, *, trust_remote_code: bool) -> Any | None:
    """A random model of the same architecture, with one layer of each kind and a small vocabulary;
    None if the architecture has no such model.

    For tests of the architecture that need weights, but not trained ones: capped logits and
    recurrent layers show in it.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            small = _smaller(config)
            model = model_class(small).from_config(
                small, dtype=torch.float32, trust_remote_code=trust_remote_code
            )
        except Exception:  # noqa: BLE001 - a model's own code, for sizes that it may not expect
            return None
        _spread(model)
    return model.eval()


def _smaller(config: Any) -> Any:
    small = copy.deepcopy(config)
    text = small.get_text_config()
    kinds = list(getattr(text, "layer_types", None) or [""])
    layers = 1 + max(kinds.index(kind) for kind in set(kinds))
    if vars(text).get("layer_types"):  # others derive it from the number of a layer
        text.layer_types = kinds[:layers]
    text.num_hidden_layers = layers
    if takes_pictures(small):
        small.vision_config.depth = 1
    text.vocab_size = MINIATURE_TOKENS
    text.pad_token_id = text.bos_token_id = text.eos_token_id = None
    return small


@torch.no_grad()
def _spread(model: Any) -> None:
    """Draw matrices so large that the model is far from linear."""
    words = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    for weight in model.parameters():
        if weight.ndim > 1:
            gain = WORD_GAIN if id(weight) in words else GAIN
            weight.normal_(std=gain / weight.shape[-1] ** 0.5)


def _first_cut(source: str) -> str | None:
    """Error text for the first truncated weight file of a folder or a cached hub model.

    None if no file is truncated.
    """
    folder = Path(source) if Path(source).is_dir() else cached_folder(source)
    for file in [] if folder is None else weight_files(folder):
        try:
            check_safetensors(file)
        except CheckpointError as error:
            if not file.is_symlink():
                return str(error)
            # the cache holds links to its contents; only removing these causes a new download
            blob = file.resolve()
            return f"{error} It is in the Hub's cache: delete {blob}, and it is downloaded again."
    return None


def check_adapters(path: str | Path, lora: LoraArguments, *, trust_remote_code: bool) -> None:
    """Refuse adapters that a model cannot have, from its config.json only.

    No weight is read or made.

    Raises:
        MissingAssetError: No such folder or hub id.
        ConfigError: Layers or a rank that the model does not have.
    """
    config = read_config(source_of(path), trust_remote_code=trust_remote_code)
    with torch.device("meta"):
        adapted_layers(
            model_class(config).from_config(config, trust_remote_code=trust_remote_code), lora
        )


@contextlib.contextmanager
def damage_named(source: str, files: str) -> Iterator[None]:
    """Turn any error that transformers raises for damaged files into a CheckpointError, except a
    lack of memory or of a package.

    Args:
        source: Folder or hub id of the model.
        files: The files that are read.

    Raises:
        MissingAssetError: A package that the model needs cannot be imported.
    """
    try:
        yield
    except (SiirlError, MemoryError, torch.OutOfMemoryError):  # not a fault of the files
        raise
    except ImportError as error:
        raise MissingAssetError(
            f"{MODEL_PATH}={source} needs a package that cannot be imported: {first_line(error)} "
            "Install it in this environment."
        ) from error
    # tokenizers raises plain Exception; huggingface_hub and jinja2 derive theirs from it directly
    except Exception as error:
        raise CheckpointError(
            f"{MODEL_PATH}={source}: {files} cannot be loaded: {type(error).__name__}: "
            f"{first_line(error)} Copy or download the model's files again."
        ) from error


@functools.cache
def import_model_classes() -> None:
    """Import transformers' model classes as if scikit-learn and SciPy were not installed.

    Assisted decoding and object-detection losses, which are not used here, would import them and
    take 50 MB per process.
    """
    from transformers import utils

    there = {name: getattr(utils, name) for name in ("is_sklearn_available", "is_scipy_available")}
    vars(utils).update(dict.fromkeys(there, lambda: False))
    try:
        from transformers import modeling_utils  # noqa: F401
        from transformers.models.auto import modeling_auto  # noqa: F401
    finally:
        vars(utils).update(there)


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppress transformers' progress bars; otherwise every rank would print them."""
    from transformers.utils import logging

    drawn = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if drawn:
            logging.enable_progress_bar()


def first_line(error: Exception) -> str:
    """First line of an exception, with a full stop."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line if line.endswith(".") else f"{line}."
