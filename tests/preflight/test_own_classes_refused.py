"""Classes of the user's own that do not import, fit or build: refused with the place and the line
of code, before any process starts.
"""

import itertools
import time
from pathlib import Path

import pytest

from envs import spec_process
from envs.registry import env_spec
from siirl.terminal.exit_status import REFUSED
from siirl.train import main

GYM = ("--plan", "pipeline=grpo", "env=gymnasium", "env.id=CartPole-v1")
POLICY = "actor_rollout_ref.model.policy"
CUSTOM = ("--plan", "pipeline=grpo", "env=custom")
GOOD_POLICY = """
import torch
from siirl.models import ActionTokenizer, Policy
class Constant(Policy):
    def __init__(self, spec, path, width=1):
        super().__init__()
        self.chunk_length, self.action_tokenizer = 1, ActionTokenizer.for_space(spec.action_space, bins=2)
        self.bias = torch.nn.Parameter(torch.zeros(width))
    def tokenize_instruction(self, text): ...
    def forward(self, *, pixel_values, proprioception, instruction_ids): ...
"""
WIDE_POLICY = f"""{GOOD_POLICY}
class Wide(Constant):
    def __init__(self, spec, path):
        super().__init__(spec, path)
        self.action_tokenizer = ActionTokenizer(bins=3, low=(), high=())
"""
GOOD_ENV = """
from envs.base import Environment
class Env(Environment):
    async def reset(self, **arguments): ...
    async def step(self, action): ...
    def render(self): ...
"""
HOSTILE_ENV = """
import ctypes, dataclasses, os, signal
from tests.main_job.bad_envs import StillEnv
still = StillEnv()
def flood(text):
    for descriptor in range(3, 30):
        try:
            os.write(descriptor, text)
        except OSError:
            pass
    signal.pause()
class Env(StillEnv):
    def __init__(self):
"""
CHANGED = "self.spec = dataclasses.replace(still.spec"
FLOOD = "flood("
SOMETHING_ELSE = "returned something else"
NUMBERS = itertools.count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a user's module and returns its name, which no other test has imported."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text: str) -> str:
        name = f"own_module_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


@pytest.mark.parametrize(
    ("text", "reference", "expected"),
    [
        (
            "import no_such_package",
            "make",
            "raised ModuleNotFoundError: No module named 'no_such_package'",
        ),
        ("def make(spec, path):\n    retrun 1", "make", "raised SyntaxError"),
        ("frobnicate()", "make", "raised NameError: name 'frobnicate' is not defined"),
        ("x = 1", "make", "has no 'make'"),
        (
            "make = 3",
            "make",
            "is of type int and cannot be called: it is called with (spec, path, **options)",
        ),
        ("def make(): ...", "make", "its signature () does not take: too many positional"),
        (
            "def make(spec, path): return [][1]",
            "make",
            "raised IndexError: list index out of range",
        ),
        ("def make(spec, path): return 7", "make", "made a int; it must be a siirl.models.Policy"),
        (
            "from siirl.models import Policy\nclass Half(Policy): ...",
            "Half",
            "abstract class Half with abstract methods forward",
        ),
    ],
)
def test_a_policy_that_cannot_be_made_is_refused(
    module, text: str, reference: str, expected: str, capsys
) -> None:
    name = module(text)
    assert main([*GYM, f"{POLICY}={name}:{reference}"]) == REFUSED
    captured = capsys.readouterr()
    assert f"{POLICY}={name}:{reference}" in captured.err
    assert expected in captured.err
    assert captured.out == ""


def test_the_message_names_the_line_of_code(module, capsys) -> None:
    name = module("def make(spec, path):\n    width = None\n    return width + 1\n")
    assert main([*GYM, f"{POLICY}={name}:make"]) == REFUSED
    assert f"{name}.py, line 3)" in capsys.readouterr().err


