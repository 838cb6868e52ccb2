"""What runs in Ray's actors, and what is refused before there are any; no cluster is started."""

from __future__ import annotations

import asyncio
import importlib.util
import pickle
import socket
import subprocess
import sys
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from rich.console import Console
from testkit import TESTKIT

from agentgym.engine import SamplingParams
from agentgym.env.tool_env import ToolEnv
from agentgym.errors import ConfigError, EngineError, MissingExtraError, UsageError
from agentgym.evals.policies import scripted
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.request import RolloutRequest
from agentgym.trainers.config.cluster import AUTH_MODE
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.models.tiny import train_tokenizer
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.run.cluster import cluster_of
from agentgym.trainers.train import train
from agentgym.types import Message, Task

RANKS_PLAY = ("cluster.address=auto", "cluster.num_env_workers=0")
TASK = Task(id="t", split="train", seed=3)


def connected(settings: TrainConfig) -> Any:
    return cluster_of(settings, Ranks(), all_ranks_sample=False)


def config(*overrides: str) -> TrainConfig:
    model = [f"model.{name}={value}" for name, value in (("max_context_tokens", 64), ("hidden_size", 32))]
    return apply_overrides(load_recipe("tiny"), [*model, "engine.batch_invariant=true", *overrides])


# ---------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("cluster.num_env_workers=-1", "num_env_workers must be at least 0"),
        ("cluster.gpus_per_engine=-1", "gpus_per_engine must be at least 0"),
        ("cluster.wait_s=0", "wait_s must be above 0"),
        ("cluster.placement=near", "placement"),
        ("cluster.num_trainer_ranks=2", r"num_trainer_ranks .* set cluster\.address"),
        ("cluster.gpus_per_rank=2", "gpus_per_rank"),
        ("cluster.cpus_per_rank=0", "cpus_per_rank must be above 0"),
    ],
)
def test_a_cluster_that_cannot_be(override: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        config(override)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["engine.kind=vllm"], "needs the servers' addresses"),
        (["engine.kind=vllm", "cluster.address=auto", 'engine.urls=["http://a:1"]'], "Ray starts the servers"),
        (["engine.kind=vllm", "cluster.address=auto", "engine.weight_sync=nccl"], "Ray starts the servers"),
        (["engine.kind=vllm", "cluster.address=auto", "engine.sleep=true"], "Ray starts the servers"),
        (["engine.kind=vllm", *RANKS_PLAY, "engine.weight_sync=ipc"], "Ray gives servers others"),
        (["engine.kind=vllm", *RANKS_PLAY, "engine.sleep=true"], "Ray gives servers others"),
    ],
)
def test_servers_are_either_named_or_placed(overrides: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        config("engine.batch_invariant=false", *overrides)


def test_what_actors_cannot_do_ranks_that_play_can() -> None:
    file = f"engine.kind={TESTKIT / 'user_parts.py'}:noted"
    for overrides in ([file], ["harness.name=mini_swe_agent"]):
        with pytest.raises(ConfigError, match=r"cluster\.num_env_workers=0"):
            config("cluster.address=auto", "engine.batch_invariant=false", *overrides)
        config(*RANKS_PLAY, "engine.batch_invariant=false", *overrides)
    served = config(*RANKS_PLAY, "engine.kind=vllm", "engine.weight_sync=nccl", "engine.batch_invariant=false")
    assert served.starts_servers and not served.cluster.plays
    named = config(*RANKS_PLAY, "engine.kind=vllm", 'engine.urls=["http://a:1"]', "engine.batch_invariant=false")
    assert not named.starts_servers, "the user does"
    assert "cluster.num_engines=3 has no effect" in " ".join(config(*RANKS_PLAY, "cluster.num_engines=3").warnings)
    assert "no effect" not in " ".join(config(*RANKS_PLAY).warnings)


def test_without_ray_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else found(name))
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[ray\]'"):
        connected(config("cluster.address=auto"))


def test_ranks_are_started_by_ray_or_by_torchrun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "0")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="start one process, without torchrun"):
        train(config("cluster.address=auto", "cluster.num_trainer_ranks=2"), tmp_path / "run")
    monkeypatch.undo()
    (tmp_path / "tokenizer").mkdir()
    with pytest.raises(UsageError, match="choose another folder"):
        train(config("cluster.address=nowhere", "cluster.num_trainer_ranks=2"), tmp_path)
    no_trl = ("sft.trainer=trl", "sft.num_demos=4", "sft.observation_weight=0")
    with pytest.raises(ConfigError, match="2 ranks cannot train with"):
        train(config("cluster.address=nowhere", "cluster.num_trainer_ranks=2", *no_trl), tmp_path / "run")


