"""Runs on Ray clusters of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agentgym.rollout.record import read_json_lines
from agentgym.trainers.checkpoint import checkpoint_path
from agentgym.trainers.config.cluster import ClusterConfig
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.recipes import load_recipe
from testkit import TESTKIT

if TYPE_CHECKING:
    from agentgym.trainers.ray_ranks.rank import RankPlace

NUM_STEPS = 3
PATIENT_S = 600.0
CLUSTER = ClusterConfig(
    address="local",
    num_env_workers=2,
    object_store_mb=100,
    start_timeout_s=PATIENT_S,
    wait_s=PATIENT_S,
    health_timeout_s=PATIENT_S,
    health_interval_s=0.3,
)


SMALL = (
    f"env.id={TESTKIT}/mortal_env.py:Mortal-v0",
    'model={"hidden_size": 32, "num_layers": 1, "head_dim": 16, "vocab_size": 320, "max_context_tokens": 160}',
    "sft.num_demos=320",
    "sft.num_epochs=2",
    "sft.batch_size=8",
    "sft.checkpoint_every=20",
    f"num_steps={NUM_STEPS}",
    "groups_per_step=3",
    "group.group_size=4",
    "group.num_envs=8",
    "group.max_retries=8",  # an engine that was killed may fail several
    "engine.batch_invariant=true",  # a completion is the same wherever it is sampled
    "eval.num_episodes=6",
)


def config(orders: Path, cluster: ClusterConfig = ClusterConfig()) -> TrainConfig:  # noqa: B008  (frozen)
    """Return the configuration of a run on ``Mortal-v0``."""
    return replace(apply_overrides(load_recipe("tiny"), [*SMALL, f"env.kwargs.orders={orders}"]), cluster=cluster)


def config_of(model: Path, orders: Path, cluster: ClusterConfig = ClusterConfig()) -> TrainConfig:  # noqa: B008  (frozen)
    """Return the same configuration with the model of a folder in place of a new one."""
    own = replace(ModelConfig(), path=str(model), max_context_tokens=160)
    return replace(config(orders, cluster), model=own)


def rl_rows(run_dir: Path) -> list[dict[str, Any]]:
    """Return the metrics of RL's steps."""
    return [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]


def give(folder: Path, order: str, after_step: int) -> None:
    """Give the environment ``Mortal-v0`` an order for the step after a checkpoint of the run in ``folder``."""
    (folder / order).write_text(str(checkpoint_path(folder / "run", "rl", after_step)))


def note_ranks(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Write the process numbers of a run's ranks where orders are looked for."""
    from agentgym.trainers.ray_ranks import trainer

    plain = trainer._places

    def noting(*arguments: Any) -> Sequence[RankPlace]:
        places = plain(*arguments)
        for rank, place in enumerate(places):
            (folder / f"rank-{rank}.pid").write_text(place.process.split()[1])
        return places

    monkeypatch.setattr(trainer, "_places", noting)


@contextmanager
def two_nodes(num_cpus: int, **head: Any) -> Iterator[tuple[Any, Any]]:
    """Run a Ray cluster of two nodes on this machine; yield it with the node that is not its head.

    Args:
        head: further settings of the head.
    """
    from ray.cluster_utils import Cluster

    node = {"num_cpus": num_cpus, "object_store_memory": 100 * 2**20}
    # any free port: a head's agent whose fixed port is taken, by a cluster that ends just then, takes no jobs for ever
    ports = {"dashboard_agent_listen_port": 0}
    # as in a run's own cluster: else workers come after all else on a busy machine, and eight start for nobody
    system = {"_system_config": {"worker_niceness": 0, "prestart_worker_first_driver": False}}
    settings = {"include_dashboard": False, **ports, **node, **system, **head}
    cluster = Cluster(initialize_head=True, head_node_args=settings)
    try:
        yield cluster, cluster.add_node(**node)
    finally:
        cluster.shutdown()


def warm_workers(patch: pytest.MonkeyPatch, warm_python: str) -> None:
    """Let clusters that begin from here on fork their workers, which then need not import the trainer.

    Args:
        warm_python: the address of a :mod:`testkit.warm_python`.
    """
    from ray._private import ray_constants

    patch.setattr(ray_constants, "SETUP_WORKER_FILENAME", str(TESTKIT / "ray_worker.py"))
    patch.setenv("WARM_RAY_SOCKET", warm_python)
