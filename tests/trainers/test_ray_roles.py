"""Roles whose models are on a cluster's actors: bit for bit the runs without Ray."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from testkit import TESTKIT
from testkit.fake_openai import FakeOpenAI, completion
from testkit.killed_runs import SCRIPT
from testkit.ranks import forked
from testkit.ray_runs import CLUSTER, PATIENT_S, SMALL, rl_rows, warm_workers
from testkit.run_records import told, weights
from testkit.vllm_program import write_program

from agentgym.errors import ConfigError
from agentgym.rollout.record import read_records, record_path, recorded_steps
from agentgym.trainers.config.overrides import apply_overrides, save_config
from agentgym.trainers.config.roles import RoleConfig
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train

pytest.importorskip("ray")
pytestmark = pytest.mark.slow
ASKING = [*(key for key in SMALL if not key.startswith("env.id")), f"env.id={TESTKIT}/asking_env.py:Manager-v0"]
KUHN = [
    *(key for key in SMALL if not key.startswith("env.id")),
    "env.id=agentgym/KuhnPoker-v0",
    "env.kwargs.opponent=self",
]

HANDING = """
from agentgym.evals.policies import policy

@policy("handing")
def handing(env):
    return env.parse_action(f"hand: {env.number}")
"""


def on(settings: list[str], *overrides: str) -> TrainConfig:
    return apply_overrides(load_recipe("tiny"), [*settings, "credit.estimator=m_grpo", *overrides])


def check_same(config: TrainConfig, tmp_path: Path, *, roles: tuple[str, ...] = ()) -> None:
    """Train here and on a cluster, and compare completions and weights."""
    alone, run = tmp_path / "alone", tmp_path / "run"
    train(config, alone)
    train(replace(config, cluster=CLUSTER), run)
    assert any(row["trained_tokens"] for row in rl_rows(alone)), "else equal weights would say nothing"
    assert told(run) == told(alone), "completions hold the log-probabilities"
    assert weights(run) == weights(alone)
    for role in roles:
        assert weights(run / "roles" / role) == weights(alone / "roles" / role)
        assert any(row[f"role/{role}/trained_tokens"] for row in rl_rows(alone))


def frozen_roles(run_dir: Path) -> list[str]:
    records = [record for step in recorded_steps(run_dir) for record in read_records(record_path(run_dir, step))]
    members = [one for record in records for one in record.group.trajectories]
    return [segment.role for one in members for segment in one.frozen_segments]


@pytest.fixture(autouse=True)
def _warm(monkeypatch: pytest.MonkeyPatch, warm_python: str) -> None:
    warm_workers(monkeypatch, warm_python)


def test_a_trained_role_on_actors_of_its_own(tmp_path: Path) -> None:
    check_same(on(ASKING, "roles.clerk.trained=true", "roles.clerk.optimizer.lr=1e-3"), tmp_path, roles=("clerk",))


def test_a_league_on_actors(tmp_path: Path) -> None:
    check_same(on(KUHN, "credit.estimator=rae", "roles.opponent.policy=league:1"), tmp_path)
    assert set(frozen_roles(tmp_path / "run")) == {"opponent"}


def test_a_frozen_folder_on_actors(tmp_path: Path) -> None:
    train(on(ASKING, "num_steps=0"), tmp_path / "warm")
    model = tmp_path / "warm" / "model"
    clerk = (f"model.path={model}", "sft.num_demos=0", f"roles.clerk.policy={model}")
    check_same(on(ASKING, *clerk, "roles.clerk.model.max_context_tokens=120"), tmp_path)
    assert set(frozen_roles(tmp_path / "run")) == {"clerk"}


def test_scripts_and_endpoints_play_in_env_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint's key reaches the workers, which do not have this process's environment."""
    monkeypatch.setenv("OPENAI_API_KEY", "the-key")
    script = tmp_path / "handing.py"
    script.write_text(HANDING)
    check_same(on(ASKING, f"roles.clerk.policy={script}:handing", "num_steps=1"), tmp_path)

    server = FakeOpenAI(
        lambda request: completion(None, ("hand", '{"number": 3}'), prompt_tokens=9, completion_tokens=3)
    )
    try:
        endpoint = on(ASKING, f"roles.clerk.policy=openai:{server.url}?model=only", "num_steps=1")
        train(replace(endpoint, cluster=CLUSTER), tmp_path / "endpoint")
    finally:
        server.close()
    assert server.requests and set(server.keys) == {"Bearer the-key"}
    assert set(frozen_roles(tmp_path / "endpoint")) == {"clerk"}


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("vllm:http://127.0.0.1:1?model=smollm2", "take their weights from the trainer's process"),
        (
            "openai:http://127.0.0.1:1/v1?model=only&requests_per_minute=9",
            "would hold for each of 2",
        ),
    ],
)
def test_what_workers_cannot_play_is_refused(policy: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(on(ASKING, f"roles.clerk.policy={policy}"), cluster=CLUSTER)


SERVERS = EngineConfig(kind="vllm", start_timeout_s=PATIENT_S, server_wait_s=PATIENT_S)
RANKS_PLAY = replace(CLUSTER, num_env_workers=0, cpus_per_engine=0)


@pytest.fixture
def vllm_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_python: str) -> None:
    """A fake of vLLM, which samples as the embedded engine does."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTKIT.parent), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("AGENTGYM_VLLM_PYTHON", str(write_program(tmp_path / "python", warm_python)))


def check_same_tokens(config: TrainConfig, served: TrainConfig, tmp_path: Path) -> Path:
    """Train with embedded engines and with servers, and compare who said what."""
    alone, run = tmp_path / "alone", tmp_path / "run"
    train(config, alone)
    train(served, run)
    assert tokens_by_role(run) == tokens_by_role(alone)
    assert any(row["trained_tokens"] for row in rl_rows(alone)), "else equal tokens would say nothing"
    return run


def tokens_by_role(run_dir: Path) -> list[tuple[str, tuple[int, ...]]]:
    records = [record for step in recorded_steps(run_dir) for record in read_records(record_path(run_dir, step))]
    return [
        (segment.role, turn.completion.token_ids)
        for record in records
        for member in record.group.trajectories
        for segment in (*member.segments, *member.frozen_segments)
        for turn in segment.turns
    ]


@pytest.mark.usefixtures("vllm_program")
def test_a_trained_role_on_vllm_actors_of_its_own(tmp_path: Path) -> None:
    config = on(ASKING, "roles.clerk.trained=true", "roles.clerk.optimizer.lr=1e-3")
    run = check_same_tokens(config, replace(config, cluster=CLUSTER, engine=SERVERS), tmp_path)
    assert {role for role, _ in tokens_by_role(run)} == {"", "clerk"}


@pytest.mark.usefixtures("vllm_program")
def test_a_league_and_a_frozen_folder_on_vllm_actors(tmp_path: Path) -> None:
    train(on(ASKING, "num_steps=0"), tmp_path / "warm")
    model = tmp_path / "warm" / "model"
    clerk = (f"model.path={model}", "sft.num_demos=0", f"roles.clerk.policy={model}", "num_steps=1")
    config = on(ASKING, *clerk, "roles.clerk.model.max_context_tokens=120")
    check_same_tokens(config, replace(config, cluster=CLUSTER, engine=SERVERS), tmp_path / "folder")
    config = on(KUHN, "credit.estimator=rae", "roles.opponent.policy=league:1", "num_steps=2")
    check_same_tokens(config, replace(config, cluster=CLUSTER, engine=SERVERS), tmp_path / "league")


@pytest.mark.usefixtures("vllm_program")
def test_ray_starts_servers_for_each_role(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks play: the policy has embedded engines, the trained clerk has servers, and so has the frozen one."""
    config = on(ASKING, "roles.clerk.trained=true", "roles.clerk.optimizer.lr=1e-3", "num_steps=2")
    run = check_same_tokens(config, replace(config, cluster=RANKS_PLAY, engine=SERVERS), tmp_path)
    said = capsys.readouterr().err
    assert "vLLM servers that Ray starts: http://" in said and "vLLM servers of clerk that Ray starts: http://" in said
    assert rl_rows(run)[-1]["role/clerk/vllm_servers/num_lost"] == 0

    clerk = replace(config.roles["clerk"], engine=asdict(SERVERS))
    mixed = replace(config, cluster=RANKS_PLAY, roles={"clerk": clerk}, num_steps=1)
    train(mixed, tmp_path / "mixed")
    assert "vLLM servers of clerk" in capsys.readouterr().err
    assert (
        tokens_by_role(tmp_path / "mixed")
        == tokens_by_role(tmp_path / "alone")[: len(tokens_by_role(tmp_path / "mixed"))]
    )

    model = tmp_path / "alone" / "model"
    frozen = (f"model.path={model}", "sft.num_demos=0", "roles.clerk.model.max_context_tokens=120", "num_steps=1")
    embedded = on(ASKING, *frozen, f"roles.clerk.policy={model}")
    by_ray = replace(embedded.roles["clerk"], policy=f"vllm:ray?model={model}")
    check_same_tokens(embedded, replace(embedded, cluster=RANKS_PLAY, roles={"clerk": by_ray}), tmp_path / "frozen")