def test_errors_of_ranks_reach_the_command_as_they_are() -> None:
    sent = MissingExtraError("wandb_project", "wandb")
    got = pickle.loads(pickle.dumps(sent))
    assert isinstance(got, MissingExtraError) and (str(got), got.extra) == (str(sent), "wandb")


def test_a_screen_keeps_what_was_written_until_it_is_taken() -> None:
    pytest.importorskip("ray")
    from agentgym.trainers.ray_ranks.rank import Screen

    screen = Screen(is_terminal=True)
    console = Console(file=cast(Any, screen), color_system=None)
    console.print("one", end="")
    console.print("two", end="")
    assert console.is_terminal
    assert (screen.take(), screen.take()) == ("onetwo", "")


def test_an_address_where_nobody_answers() -> None:
    pytest.importorskip("ray")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for named in (address, f"ray://{address}", "nowhere"):
            with pytest.raises(ConfigError, match=rf"cluster\.address={named} cannot be reached"):
                connected(config(f"cluster.address={named}"))


@pytest.mark.parametrize(("mode", "hints"), [("", True), ("token", False)])
def test_a_cluster_that_may_ask_for_a_token(mode: str, hints: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")

    def refuse(**arguments: Any) -> None:
        raise ConnectionError("Failed to connect to Ray cluster\nmore")

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.delenv(AUTH_MODE, raising=False)
    if mode:
        monkeypatch.setenv(AUTH_MODE, mode)
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        address = f"127.0.0.1:{door.getsockname()[1]}"
        with pytest.raises(ConfigError, match="no Ray cluster could be joined") as refused:
            connected(config(f"cluster.address={address}"))
    assert ("one that asks for a token needs RAY_AUTH_MODE=token" in str(refused.value)) is hints
    assert "more" not in str(refused.value)


def test_one_machine_never_imports_ray(tmp_path: Path) -> None:
    code = (
        "import sys; from agentgym.trainers.run.run import Run; from agentgym.trainers.recipes import load_recipe\n"
        "from pathlib import Path; Run(load_recipe('tiny'), Path('.')); assert 'ray' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_an_env_worker_and_its_client_of_engines_need_no_torch(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    code = (
        "import sys, agentgym.trainers.ray.env_worker, agentgym.trainers.ray.engine_client\n"
        "import agentgym.trainers.ray.engine_actor, agentgym.trainers.ray.env_server\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_a_cluster_without_env_servers_needs_no_websockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    code = "import sys; sys.modules['websockets'] = sys.modules['fastapi'] = None; import agentgym.trainers.ray.cluster"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "websockets" else found(name))
    with pytest.raises(MissingExtraError, match=r"cluster\.num_env_servers=1 .*pip install -e '\.\[serve\]'"):
        connected(config("cluster.address=local", "cluster.num_env_servers=1"))


# ---------------------------------------------------------------------------------------------------------- an engine


def generate(engine: Any, *prompts: tuple[int, ...]) -> list[Any]:
    async def run() -> list[Any]:
        sampling = SamplingParams(max_new_tokens=8, seed=5)
        return await asyncio.gather(*(engine.generate(prompt, sampling, session_id=str(prompt)) for prompt in prompts))

    return asyncio.run(run())


@pytest.fixture
def engine_actor(small_model: Any) -> Any:
    from agentgym.trainers.ray.serving import EmbeddedServing, EngineSpec

    torch.manual_seed(1)
    return EmbeddedServing(EngineSpec.of(config(), small_model))


PROMPTS = ((1, 5, 9), (3, 4), (7, 8, 9, 10, 11))


def test_an_engine_serves_the_trainers_weights_and_none_before(small_model: Any, engine_actor: Any) -> None:
    from agentgym.trainers.placement.build import torch_engine
    from agentgym.trainers.ray.engine_client import NoWeightsError
    from agentgym.trainers.ray.weights import pack

    sampling = SamplingParams(max_new_tokens=8, seed=5)
    with pytest.raises(NoWeightsError):
        asyncio.run(engine_actor.generate(PROMPTS[0], sampling, "s", True))
    assert asyncio.run(engine_actor.ping()).serial == 0

    async def sampled() -> list[Any]:
        await engine_actor.load(pack(small_model, 4), 1)
        return await asyncio.gather(*(engine_actor.generate(p, sampling, str(p), True) for p in PROMPTS))

    completions = asyncio.run(sampled())
    own = torch_engine(config(), small_model)
    alone = [generate(own, prompt)[0] for prompt in PROMPTS]
    assert [c.token_ids for c in completions] == [c.token_ids for c in alone]
    assert [c.logprobs for c in completions] == [c.logprobs for c in alone], "to the last bit"
    assert {version for c in completions for version in c.policy_versions} == {4}


def test_a_session_does_not_go_on_with_an_engine_that_did_not_begin_it(small_model: Any, engine_actor: Any) -> None:
    from agentgym.trainers.ray.engine_client import LostSessionError
    from agentgym.trainers.ray.weights import pack

    async def run() -> None:
        await engine_actor.load(pack(small_model, 0), 1)
        await engine_actor.generate(PROMPTS[0], SamplingParams(), "other", True)
        await engine_actor.release("other")
        for lost in ("mine", "other"):
            with pytest.raises(LostSessionError):
                await engine_actor.generate(PROMPTS[0], SamplingParams(), lost, False)

    asyncio.run(run())


def test_weights_of_another_model_leave_an_engine_without_any(small_model: Any, engine_actor: Any) -> None:
    from safetensors.torch import save

    from agentgym.trainers.ray.weights import PackedWeights, pack

    asyncio.run(engine_actor.load(pack(small_model, 0), 1))
    for wrong in (b"no tensors", save({"model.norm.weight": torch.ones(32)}), save({"x": torch.ones(2)})):
        with pytest.raises(EngineError, match=r"loading version 1|another model"):
            asyncio.run(engine_actor.load(PackedWeights(version=1, tensors=wrong), 2))
        assert asyncio.run(engine_actor.ping()).serial == 0


# --------------------------------------------------------------------------------------------------------- env workers


class Counting(ToolEnv):
    """Count to three; ``wait`` never ends."""

    max_turns = 6

    def start(self, task: Task) -> str:
        self.at = 0
        return "count"

    async def arespond(self, action: Message) -> str:
        if action.text == "wait":
            await asyncio.sleep(3600)
        self.at += 1
        if self.at == 3:
            self.finish(1.0)
        return str(self.at)


class Ref:
    """What stands for a reference of Ray's: awaited, it gives its value."""

    def __init__(self, value: Any) -> None:
        self.value, self.num_fetched = value, 0

    def __await__(self) -> Generator[Any, None, Any]:
        self.num_fetched += 1
        yield from asyncio.sleep(0).__await__()
        return self.value


def attempt(said: str, key: str = "a") -> Any:
    from agentgym.trainers.ray.env_worker import Attempt

    policy = scripted(lambda env, observation, rng: Message("assistant", said))
    return Attempt(
        key=key,
        rank=0,
        request=RolloutRequest(task=TASK, seed=7, num_retries=1, make_agent=cast(Any, Ref(policy))),
        make_env=Ref(Counting),
    )


def in_worker(play: Any) -> Any:
    from agentgym.trainers.ray.env_worker import EnvWorker

    async def run() -> Any:
        return await play(EnvWorker(2, "."))

    return asyncio.run(run())


def test_a_worker_plays_episodes_and_fetches_what_it_needs_once() -> None:
    asked = attempt("one")

    async def play(worker: Any) -> Any:
        return [await worker.play(asked), await worker.play(asked)]

    for played in in_worker(play):
        (trajectory,) = played.trajectories
        assert (trajectory.success, trajectory.seed, trajectory.num_retries) == (True, 7, 1)
        assert played.turns == list(trajectory.turns)
    assert asked.make_env.num_fetched == cast(Any, asked.request.make_agent).num_fetched == 1


def test_a_worker_counts_turns_by_the_rank_that_asked_for_them() -> None:
    async def play(worker: Any) -> Any:
        for rank in (0, 1, 1):
            await worker.play(replace(attempt("one"), rank=rank, key=str(rank)))
        return await worker.ping(), await worker.ping()

    for found in in_worker(play):
        assert set(found.sampled) == {0, 1} and all(one.span_s > 0 for one in found.sampled.values())


def test_an_attempt_that_is_cut_tells_how_far_it_got() -> None:
    async def play(worker: Any) -> Any:
        playing = asyncio.ensure_future(worker.play(attempt("wait")))
        while not worker._running:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        turns = await worker.cut("a")
        return turns, await playing, await worker.cut("a")

    turns, played, nothing = in_worker(play)
    assert (turns, played.trajectories, nothing) == ([], (), [])


def test_a_renderer_can_be_sent() -> None:
    tokenizer = train_tokenizer(["count to three"], 300, ["count"])
    renderer = ChatRenderer(tokenizer)
    sent: ChatRenderer = pickle.loads(pickle.dumps(renderer))
    messages, replies = [Message("user", "count")], (Message("user", "three"),)
    assert sent.prompt_ids(messages, ()) == renderer.prompt_ids(messages, ())
    said, end = [*messages, Message("assistant", "one")], renderer.turn_end_ids[0]
    assert sent.suffix_ids(said, replies, (), end) == renderer.suffix_ids(said, replies, (), end) != ()
