"""`siirl export`: transformers and siirl read the exported folder, bit for bit."""

import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from envs.base import IMAGES, PROPRIOCEPTION, EnvSpec
from envs.registry import env_spec
from siirl.dag_worker.checkpoint import CheckpointManager
from siirl.engine.training.collectives import OneProcess
from siirl.engine.training.train_engine import TrainEngine
from siirl.evaluate import main as evaluate
from siirl.export import main
from siirl.models import load_policy
from siirl.models.language_model import LanguageModel, load_language_model
from siirl.models.openvla_checkpoint import load_openvla_oft
from siirl.models.pi_checkpoint import WORDS as EMBEDDING
from siirl.models.policy_loader import build_policy
from siirl.models.tiny_lm import tiny_tokenizer
from siirl.params.model_args import LoraArguments
from siirl.params.parser import parse_config, to_yaml
from siirl.train import main as train
from tests.models.tiny_models import move_adapters, tiny_causal_lm
from tests.models.tiny_openvla import know_tiny_encoders, write_checkpoint

IDS = torch.tensor([[5, 9, 2, 30]])


def write_run(folder: Path, module: Any, *words: str, step: int = 2) -> Path:
    """A run folder with one checkpoint of `module`, as training leaves it."""
    (folder / "config.yaml").parent.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(to_yaml(parse_config(words)))

    def describe(unfinished: Path) -> None:
        if isinstance(module, LanguageModel):
            module.describe(unfinished / "actor")
            tiny_tokenizer().save_pretrained(unfinished / "actor")
        else:
            module.describe(unfinished / "actor", notes={})
            module.describe_adapters(unfinished / "actor")

    def score(*_: Any) -> Any:
        raise AssertionError("nothing is trained")

    engine = TrainEngine(module=module, scorer=score, optim=None).initialize()
    checkpoints = CheckpointManager(
        folder=folder / "checkpoints",
        engines={"actor": engine},
        ranks=OneProcess(),
        export=describe,
    )
    checkpoints.save(step=step, state={})
    return folder


def language_model(kind: str, **options: Any) -> LanguageModel:
    return LanguageModel(tiny_causal_lm(kind), **options)


def card_of(folder: Path) -> ModelCard:
    return ModelCard.load(folder / "README.md")


def logits(folder: Path) -> torch.Tensor:
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    with torch.no_grad():
        return model.eval()(IDS).logits