def test_servers_that_ray_does_not_start_are_refused() -> None:
    started = "roles.clerk.policy=vllm:ray?model=smollm2"
    with pytest.raises(ConfigError, match=r"set cluster\.address, as in auto, and cluster\.num_env_workers=0"):
        on(ASKING, started, "roles.clerk.model.max_context_tokens=120")
    config = on(ASKING)
    with pytest.raises(ConfigError, match=r"set roles\.clerk\.model\.max_context_tokens"):
        replace(config, cluster=RANKS_PLAY, roles={"clerk": RoleConfig(policy="vllm:ray?model=smollm2")})
    config = on(ASKING, "roles.clerk.trained=true")
    own = {"kind": "vllm", "urls": ["http://127.0.0.1:1"]}
    with pytest.raises(ConfigError, match="Ray starts the servers and brings them all weights"):
        replace(config, cluster=CLUSTER, roles={"clerk": RoleConfig(trained=True, engine=own)})


def test_ranks_share_the_actors_of_a_role(tmp_path: Path, warm_python: str) -> None:
    """Two ranks train both models, and each plays its share on the actors that the first one started."""
    config = on(ASKING, "roles.clerk.trained=true", "num_steps=1")
    alone = tmp_path / "alone"
    alone.mkdir()
    save_config(config, alone / "config.json")
    forked(warm_python, 2, "-c", SCRIPT, str(alone))
    train(replace(config, cluster=replace(CLUSTER, num_trainer_ranks=2, num_env_workers=1)), tmp_path / "run")
    assert told(tmp_path / "run") == told(alone)
    for role in ("", "roles/clerk"):
        assert weights(tmp_path / "run" / role) == weights(alone / role)