def test_options_that_it_does_not_take_are_refused_and_others_pass(module, capsys) -> None:
    name = module(GOOD_POLICY)
    words = [*GYM, f"{POLICY}={name}:Constant"]
    assert main([*words, "actor_rollout_ref.model.options={depth: 3}"]) == REFUSED
    message = capsys.readouterr().err
    assert "got an unexpected keyword argument 'depth'" in message
    assert "options are {depth: 3}, perhaps of a trainer preset: " in message
    assert main([*words, "actor_rollout_ref.model.options={width: 2}"]) == 0


def test_options_of_a_preset_that_a_shipped_policy_does_not_take_are_refused(capsys) -> None:
    words = [
        *("--plan", "pipeline=ppo", "env=gymnasium", "env.id=Pendulum-v1"),
        *("trainer=mujoco_control", f"{POLICY}=tiny_vla"),
    ]
    assert main(words) == REFUSED
    message = capsys.readouterr().err
    assert "Unknown option (actor_rollout_ref.model.options) 'normalize'" in message
    assert "options are {normalize: true}, perhaps of a trainer preset: " in message
    assert main([*words, "actor_rollout_ref.model.options={widht: 3}"]) == REFUSED
    assert "trainer preset" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("methods", "missing"),
    [
        (
            "shape = tempered = mode = imitation_loss = entropy = None",
            "lacks log_prob, sample: define each as siirl.models.ActionDistribution describes.",
        ),
        (
            "shape = tempered = mode = imitation_loss = sample = entropy = None",
            "lacks log_prob: define it as siirl.models.ActionDistribution describes.",
        ),
    ],
)
def test_a_distribution_without_one_of_its_methods_is_refused_with_their_names(
    module, methods: str, missing: str, capsys
) -> None:
    text = f"""{GOOD_POLICY}
from siirl.models import ActionDistribution
class Own(ActionDistribution):
    {methods}
Constant.distribution = Own
"""
    assert main([*GYM, f"{POLICY}={module(text)}:Constant"]) == REFUSED
    assert f"its distribution Own {missing}\n" in capsys.readouterr().err


