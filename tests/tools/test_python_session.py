"""Sessions of the tool ``python``: no variable, definition or setting is lost without a note."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentgym.envs.code.workspace import content_key
from agentgym.sandboxes import namespaces
from agentgym.sandboxes.ladder import open_sandbox
from agentgym.tools.python import PythonTool

RUNGS = [
    "process",
    pytest.param(
        "namespaces", marks=pytest.mark.skipif(bool(namespaces.why_not()), reason="namespaces do not work here")
    ),
    pytest.param("docker", marks=pytest.mark.docker),
]


@pytest.fixture(scope="module", params=RUNGS)
def tools(request: pytest.FixtureRequest) -> Iterator[PythonTool]:
    made = PythonTool()
    with open_sandbox(request.param) as made.sandbox:
        yield made


KEPT = {
    "a named tuple": (
        ["total = 41", "from collections import namedtuple\nP = namedtuple('P', 'x y')\np = P(1, 2)"],
        "total + p.y",
        "43",
    ),
    "a class under if": (
        ["total = 41\nif True:\n    class A:\n        n = 1\na = A()", "b = A()"],
        "total + a.n + b.n",
        "43",
    ),
    "a function under try": (
        ["try:\n    import json\n    def f(): return json.loads('42')\nexcept ImportError:\n    f = None"],
        "f()",
        "42",
    ),
    "the branch that ran": (["if 1 > 2:\n    def f(): return 1\nelse:\n    def f(): return 2"], "f()", "2"),
    "the other branch": (["if 1 < 2:\n    def f(): return 1\nelse:\n    def f(): return 2"], "f()", "1"),
    "a function in a loop": (["for k in range(3):\n    def g(): return k"], "g()", "2"),
    "made classes": (["from enum import Enum", "C = Enum('C', 'a b')\nd = [C.b]"], "d[0].value", "2"),
    "another folder": (
        ["import os\ntotal = 41; os.mkdir('sub')", "os.chdir('sub'); total = 100; extra = 5"],
        "total + extra",
        "105",
    ),
    "decimal's precision": (
        ["from decimal import Decimal, getcontext\ngetcontext().prec = 50"],
        "len(str(Decimal(1) / 3))",
        "52",
    ),
    "the recursion limit": (["import sys\nsys.setrecursionlimit(5000)"], "sys.getrecursionlimit()", "5000"),
    "digits of integers": (["import sys\nsys.set_int_max_str_digits(0)"], "len(str(10 ** 5000))", "5001"),
    "attributes of classes": (
        ["class Bank:\n    rate = 1\n    log = []", "Bank.rate = 7; Bank.log.append(3)"],
        "Bank.rate, Bank.log",
        "(7, [3])",
    ),
    "a replaced method": (["class A:\n    def f(self): return 1", "def g(self): return 2\nA.f = g"], "A().f()", "2"),
    "attributes of functions": (["def count(): pass\ncount.n = 0", "count.n += 5"], "count.n", "5"),
    "default arguments": (["def add(x, seen=[]):\n    seen.append(x)\n    return seen", "add(1)"], "add(2)", "[1, 2]"),
    "shared objects": (["a = []\nb = [a]", "a.append(1)"], "b", "[[1]]"),
    "a seeded generator": (
        ["import random\nrandom.seed(3)\nx = random.Random(3)", "x.random() == random.random()"],
        "x.random() == random.random()",
        "True",
    ),
    "a generator seeded by a function": (
        [
            "import random\ndef begin(): random.seed(3)\nx = random.Random(3)",
            "begin()",
            "x.random() == random.random()",
        ],
        "x.random() == random.random()",
        "True",
    ),
    "a generator seeded under its own name": (
        ["from random import *\nfrom random import Random\nseed(3)\nx = Random(3)", "x.random() == random()"],
        "x.random() == random()",
        "True",
    ),
    "a state of random numbers": (
        ["import random\nrandom.setstate(random.Random(3).getstate())\nx = random.Random(3)"],
        "x.random() == random.random()",
        "True",
    ),
    "a module's attribute": (["import math\nmath.tau = 3", "x = 1"], "math.tau", "3"),
    "an imported object's attribute": (
        ["import fractions as f\nfrom logging import root\nroot.marker = 4", "root.marker += 1"],
        "root.marker",
        "5",
    ),
    "an attribute that setattr sets": (["import math", "setattr(math, 'tau', 3)"], "math.tau", "3"),
    "an attribute of the module just imported": (["import math; setattr(math, 'ta' + 'u', 3)"], "math.tau", "3"),
    "an attribute that a function sets": (
        ["import math as m\ndef change(): m.tau = 3", "change()", "x = 1"],
        "m.tau",
        "3",
    ),
    "an attribute that a function sets by setattr": (
        ["import os\ndef change(module, name): setattr(module, name, 3)", "change(os.path, 'sepal')", "x = 1"],
        "os.path.sepal",
        "3",
    ),
    "an object's attribute that a function sets": (
        ["from logging import root\ndef mark(): root.marker = 4", "mark()"],
        "root.marker",
        "4",
    ),
    "an entry of vars": (["import math\nvars(math).update(tau=3)"], "math.tau", "3"),
    "an attribute that a loop sets": (["import math\nfor n in ('tau', 'pi'): setattr(math, n, 3)"], "math.pi", "3"),
    "variables of the environment": (["import os\nos.environ['MODE'] = 'x'"], "os.environ['MODE']", "'x'"),
    "a default that is a variable": (["n = [4]\ndef f(x=n[0]): return x", "n = [5]\nh = [f]"], "h[0]()", "4"),
    "an error after a change": (["t = 1", "t = 2\n1 / 0"], "t", "2"),
    "private names": (["_t = 1"], "_t", "1"),
    "an abstract class": (["from abc import ABC\nclass A(ABC):\n    n = 1\nA.n = 3"], "A.n", "3"),
}


@pytest.mark.parametrize("name", KEPT)
def test_it_is_kept(tools: PythonTool, name: str) -> None:
    cells, last, expected = KEPT[name]
    tools.sandbox.reset()
    said = [tools.python(cell) for cell in cells]
    assert "not kept" not in "".join(said)
    assert tools.python(last) == expected
    assert tools.python(last).splitlines()[0] == ("[1, 2, 2]" if name == "default arguments" else expected)


LOST = {
    "an open file": ("f = open('/dev/null'); _g = open('/dev/null')", "[not kept for the next call: _g, f]"),
    "a generator": ("g = (k for k in 'abc')", "[not kept for the next call: g]"),
    "a patched module": ("import math\nmath.f = (k for k in 'ab')", "[not kept for the next call: math.f]"),
    "an unreachable module's attribute": (
        "import sys\ndef change(): setattr(sys.modules['posixpath'], 'sepal', 3)\nchange()",
        "[not kept for the next call: posixpath.sepal]",
    ),
    "a deleted attribute": ("import math\ndelattr(math, 'tau')", "[not kept for the next call: math.tau]"),
    "a function that setattr sets": (
        "import math\nsetattr(math, 'f', lambda: 1)",
        "[not kept for the next call: math.f]",
    ),
    "an item that a function sets": (
        "import mimetypes\ndef change(): mimetypes.types_map['.x'] = 'a/b'\nchange()",
        "[not kept for the next call: mimetypes.types_map]",
    ),
    "an item of a module": (
        "import mimetypes\nmimetypes.types_map['.x'] = 'a/b'",
        "[not kept for the next call: mimetypes.types_map]",
    ),
    "an object of a class in a function": (
        "def make():\n    class A: pass\n    return A()\na = make()",
        "[not kept for the next call: a]",
    ),
    "a value that is too large": ("big = 'x' * (9 << 20)\nsmall = 2", "[not kept for the next call: big (too large)]"),
}


@pytest.mark.parametrize("name", LOST)
def test_a_loss_is_named_and_takes_nothing_with_it(tools: PythonTool, name: str) -> None:
    code, note = LOST[name]
    tools.sandbox.reset()
    tools.python("total = 41")
    assert note in tools.python(code)
    assert tools.python("total") == "41"


def test_a_value_that_cannot_be_read_any_more_is_named(tools: PythonTool) -> None:
    tools.sandbox.reset()
    tools.sandbox.write("shapes.py", "class Square:\n    side = 2\n")
    tools.python("import sys; sys.path.insert(0, '.')\nimport shapes\ns = shapes.Square()\ntotal = 41")
    tools.sandbox.exec("rm shapes.py")
    said = tools.python("total")
    assert said.startswith("41\n[stderr]\n[lost since the last call: s (ModuleNotFoundError")
    assert "lost since the last call: shapes" in said
    assert tools.python("total") == "41"


def test_what_a_module_of_the_workspace_changes_is_named(tools: PythonTool) -> None:
    tools.sandbox.reset()
    tools.sandbox.write(
        "bank.py", "count = 0\nlog = []\ndef pay():\n    global count\n    count += 1\n    log.append(count)\n"
    )
    said = tools.python("import sys; sys.path.insert(0, '.')\nimport bank\nbank.pay()")
    assert said.endswith("[not kept for the next call: bank.count, bank.log]")
    said = tools.python("import sys; sys.path.insert(0, '.')\nimport bank\nbank.count")
    assert said == "0"


@pytest.mark.parametrize(
    "code",
    [
        "import tempfile, random, re\nrandom.seed(3); re.sub('a', 'b', tempfile.gettempdir())",
        "import tempfile\nclass A: pass\nsetattr(A, 'tempdir_', 1); tempfile.gettempdir()",
        "import logging, warnings, decimal\nwarnings.simplefilter('ignore'); logging.getLogger('x')",
        "import math\ndef change(): math.tau = 3\nx = 1",
        "import sys, io\ndef say():\n    old = sys.stdout\n    sys.stdout = io.StringIO()\n    sys.stdout = old\nsay()",
    ],
)
def test_what_libraries_change_for_themselves_is_not_named(tools: PythonTool, code: str) -> None:
    tools.sandbox.reset()
    assert "not kept" not in tools.python(code) + tools.python("x = 1")


def test_lines_of_a_traceback_are_pythons(tools: PythonTool) -> None:
    tools.sandbox.reset()
    said = tools.python("x = 'a\u2028b'\n\x0c\nraise KeyError(x)")
    assert 'File "<cell>", line 3' in said and "raise KeyError(x)" in said


def test_random_numbers_that_nobody_seeded_are_no_part_of_the_session(tools: PythonTool) -> None:
    """Else two equal episodes would have states that differ."""
    tools.sandbox.reset()
    tools.python("import random\nseed = 3\nx = random.Random(seed)\ny = random.random()\ndel y")
    first = tools.sandbox.snapshot()
    tools.sandbox.reset()
    tools.python("import random\nseed = 3\nx = random.Random(seed)\ny = random.random()\ndel y")
    assert content_key(tools.sandbox.snapshot()) == content_key(first)


NUMPY_RANDOM = """
import random
_own = random.Random()
def seed(value): _own.seed(value)
def get_state(legacy=True): return _own.getstate()
def set_state(state): _own.setstate(state)
def rand(): return _own.random()
"""


def test_numpys_seeded_random_numbers_go_on(tools: PythonTool) -> None:
    """A module with numpy's interface, since sandboxes have no packages."""
    tools.sandbox.reset()
    tools.sandbox.write("numpy/__init__.py", "from numpy import random\n")
    tools.sandbox.write("numpy/random.py", NUMPY_RANDOM)
    tools.python("import sys; sys.path.insert(0, '.')\nimport numpy as np\nnp.random.seed(4)")
    both = [tools.python("np.random.rand()") for _ in range(2)]
    tools.python("np.random.seed(4)")
    assert [tools.python("np.random.rand()") for _ in range(2)] == both and both[0] != both[1]
