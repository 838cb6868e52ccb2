"""Environments by name: ids, modules, files, plugins, Gymnasium's own ``make``, and helpful misses."""

import importlib
import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import agentgym
from agentgym import Env, Task, make, register
from agentgym.errors import MissingExtraError, UnknownNameError, UsageError
from agentgym.registry import entries, find

pytestmark = pytest.mark.filterwarnings("ignore:.*Overriding environment")

FILE = """
from agentgym import Env, register

class Greeter(Env):
    "Says a greeting."

    def __init__(self, greeting="hello", **kwargs):
        super().__init__(**kwargs)
        self.greeting = greeting

    def start(self, task):
        return self.greeting

register("mine/{name}-v0", Greeter, greeting="{greeting}")
"""


class Silent(Env):
    """Says one word.

    And nothing else.
    """

    def __init__(self, word: str = "...", max_turns: int | None = None) -> None:
        super().__init__(max_turns=max_turns)
        self.word = word

    def start(self, task: Task) -> str:
        return self.word


def first_words(env: Env) -> str:
    return env.reset(seed=0)[0][0].text


@pytest.fixture
def greeter(tmp_path: Path) -> Path:
    path = tmp_path / "greeter.py"
    path.write_text(FILE.format(name="Greeter", greeting="hello"))
    return path


def test_register_and_make() -> None:
    register("test/Silent-v2", Silent, max_turns=3, word="hush")
    entry = find("test/Silent-v2")
    assert (entry.id, entry.version, entry.summary) == ("test/Silent-v2", "v2", "Says one word.")
    assert entry.is_available
    assert entry in entries()
    env = make("test/Silent-v2")
    assert (env.env_id, env.max_turns, first_words(env)) == ("test/Silent-v2", 3, "hush")
    assert first_words(make("test/Silent-v2", word="shh")) == "shh"


def test_entry_point_as_text_is_imported_when_made() -> None:
    register("test/Nowhere-v0", "no_such_module_at_all:Env", summary="Not there")
    assert find("test/Nowhere-v0").summary == "Not there"
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        make("test/Nowhere-v0")


@pytest.mark.parametrize("name", ["a/b/c-v0", "Si lent-v0", ""])
def test_ids_that_cannot_be(name: str) -> None:
    with pytest.raises(UsageError, match="cannot register"):
        register(name, Silent)


def test_unknown_ids_suggest_near_ones() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'agentgym/Household-v0'"):
        make("agentgym/Houshold-v0")


def test_unknown_arguments_are_the_users_mistake() -> None:
    register("test/Silent-v3", Silent)
    with pytest.raises(UsageError, match=r"test/Silent-v3: .*wrod"):
        make("test/Silent-v3", wrod="x")


def test_missing_arguments_are_named_as_they_are_given() -> None:
    class Needs(Silent):
        def __init__(self, *, data_dir: str, sites: str, **kwargs: Any) -> None:
            super().__init__(**kwargs)

    register("test/Needs-v0", Needs)
    with pytest.raises(UsageError, match=r"^test/Needs-v0 needs arguments: data_dir=VALUE sites=VALUE$"):
        make("test/Needs-v0")


def test_what_is_no_environment_is_refused() -> None:
    register("test/CartPole-v0", "gymnasium.envs.classic_control.cartpole:CartPoleEnv")
    with pytest.raises(UsageError, match=r"made a CartPoleEnv, expected a subclass of agentgym\.Env"):
        make("test/CartPole-v0")


def test_a_missing_extra_names_its_command() -> None:
    register("test/Heavy-v0", "no_such_module_at_all:Env", extra="alfworld", requires=("no_such_module_at_all",))
    assert not find("test/Heavy-v0").is_available
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[alfworld\]'"):
        make("test/Heavy-v0")


# ------------------------------------------------------------------------------------------- modules and files


def test_an_environment_in_a_file(greeter: Path) -> None:
    for reference in (f"{greeter}:mine/Greeter-v0", str(greeter)):
        assert first_words(make(reference)) == "hello"
    assert type(make(str(greeter))) is type(make(str(greeter)))


def test_a_changed_file_is_run_again(greeter: Path) -> None:
    make(str(greeter))
    greeter.write_text(FILE.format(name="Greeter", greeting="good morning"))
    with pytest.warns(UserWarning, match="Overriding environment mine/Greeter-v0"):
        assert first_words(make(str(greeter))) == "good morning"