def export(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.mark.parametrize("kind", ["tied", "separate"])
def test_transformers_reads_an_exported_language_model_with_equal_logits(
    kind: str, tmp_path: Path
) -> None:
    model = language_model(kind)
    with torch.no_grad():
        expected = model.causal_lm(IDS).logits
    run = write_run(tmp_path / "run", model, "pipeline=grpo", "env=math")
    assert export(run, "--output", tmp_path / "out", "--file-gb", "1e-5") == 0
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 1
    assert torch.equal(logits(tmp_path / "out"), expected)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("12+34=").input_ids == tiny_tokenizer()("12+34=").input_ids


@pytest.mark.parametrize("kind", ["tied", "learnt positions"])
def test_adapters_are_merged(kind: str, tmp_path: Path) -> None:
    tiny_causal_lm(kind).save_pretrained(tmp_path / "base")
    lora = LoraArguments(rank=2)
    model = load_language_model(tmp_path / "base", lora=lora)
    move_adapters(model)
    with torch.no_grad():
        expected = model.causal_lm(IDS).logits
    run = write_run(tmp_path / "run", model, "pipeline=grpo", "env=math")
    actor = run / "checkpoints" / "step_00000002" / "actor"
    assert (actor / "frozen.safetensors").is_file()
    with torch.no_grad():
        assert torch.equal(load_language_model(actor).causal_lm(IDS).logits, expected)
    assert export(run, "--output", tmp_path / "out") == 0
    # float32 rounds both ways differently: each was within 1e-5 of the logits in float64
    torch.testing.assert_close(logits(tmp_path / "out"), expected, atol=3e-5, rtol=1e-5)
    assert not (tmp_path / "out" / "lora.json").exists()


def test_transformers_reads_a_checkpoint_with_frozen_weights_in_a_file_of_their_own(
    tmp_path: Path,
) -> None:
    model = language_model("tied")
    model.causal_lm.model.layers[0].requires_grad_(False)
    with torch.no_grad():
        expected = model.causal_lm(IDS).logits
    run = write_run(tmp_path / "run", model, "pipeline=grpo", "env=math")
    actor = run / "checkpoints" / "step_00000002" / "actor"
    assert not (actor / "model.safetensors").exists()
    assert torch.equal(logits(actor), expected)


def test_a_type_is_written_and_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", language_model("tied"), "pipeline=grpo", "env=math")
    assert export(run, "--output", tmp_path / "out", "--dtype", "bfloat16") == 0
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        types = {file.get_tensor(name).dtype for name in file.keys()}
    assert types == {torch.bfloat16}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


def test_the_card_has_the_results_up_to_the_checkpoint_the_command_and_the_data(
    tmp_path: Path,
) -> None:
    run = write_run(
        tmp_path / "run",
        language_model("tied"),
        *("pipeline=grpo", "env=math", "data.train_files=[hf://openai/gsm8k/main,mine.jsonl]"),
        "actor_rollout_ref.model.path=Qwen/Qwen3-0.6B",
    )
    rows = [
        {"step": step, "val/all/successes": right, "val/all/episodes": 100}
        for step, right in ((0, 10), (2, 60), (3, 99))
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    origin = {"command": "siirl train pipeline=grpo env=math", "versions": {"torch": "2.13.0"}}
    (run / "origin.json").write_text(json.dumps(origin))
    assert export(run, "--output", tmp_path / "mine", "--license", "apache-2.0") == 0
    card = card_of(tmp_path / "mine")
    head = card.data.to_dict()
    assert head["license"] == "apache-2.0"
    assert head["base_model"] == "Qwen/Qwen3-0.6B"
    assert head["datasets"] == ["openai/gsm8k"]
    assert [(each.metric_type, each.metric_value) for each in card.data.eval_results] == [
        ("success_rate", 0.6)
    ]
    assert "| all | 10.0 % [5.5, 17.4] (10/100) | 60.0 % [50.2, 69.1] (60/100) |" in card.text
    assert "siirl train pipeline=grpo env=math" in card.text
    assert "torch 2.13.0" in card.text
    assert "`mine.jsonl`" in card.text
    config = yaml.safe_load((tmp_path / "mine" / "siirl_config.yaml").read_text())
    assert config["env"]["name"] == "math"


def test_the_commands_on_a_card_evaluate_and_train_a_control_policy(tmp_path: Path) -> None:
    """The policy is chosen from config.json; the words name the environment's id."""
    env = ("env=gymnasium", "env.id=CartPole-v1")
    policy = build_policy(
        "control_policy",
        path=None,
        spec=env_spec("gymnasium", id="CartPole-v1"),
        seed=0,
        options={"width": 8},
    )
    run = write_run(tmp_path / "run", policy, "pipeline=ppo", *env)
    (run / "metrics.jsonl").touch()
    assert export(run, "--output", tmp_path / "mine") == 0
    text = card_of(tmp_path / "mine").text
    assert "A policy for control tasks (`control_policy`)" in text
    commands = [line.split()[1:] for line in text.splitlines() if "FOLDER" in line]
    (evaluated, trained) = (
        [word.replace("FOLDER", str(tmp_path / "mine")) for word in words] for words in commands
    )
    few = ("cluster=local", "env.num_servers=1", f"trainer.output_dir={tmp_path / 'out'}")
    once = ("trainer.val_episodes=1", "trainer.record_val_episodes=0", "actions=argmax")
    assert evaluated[0] == "evaluate" and evaluate([*evaluated[1:], *few, *once]) == 0
    assert trained[0] == "train" and train(["--plan", *trained[1:], *few]) == 0


def test_the_card_names_the_owners_graph_and_what_its_command_needs(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        language_model("tied"),
        *("dag.workflow_file=mine.yaml", "env=math", "reward.name=brevity:score"),
        "custom_reward_function.path=own/grade.py",
    )
    node = {"id": "a", "function": "my_nodes:brevity", "after": [], "skipped": None}
    shipped = node | {"id": "b", "function": "siirl.dag_worker.stages:generate"}
    nodes = [each | {"requires": [], "provides": []} for each in (node, shipped)]
    (run / "graph.json").write_text(json.dumps({"graph": "two branches", "nodes": nodes}))
    (run / "origin.json").write_text(json.dumps({"command": "siirl train", "versions": {}}))
    assert export(run, "--output", tmp_path / "out") == 0
    text = card_of(tmp_path / "out").text
    assert "own graph `two branches` of `mine.yaml` on environment `math`" in text
    needed = "`mine.yaml`, `own/grade.py`, `module brevity`, `module my_nodes`"
    assert f"The command needs its owner's {needed}, which are not in this folder." in text


def test_a_policy_folder_is_exported_without_results(tmp_path: Path) -> None:
    assert export("assets/tiny_vla", "--output", tmp_path / "out") == 0
    before, after = (
        load_policy(folder).state_dict() for folder in ("assets/tiny_vla", tmp_path / "out")
    )
    torch.testing.assert_close(before, after, rtol=0, atol=0)
    head = card_of(tmp_path / "out").data.to_dict()
    assert (head["license"], head["pipeline_tag"]) == ("unknown", "robotics")


def spec() -> EnvSpec:
    spaces = {
        IMAGES: gymnasium.spaces.Box(0, 255, (2, 64, 64, 3), np.uint8),
        PROPRIOCEPTION: gymnasium.spaces.Box(-1, 1, (8,)),
    }
    return EnvSpec(
        "robot",
        ("only",),
        gymnasium.spaces.Dict(spaces),
        gymnasium.spaces.Box(-1, 1, (7,), np.float32),
        10,
    )


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("of_run", [False, True])
def test_an_openvla_comes_back_in_the_published_layout_bit_for_bit(
    of_run: bool, separate: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_tiny_encoders(monkeypatch)
    published = write_checkpoint(tmp_path / "published", state=separate, head=separate)
    source = published
    if of_run:
        policy = load_openvla_oft(published, spec()).float()
        source = write_run(
            tmp_path / "run", policy, f"actor_rollout_ref.model.path={published}", "env=libero"
        )
    out = tmp_path / "out"
    words = ("--dtype", "bfloat16", "--file-gb", "0.002")
    assert export(source, "--output", out, *words) == 0
    assert stored(out) == stored(published)
    names = [file.name for file in published.glob("*.pt")]
    assert sorted(file.name for file in out.glob("*.pt")) == sorted(names)
    assert len(names) == 2 * separate
    for name in names:
        before, after = (torch.load(place / name, weights_only=True) for place in (published, out))
        assert before.keys() == after.keys()
        assert all(torch.equal(before[each].bfloat16(), after[each]) for each in before)
    load_openvla_oft(out, spec())


def stored(folder: Path) -> dict[str, tuple[torch.dtype, bytes]]:
    found = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():
                tensor = tensors.get_tensor(name)
                found[name] = (
                    tensor.dtype,
                    tensor.contiguous().view(torch.uint8).numpy().tobytes(),
                )
    return found


def test_an_openvla_without_its_published_weights_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    know_tiny_encoders(monkeypatch)
    published = write_checkpoint(tmp_path / "published")
    policy = load_openvla_oft(published, spec())
    run = write_run(tmp_path / "run", policy, "actor_rollout_ref.model.path=null", "env=libero")
    assert export(run, "--output", tmp_path / "out") == 2
    assert "Name the published checkpoint by --base FOLDER." in capsys.readouterr().err
    assert {entry.name for entry in tmp_path.iterdir()} == {"published", "run"}
    assert export(run, "--output", tmp_path / "out", "--base", published) == 0


def test_adapters_of_a_vla_are_merged(tmp_path: Path) -> None:
    policy = load_policy("assets/tiny_vla")
    policy.adapt(LoraArguments(rank=2), seed=0)
    move_adapters(policy, by=0.01)
    seen = {
        "pixel_values": torch.full((1, 1, 64, 64, 3), 100, dtype=torch.uint8),
        "proprioception": torch.ones(1, 4),
        "instruction_ids": torch.tensor(policy.tokenize_instruction("open"))[None],
    }
    expected = policy(**seen).logits
    run = write_run(tmp_path / "run", policy, "env=metaworld")
    assert export(run, "--output", tmp_path / "out") == 0
    after = load_policy(tmp_path / "out")(**seen).logits
    torch.testing.assert_close(after, expected, rtol=1e-4, atol=1e-3)
    assert not torch.allclose(load_policy("assets/tiny_vla")(**seen).logits, expected, atol=0.1)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nowhere", "--output", "{folder}/out"), "the folder does not exist"),
        (("assets/tiny_vla", "--output", "{folder}"), "is not empty: name a new folder"),
        (("", "--output", "{folder}/out"), "RUN is empty: name a folder."),
        (
            ("assets/tiny_lm", "--output", "{folder}/out", "--base", "assets"),
            "--base assets is read for an OpenVLA-OFT only",
        ),
        (
            ("assets/vjepa_tiny", "--output", "{folder}/out"),
            "RUN=assets/vjepa_tiny is a video encoder (reward.encoder), not a policy",
        ),
        (
            ("assets/tiny_vla", "--output", "/dev/null"),
            "--output /dev/null is a file: name a new folder.",
        ),
    ],
)
def test_an_impossible_export_is_refused(
    words: tuple[str, ...], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").touch()
    assert export(*(word.format(folder=tmp_path) for word in words)) == 2
    assert sentence in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine.txt"]


def test_a_place_that_cannot_be_written_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert export("assets/tiny_vla", "--output", "/proc/out") == 1
    assert "siirl: --output /proc/out cannot be written: No such file" in capsys.readouterr().err


def test_a_classifier_is_not_exported_as_a_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "classifier"
    shutil.copytree("assets/tiny_lm", folder)
    described = json.loads((folder / "config.json").read_text())
    described["architectures"] = ["Qwen3ForSequenceClassification"]
    (folder / "config.json").write_text(json.dumps(described))
    assert export(str(folder), "--output", str(tmp_path / "out")) == 2
    assert (
        f"RUN={folder} is not a causal language model: it is Qwen3ForSequenceClassification"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", '{"version": "1.0"'),
        ("tokenizer_config.json", '{"eos_token": "\\ud800"}'),
        ("config.json", '{"model_type": "qwen3", "note": "\\ud800"}'),
    ],
)
def test_a_damaged_file_beside_the_weights_is_not_exported(
    file: str, content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    shutil.copytree("assets/tiny_lm", model)
    (model / file).write_text(content)
    assert export(str(model), "--output", str(tmp_path / "out")) == 2
    assert f"{model / file} is damaged." in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


MODELS = Path(__file__).parent / "models"
LEROBOT = {
    "smolvla": MODELS / "smolvla" / "checkpoint",
    "pi0": MODELS / "pi" / "pi0" / "checkpoint",
    "pi05": MODELS / "pi" / "pi05" / "checkpoint",
}


@pytest.mark.parametrize("model", LEROBOT)
def test_an_exported_lerobot_policy_has_its_files_and_names_with_adapters_merged(tmp_path, model):
    images = gymnasium.spaces.Box(0, 255, (2, 48, 64, 3), np.uint8)
    spaces = {IMAGES: images, PROPRIOCEPTION: gymnasium.spaces.Box(-1, 1, (8,))}
    arm = EnvSpec(
        "arm",
        ("only",),
        gymnasium.spaces.Dict(spaces),
        gymnasium.spaces.Box(-1, 1, (7,), np.float32),
        10,
    )
    start = LEROBOT[model]

    def load(folder):
        options = {"noise": "learnt"}
        return build_policy(model, path=str(folder), spec=arm, seed=0, options=options)

    policy = load(start)
    policy.adapt(LoraArguments(rank=2), seed=0)
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.02)
    run = write_run(tmp_path / "run", policy, f"model={model}")
    assert export(run, "--output", tmp_path / "out", "--file-gb", "0.00001") == 0
    there = {file.relative_to(start) for file in start.rglob("*") if file.is_file()}
    found = {file.relative_to(tmp_path / "out") for file in (tmp_path / "out").rglob("*.*")}
    assert there <= found
    with (
        safe_open(start / "model.safetensors", framework="pt") as before,
        safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as after,
    ):
        # of pi0 and pi0.5 the words are stored once, under the name of the head
        assert set(before.keys()) - {EMBEDDING} == set(after.keys())
    again = load(tmp_path / "out")
    seen = {
        "pixel_values": torch.zeros(1, 2, 48, 64, 3, dtype=torch.uint8),
        "proprioception": torch.ones(1, 8),
        "instruction_ids": torch.from_numpy(policy.tokenize_instruction("push the plate"))[None],
    }
    with torch.no_grad():
        one, other = (each(**seen).mode() for each in (policy, again))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert model in str(card_of(tmp_path / "out"))


@pytest.mark.parametrize(
    ("flag", "value", "sentence"),
    [
        ("--file-gb", "1e300", "1e300 must be a number above 0, at most 1e+06"),
        ("--license", "", "'' is not an identifier such as apache-2.0"),
        ("--license", "mit\ntags: [x]", "is not an identifier such as apache-2.0"),
        ("--output", "", "argument --output: is empty: name a file or folder."),
    ],
)
def test_an_impossible_flag_is_refused(
    flag: str, value: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["assets/tiny_lm", "--output", "out", flag, value])
    assert sentence in capsys.readouterr().err