def test_a_policy_whose_actions_leave_the_environments_range_is_refused(module, capsys) -> None:
    name = module(WIDE_POLICY)
    assert main([*GYM, f"{POLICY}={name}:Wide"]) == REFUSED
    message = capsys.readouterr().err
    assert (
        "can act with 2, which is outside the action space Discrete(2) of environment 'gymnasium'"
        in message
    )
    assert "ActionTokenizer.for_space" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("frobnicate()", "raised NameError: name 'frobnicate' is not defined"),
        ("def make(): ...", "is called with (config.reward), which its signature () does not take"),
    ],
)
def test_a_reward_that_cannot_be_made_is_refused(module, text: str, expected: str, capsys) -> None:
    name = module(text)
    assert main([*GYM, "reward.encoder=null", f"reward.name={name}:make"]) == REFUSED
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("frobnicate()", "raised NameError: name 'frobnicate' is not defined"),
        ("class Env: ...", "is not a subclass of envs.base.Environment"),
        (
            "from envs.base import Environment\nclass Env(Environment): ...",
            "does not define render, reset, step, which an envs.base.Environment must have (",
        ),
        (
            f"{GOOD_ENV}\n    def __init__(self): self.spec = {{}}['spec']",
            "raised KeyError: 'spec'",
        ),
    ],
)
def test_an_environment_that_cannot_be_made_is_refused(
    module, text: str, expected: str, capsys
) -> None:
    name = module(text)
    assert main([*CUSTOM, f"env.name={name}:Env"]) == REFUSED
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("constructor", "expected"),
    [
        ("os._exit(0)", "it ended with status 0"),
        ("os._exit(3)", "it ended with status 3"),
        ("raise SystemExit(4)", "it ended with status 4"),
        ("raise KeyboardInterrupt", "making it raised KeyboardInterrupt ("),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "it was ended by SIGSEGV"),
        ("ctypes.string_at(0)", "it was ended by SIGSEGV"),
        ("self.spec = 7", "has a spec of type int ("),
        ("pass", "has no spec ("),
        (
            "self.spec = still.spec; self.spec = dataclasses.replace(self.spec, check_row=lambda "
            "row: None)",
            "raised",
        ),
        (
            f"{CHANGED}, tasks=(1, 2))",
            "EnvSpec.tasks must be a tuple of at least one task's name, each once, got (1, 2).",
        ),
        (
            f"{CHANGED}, tasks=None)",
            "EnvSpec.tasks must be a tuple of at least one task's name, each once, got None.",
        ),
        (
            f"{CHANGED}, tasks=())",
            "EnvSpec.tasks must be a tuple of at least one task's name, each once, got ().",
        ),
        (
            f"{CHANGED}, tasks=('left', 'left'))",
            "at least one task's name, each once, got ('left', 'left').",
        ),
        (
            f"{CHANGED}, max_episode_steps=-1)",
            "EnvSpec.max_episode_steps must be a whole number of at least 1, got -1.",
        ),
        (
            f"{CHANGED}, max_episode_steps=1e300)",
            "EnvSpec.max_episode_steps must be a whole number of at least 1, got 1e+300.",
        ),
        (
            f"{CHANGED}, max_episode_steps='ten')",
            "EnvSpec.max_episode_steps must be a whole number of at least 1, got 'ten'.",
        ),
        (f"{CHANGED}, action_space=2)", "EnvSpec.action_space must be a gymnasium.Space, got 2."),
        (
            "self.spec = still.spec; vars(self.spec)['tasks'] = None",
            "EnvSpec.tasks must be a tuple of at least one",
        ),
        (
            "self.spec = still.spec; vars(self.spec.memory)['server'] = -1e12",
            "SimulatorMemory.server must be a number of bytes from 0 to 1e+15, got -10000",
        ),
        (f"{FLOOD}b'garbage\\n')", "returned something other than a result: b'garbage"),
        (f"{FLOOD}b'7\\n')", "returned something other than a result"),
        (f'{FLOOD}b\'{{"raised": "x"}}\\n\')', f"{SOMETHING_ELSE} (x)"),
        (f"{FLOOD}b'{{\"result\": 7}}\\n')", f"{SOMETHING_ELSE} (7)"),
        (
            f'{FLOOD}b\'{{"result": {{"spec": "AAAA"}}}}\\n\')',
            f"{SOMETHING_ELSE} (Error -3 while decompressing",
        ),
        (
            f'{FLOOD}b\'{{"result": {{"spec": "eAFzdHR0BAACjgEF"}}}}\\n\')',
            f"{SOMETHING_ELSE} (UnpicklingError",
        ),
        (
            f'{FLOOD}b\'{{"result": {{"spec": "eAFrYPFm1wMAA7IBBQ=="}}}}\\n\')',
            f"{SOMETHING_ELSE} (an object of type int)",
        ),
        (
            "raise type('Odd', (Exception,), {})('no base of ours')",
            "making it raised Odd: no base of ours (",
        ),
    ],
)
def test_an_environment_that_ends_its_process_is_refused(
    module, constructor: str, expected: str, capfd
) -> None:
    name = module(f"{HOSTILE_ENV}        {constructor}\n")
    assert main([*CUSTOM, f"env.name={name}:Env"]) == REFUSED
    message = capfd.readouterr().err
    assert "Traceback" not in message  # of the child process
    assert f"env.name={name}:Env: " in message
    assert expected in message


def test_an_own_class_with_an_id_is_not_called_a_gymnasium_environment(module, capfd) -> None:
    own = HOSTILE_ENV.replace("__init__(self)", "__init__(self, id)")
    name = module(f"{own}        os._exit(7)\n")
    assert main([*CUSTOM, f"env.name={name}:Env", "env.id=hall"]) == REFUSED
    message = capfd.readouterr().err
    assert "it ended with status 7. Test it alone with envs.checker.check_env; move slow" in message
    assert "Gymnasium" not in message