def test_two_files_of_one_name(greeter: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "greeter.py"
    other.parent.mkdir()
    other.write_text(FILE.format(name="Other", greeting="hi"))
    assert first_words(make(str(greeter))) == "hello"
    assert first_words(make(str(other))) == "hi"
    assert first_words(make(str(greeter))) == "hello"


def test_a_file_of_several_environments_needs_a_name(greeter: Path) -> None:
    greeter.write_text(FILE.format(name="One", greeting="1") + FILE.format(name="Two", greeting="2"))
    with pytest.raises(
        UsageError, match=r"registers mine/One-v0, mine/Two-v0; name one, as in .*greeter\.py:mine/One-v0"
    ):
        make(str(greeter))
    assert first_words(make(f"{greeter}:mine/Two-v0")) == "2"


def test_files_and_modules_that_do_not_exist(tmp_path: Path, greeter: Path) -> None:
    with pytest.raises(UsageError, match=r"no file .*nowhere\.py"):
        make(f"{tmp_path}/nowhere.py:Greeter-v0")
    with pytest.raises(UsageError, match=r"no module 'nowhere'; to use a file, write its path: nowhere\.py:NAME"):
        make("nowhere:Greeter-v0")
    with pytest.raises(UnknownNameError, match="mine/Greeter-v9"):
        make(f"{greeter}:mine/Greeter-v9")
    greeter.write_text("import no_such_module_at_all")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        make(str(greeter))
    greeter.write_text("")
    with pytest.raises(UsageError, match="registers none"):
        make(str(greeter))


def test_an_environment_in_a_module(greeter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    greeter.rename(greeter.with_name("greeter_module.py"))
    (greeter.parent / "greeter_broken.py").write_text("import no_such_module_at_all")
    monkeypatch.syspath_prepend(greeter.parent)
    assert first_words(make("greeter_module:mine/Greeter-v0")) == "hello"
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):  # not "no module greeter_broken"
        make("greeter_broken:mine/Greeter-v0")


# ----------------------------------------------------------------------------------------- plugins and Gymnasium


def run_python(code: str, path: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(path)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_distribution_adds_environments_by_its_entry_point(tmp_path: Path) -> None:
    (tmp_path / "my_plugin.py").write_text(FILE.format(name="Plugged", greeting="plugged in"))
    info = tmp_path / "my_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[agentgym.envs]\nmine = my_plugin\n")
    code = """
    import sys, agentgym
    from agentgym.registry import entries
    assert "my_plugin" not in sys.modules  # not before it is asked for
    assert "agentgym/Household-v0" in [entry.id for entry in entries()]
    assert "mine/Plugged-v0" in [entry.id for entry in entries()]
    print(agentgym.make("mine/Plugged-v0").reset(seed=0)[0][0].text)
    """
    assert run_python(code, tmp_path) == "plugged in\n"


def test_gymnasium_makes_registered_environments() -> None:
    register("test/Silent-v4", Silent, word="hush")
    env = gymnasium.make("test/Silent-v4")
    assert env.reset(seed=0)[0][0].text == "hush"
    assert isinstance(env.unwrapped, Silent)


@pytest.mark.parametrize("imports", ["import agentgym, gymnasium", "import gymnasium, agentgym"])
def test_gymnasium_makes_built_in_environments_in_either_order_of_imports(imports: str, tmp_path: Path) -> None:
    code = f"""
    {imports}
    print(type(gymnasium.make("agentgym/GuessNumber-v0").unwrapped).__name__)
    """
    assert run_python(code, tmp_path) == "GuessNumberEnv\n"


def test_a_users_environment_replaces_a_built_in_one(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FILE.format(name="Greeter", greeting="hello"))
    code = """
    import agentgym
    agentgym.register("agentgym/GuessNumber-v0", "mine:Greeter")
    print(agentgym.make("agentgym/GuessNumber-v0").reset(seed=0)[0][0].text)
    """
    assert run_python(code, tmp_path) == "hello\n"


household = pytest.mark.skipif(
    importlib.util.find_spec("agentgym.envs.household") is None, reason="agentgym.envs.household is not there"
)


@household
def test_gymnasium_makes_built_in_environments_and_their_wrappers_work(tmp_path: Path) -> None:
    code = """
    import gymnasium
    env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("agentgym:agentgym/Household-v0"))
    observation, info = env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
    print(observation[0].role)
    """
    assert run_python(code, tmp_path) == "tool\n"


@household
@pytest.mark.parametrize(
    "entry", [entry for entry in entries() if entry.id.startswith("agentgym/")], ids=lambda e: e.id
)
def test_built_in_environments_name_modules_that_exist(entry: agentgym.registry.EnvEntry) -> None:
    assert entry.summary
    module, _, name = str(gymnasium.spec(entry.id).entry_point).partition(":")
    assert importlib.util.find_spec(module) is not None
    if entry.is_available:
        assert issubclass(getattr(importlib.import_module(module), name), Env)


def test_a_file_without_the_environment_is_named_with_those_it_has(tmp_path: Path) -> None:
    file = tmp_path / "greet.py"
    file.write_text(FILE.format(name="Asked", greeting="hello"))
    with pytest.raises(UnknownNameError, match=r"greet\.py registers no environment 'Nope', only mine/Asked-v0$"):
        find(f"{file}:Nope")
    file.write_text("")
    with pytest.raises(UnknownNameError, match=r"registers no environment 'Nope', nor any other$"):
        find(f"{file}:Nope")
