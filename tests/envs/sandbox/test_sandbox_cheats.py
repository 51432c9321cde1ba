"""Programs that want the score without the answer. Expected outputs never enter the
sandbox, and the verdict is decided outside.
"""

import pytest
from trials import RIGHT, problem, verdict

# solve(v) = 7 v + 3, tested with 1, 2 and 10
CALL_CHEATS = {
    "a constant": "def solve(v): return 10.5",
    "its input": "def solve(v): return v",
    "leave early and well": "import os\nos._exit(0)",
    "leave in the call": "import os\ndef solve(v): os._exit(0)",
    "exit with status 0": "import sys\ndef solve(v): sys.exit(0)",
    "an exit that is an exception": "class Fine(SystemExit):\n    code = 0\ndef solve(v): raise Fine",
    "exit handlers": "import atexit, os\natexit.register(os._exit, 0)\ndef solve(v): 1 / 0",
    "the excepthook": "import os, sys\nsys.excepthook = sys.__excepthook__ = lambda *a: os._exit(0)\ndef solve(v): 1 / 0",
    "a signal to itself": "import os, signal\nsignal.signal(15, lambda *a: os._exit(0))\ndef solve(v): os.kill(os.getpid(), 15)",
    "equal to everything": "class Any(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
    "def solve(v): return Any(0)",
    "equal to everything, as a text": "class Any(str):\n    def __eq__(self, other): return True\ndef solve(v): return Any()",
    "true, which is 1": "def solve(v): return True",
    "not a number": "def solve(v): return float('nan')",
    "infinity": "def solve(v): return float('inf')",
    "every answer at once": "def solve(v): return list(range(100))",
    "the answer as a text": "def solve(v): return str(v * 7 + 3)",
    "the answer in a list": "def solve(v): return [v * 7 + 3]",
    "patched comparison": "import builtins, operator\nbuiltins.all = builtins.any = lambda *a: True\n"
    "operator.eq = lambda *a: True\ndef solve(v): return 0",
    "patched json": "import json\njson.dumps = lambda *a, **k: 'true'\njson.JSONEncoder.encode = lambda *a: 'true'\ndef solve(v): return 0",
    "patched json.loads": "import json\njson.loads = lambda *a: [0]\ndef solve(v): return v * 7",
    "import of the scorer": (
        "try:\n    import envs.sandbox.scoring as s\n    s.fault_of = lambda *a: None\nexcept "
        "ImportError: pass\ndef solve(v): return 0"
    ),
    "patched unittest": "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\ndef solve(v): return 0",
    "what lies in memory": (
        "import gc\nfound = [o for o in gc.get_objects() if isinstance(o, dict) and ('expected' "
        "in o or 'outputs' in o)]\n"
        "def solve(v): return found[0]['outputs'][0]"
    ),
    "a forged result": "import os\ndef solve(v):\n    os.write(3, b'true')\n    os._exit(0)",
    "a forged record of the supervisor": (
        "import os, struct\ndef solve(v):\n    for fd in range(16):\n"
        "        try: os.write(fd, struct.pack('!BiIII', 0, 0, 0, 2, 0) + b'10')\n"
        "        except OSError: pass\n    os._exit(0)"
    ),
    "two results": "import os\ndef solve(v):\n    os.write(3, b'10 ')\n    return 17",
    "a result of a thousand lists": "def solve(v):\n    x = []\n    for _ in range(900): x = [x]\n    return x",
    "broken JSON": "import os\ndef solve(v):\n    os.write(3, b'{' * 5000)\n    os._exit(0)",
    "nesting that a reader may not survive": "import os\ndef solve(v):\n    os.write(3, b'[' * 50000)\n    os._exit(0)",
    "a number of ten thousand digits": "import os\ndef solve(v):\n    os.write(3, b'9' * 10_000)\n    os._exit(0)",
    "bytes that are no text": "import os\ndef solve(v):\n    os.write(3, bytes(range(128, 256)))\n    os._exit(0)",
    "no function": "answer = 10",
    "a function that is a number": "solve = 10",
    "killing the supervisor": "import os\ndef solve(v):\n    os.kill(os.getppid(), 9)\n    return 0",
    "the supervisor's module": (
        "import sys\nfor name, module in list(sys.modules.items()):\n"
        "    if name != '__main__' and hasattr(module, 'FINISHED'): module.FINISHED = 9\n"
        "def solve(v): return 0"
    ),
    "the answers of the prompt's examples": "def solve(v): return {4: 31, 5: 38}.get(v)",
}
PRINT_CHEATS = {
    "a constant": "print('even')",
    "both answers": "print('even')\nprint('odd')",
    "both answers in a line": "print('even odd')",
    "nothing": "",
    "leave early and well": "import os\nos._exit(0)",
    "its input": "print(input())",
    "everything": "for n in range(1000): print(n, 'even', 'odd')",
    "the right answer and a failure": "print('odd' if int(input()) % 2 else 'even')\nraise SystemExit(1)",
    "the right answer and a crash": "import os\nprint('odd' if int(input()) % 2 else 'even', flush=True)\nos.abort()",
    "the right answer to the errors": "import sys\nprint('odd' if int(input()) % 2 else 'even', file=sys.stderr)",
    "the right answer to the supervisor": "import os\nos.write(3, (b'odd' if int(input()) % 2 else b'even'))",
}


@pytest.fixture(scope="module")
def parity():
    """Prints whether a number is odd or even."""
    return problem(
        inputs=["1\n", "2\n", "3\n", "4\n"], outputs=["odd\n", "even\n", "odd\n", "even\n"]
    )


@pytest.mark.parametrize("name", CALL_CHEATS)
def test_function_without_the_answer_passes_no_test(small, seven, name):
    result = verdict(small, seven, CALL_CHEATS[name])
    assert result.passed == 0, result
    assert not result.success


@pytest.mark.parametrize("name", PRINT_CHEATS)
def test_program_without_the_answer_is_not_a_success(small, parity, name):
    assert not verdict(small, parity, PRINT_CHEATS[name]).success


def test_honest_programs_pass(small, seven, parity):
    assert verdict(small, seven, RIGHT).success
    assert verdict(small, parity, "print('odd' if int(input()) % 2 else 'even')").success


SEARCH = """
import gc, re, sys
frame, seen = sys._getframe(), []
while frame:
    seen += [repr(frame.f_locals), repr(frame.f_globals)]
    frame = frame.f_back
seen += [repr(x) for x in gc.get_objects() if type(x) in (dict, list, tuple)] + [repr(x) for x in gc.get_objects() if type(x) is bytes]
found = sorted(set(re.findall("98" + "765[0-9]{4}", " ".join(seen))))
def solve(v): return found
"""


def test_no_answer_is_anywhere_in_the_sandbox(small):
    """The program searches everything that it can reach. It finds the inputs, so the search works."""
    answers = problem(inputs=[[1], [2]], outputs=[987650001, 987650002], function="solve")
    inputs = problem(
        inputs=[[987650003], [987650004]],
        outputs=[["987650003", "987650004"], []],
        function="solve",
    )
    assert verdict(small, answers, SEARCH).sentence == "test 1 of 2: wrong answer"
    assert (
        verdict(
            small, problem(inputs=[[1], [2]], outputs=[[], 987650002], function="solve"), SEARCH
        ).passed
        == 1
    )  # it found nothing
    assert verdict(small, inputs, SEARCH).passed == 1


def test_job_has_inputs_and_no_answers(seven):
    job = seven.job("pass")
    assert (job.inputs, job.function) == ([b"[1]", b"[2]", b"[10]"], "solve")