def test_a_gymnasium_environment_that_ends_its_process_may_have_done_so_in_its_first_step(
    module,
) -> None:
    name = module("import os\nos._exit(7)\n")
    with pytest.raises(
        spec_process.SpecUnknown, match=r"status 7\. That includes the first reset and step"
    ):
        env_spec("gymnasium", id=f"{name}:Dock-v0")


def test_an_environment_that_hangs_is_refused_and_ended(
    module, tmp_path: Path, capsys, caplog, monkeypatch
) -> None:
    """The deadline is that of imports from a cold disk; 20 s are for this test."""
    monkeypatch.setattr(spec_process, "DEADLINE_S", 20.0)
    monkeypatch.setattr(spec_process, "PATIENCE_S", 1.0)
    name = module(
        f"{HOSTILE_ENV}        open('{tmp_path}/pid', 'w').write(str(os.getpid()))\n        "
        "signal.pause()\n"
    )
    assert main([*CUSTOM, f"env.name={name}:Env"]) == REFUSED
    assert (
        "in a child process failed: no answer within 20 s. Test it alone with "
        "envs.checker.check_env" in capsys.readouterr().err
    )
    assert f"Waiting for the constructor of {name}:Env, for at most 20 s." in caplog.text
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()


def test_an_environment_that_prints_and_leaves_a_child_is_described(
    module, tmp_path: Path, capfd
) -> None:
    name = module(
        f"""{HOSTILE_ENV}
        print('{{"result": "garbage"}}' * 1000, flush=True)
        if os.fork() == 0:
            open('{tmp_path}/pid', 'w').write(str(os.getpid()))
            signal.pause()
        while not os.path.exists('{tmp_path}/pid') or not open('{tmp_path}/pid').read():
            pass
        self.spec = still.spec
"""
    )
    assert env_spec(f"{name}:Env").tasks == ("wait",)
    assert "garbage" not in capfd.readouterr().out
    child, until = int((tmp_path / "pid").read_text()), time.monotonic() + 60
    while is_alive(child) and time.monotonic() < until:
        # a killed process ends when it is scheduled
        time.sleep(0.05)
    assert not is_alive(child)


def is_alive(pid: int) -> bool:
    """Whether there is a process with this number; a zombie has ended."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_a_module_that_ends_the_process_when_it_is_imported_is_refused(module, capsys) -> None:
    name = module("import os\nos._exit(5)\n")
    assert main([*CUSTOM, f"env.name={name}:Env"]) == REFUSED
    assert "it ended with status 5" in capsys.readouterr().err


def test_a_spec_with_bounds_of_many_megabytes_is_read(module) -> None:
    """Four cameras of 1280 x 720 pixels, whose bounds have 22 MB."""
    name = module(
        f"{HOSTILE_ENV}        import gymnasium\n        pictures = gymnasium.spaces.Box(0, 255, (4, 720, 1280, 3), 'uint8')"
        "\n        space = gymnasium.spaces.Dict({'images': pictures})\n        self.spec = "
        "dataclasses.replace(still.spec, observation_space=space)\n"
    )
    spec = env_spec(f"{name}:Env")
    assert spec.observation_space["images"].shape == (4, 720, 1280, 3)


def test_an_environments_spec_is_read_once(module, tmp_path: Path) -> None:
    """A command checks, plans and starts; a spec is no object that these share."""
    name = module(
        f"{HOSTILE_ENV}        open('{tmp_path}/asked', 'a').write('x')\n        self.spec = "
        "still.spec\n"
    )
    first, second = (env_spec(f"{name}:Env") for _ in range(2))
    assert first == second and first.action_space is not second.action_space
    assert (tmp_path / "asked").read_text() == "x"


def test_a_plan_shows_the_first_letters_of_a_long_task(module, capsys) -> None:
    name = module(HOSTILE_ENV + f"        {CHANGED}, tasks=('x' * 100_000,))\n")
    assert main([*CUSTOM, f"env.name={name}:Env", "reward=return"]) == 0
    captured = capsys.readouterr()
    assert "cannot be rendered here" in captured.err.replace("\n", " ")
    assert len(captured.out) + len(captured.err) < 10_000
