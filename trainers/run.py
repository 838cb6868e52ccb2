"""A training run: its folder, and the objects that its phases share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.distributed.fsdp import FSDPModule

from agentgym.engine import Engine, SamplingParams
from agentgym.env.env import Env
from agentgym.errors import ConfigError, UsageError, require_extra
from agentgym.render.chat import ChatRenderer
from agentgym.rollout import journal
from agentgym.rollout.agent import DemonstrationAgent, MakeAgent, ModelAgent
from agentgym.rollout.context import ContextConfig
from agentgym.rollout.pool import EnvPool, Pool
from agentgym.rollout.reflection import Reflect, reflect_with
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.config.rank_limits import (
    do_all_play,
    do_all_send,
    do_gather,
    do_lend,
    do_share_servers,
    episodes_of_rank,
)
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.data.fit import can_be_packed, can_be_split
from agentgym.trainers.distributed.copies import copy_whole, move_whole
from agentgym.trainers.distributed.devices import gpu_bytes
from agentgym.trainers.distributed.lending import Lender, can_lend
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.distributed.sharding import shard, shard_from_first, sharded_copy
from agentgym.trainers.engines.build import (
    borrowing_engine,
    build_engine,
    build_guest,
    connect_engine,
    engine_notes,
    facts_of,
    on_rank,
)
from agentgym.trainers.engines.vllm.gathered import GatheredWeights
from agentgym.trainers.engines.vllm.proof import DTYPES
from agentgym.trainers.engines.vllm.server import ServersEngine, VllmEngine
from agentgym.trainers.engines.vllm.weights import Handover, Published, probe_ids
from agentgym.trainers.judges.judge import Judge
from agentgym.trainers.judges.teacher import HintTeacher
from agentgym.trainers.losses.trial import try_out
from agentgym.trainers.models.check import check_model
from agentgym.trainers.models.experts import check_experts
from agentgym.trainers.models.model import (
    add_lora,
    copy_of_trained,
    end_ids,
    frozen_copy,
    load_model,
    load_tokenizer,
    never_trained,
)
from agentgym.trainers.models.precision import (
    allow_tf32,
    skip_adapter_casts,
    use_fused_attention,
)
from agentgym.trainers.models.quantized import is_quantized
from agentgym.trainers.models.reference import EarlierAdapters, Reference
from agentgym.trainers.models.sources import local_model
from agentgym.trainers.models.tiny import build_model
from agentgym.trainers.planning.microbatch import planned_tokens, tokens_note, with_tokens
from agentgym.trainers.run_cluster import cluster_of
from agentgym.trainers.run_env import RunEnv, named
from agentgym.trainers.run_tokenizer import own_tokenizer
from agentgym.trainers.types import CausalLM, Tokenizer

if TYPE_CHECKING:
    from agentgym.endpoint.gateway import Gateway
    from agentgym.trainers.ray.cluster import Cluster, JoinedCluster

_OWN = "own_files."


class Run:
    """The model, its engine, the environments and the folder of one training run.

    Args:
        ranks: the processes that train together; the model is sharded over them. Ranks that sample have an engine.
    """

    def __init__(self, config: TrainConfig, run_dir: Path, ranks: Ranks = Ranks()) -> None:  # noqa: B008  (frozen)
        torch.set_num_threads(config.num_threads)
        allow_tf32(config.loss.precision)
        self.config, self.run_dir, self.ranks = config, run_dir, ranks
        try_out(config.loss)
        self.do_all_play = do_all_play(config, ranks.count)
        self.num_episodes = episodes_of_rank(config, ranks.count)
        """Most episodes that this rank plays at the same time, if it samples."""
        self._shares_servers = do_share_servers(config, ranks.count)
        self._all_send = do_all_send(config, ranks.count)
        self._gathers = do_gather(config, ranks.count)
        self._gathered: GatheredWeights | None = None
        self.is_spread = ranks.count > 1
        """True if the tokens of each episode are on the rank that played it alone."""
        self._is_announced = False
        self._gateway: Gateway | None = None
        self.cluster, place = cluster_of(config, ranks, do_all_play=self.do_all_play)
        elsewhere = {"url": place.env_url} if place and place.env_url else {}
        if place and place.engine_urls:
            config = dataclasses.replace(config, engine=dataclasses.replace(config.engine, urls=place.engine_urls))
            self.config = config
        self.envs = tuple(RunEnv(name, own, self._make_pool, elsewhere) for name, own in config.by_env.items())
        if not config.envs:
            self.config = config = self.envs[0].config  # with the worked example of prompts, where one is shown
        self._lends = do_lend(config, ranks.count, on_gpu=torch.cuda.is_available())
        loaded, self.tokenizer = self._model()
        if self._lends and not ranks.of_first(loaded is not None and can_lend(loaded, config.model.max_context_tokens)):
            self._lends = False  # of an architecture that transformers' forward samples from
            loaded, self.tokenizer = self._model()
        path = config.model.path
        self.renderer = ChatRenderer(self.tokenizer, config.model.chat, end_ids(path) if path else ())
        for env in self.envs:
            env.check_prompts(self.renderer)
        self.teacher = self._teacher()
        # loading takes some ranks longer, and tensors are exchanged from here on
        tokens = min(ranks.gathered(planned_tokens(config, ranks.count, gpu_bytes())))
        self.microbatch_note = tokens_note(config, tokens, gpu_bytes())
        self.config = config = with_tokens(config, tokens)
        self.model, self._served = self._trained_and_served(loaded)
        del loaded  # before the engine has weights of its own
        self._lender = Lender(self.model) if self._lends else None
        self._served = self._lender.borrower if self._lender else self._served
        self._engine = self._make_engine()
        memory = f"judge-{ranks.rank}" if ranks.count > 1 else "judge"
        self.judges = {
            env.key: Judge(env.config.judge, run_dir / f"{named(memory, env.name)}.jsonl")
            for env in self.envs
            if env.config.judge.is_on and self._engine is not None
        }
        self.teachers = self.make_teachers()

    def make_teachers(self) -> dict[str, HintTeacher]:
        """Return the teachers of hints by environment, on a rank that plays."""
        memory = f"teacher-{self.ranks.rank}" if self.ranks.count > 1 else "teacher"
        return {
            env.key: HintTeacher(env.config.strategy.guidance, self.run_dir / f"{named(memory, env.name)}.jsonl")
            for env in self.envs
            if env.config.strategy.teaches and self._engine is not None
        }

    @property
    def _asked(self) -> list[Judge | HintTeacher]:
        """Return the models behind endpoints that judge and teach."""
        return [*self.judges.values(), *self.teachers.values()]

    def announce(self, say: Callable[[str], None]) -> None:
        """Print the run's folder, once, before the first episodes, which may take long."""
        if not self._is_announced:
            self._is_announced = True
            say(f"run folder: {self.run_dir}")

    def keep_journal(self, say: Callable[[str], None]) -> None:
        """Write versions and files into the journal, and print what changed since the run began; first rank only.

        Raises:
            UsageError: checkpoints hold adapters alone, and the weights below them have changed.
        """
        if not self.ranks.is_main:
            return
        path = self.config.model.path
        folder = Path(local_model(path)) if path else Path()
        model = journal.model_facts(folder) if path and folder.is_dir() else {}
        if self.config.model.trains_adapters_of_files:
            self._check_base(model)
        changes = journal.note(
            self.run_dir, model={"path": path, **model}, own_files=journal.own_files(dataclasses.asdict(self.config))
        )
        files = [change.partition(":")[0].removeprefix(_OWN) for change in changes if change.startswith(_OWN)]
        if files:
            say(f"note: changed since this run was begun: {', '.join(files)}")
        if versions := [change for change in changes if not change.startswith(_OWN)]:
            say(f"note: this run was begun with other versions ({'; '.join(versions)})")

    def _check_base(self, model: Mapping[str, str]) -> None:
        begun = [line.get("model", {}).get("weights") for line in journal.read(self.run_dir)[:1]]
        if any(begun) and begun != [model.get("weights")]:
            raise UsageError(
                f"the weights in {self.config.model.path} have changed since this run was begun, and its checkpoints "
                "hold only the adapters over the earlier ones; bring these back, or begin another run"
            )

    def _make_pool(self, make_env: Callable[[], Env]) -> Pool:
        if self.cluster is not None and self.config.cluster.plays:
            return self.cluster.pool(make_env)
        return EnvPool(make_env, self.config.group.num_envs)

    def _make_engine(self) -> Engine | None:
        """Return the inference engine of a rank that samples, None on others."""
        ranks = self.ranks
        if self._lender is not None:
            return borrowing_engine(self.config, self._lender.borrower, self._lender.present, self.num_episodes)
        if self._shares_servers and not (ranks.is_main or self._all_send):
            return build_guest(self.config, self.model.config, ranks.rank)
        if self.cluster is not None and self.config.cluster.plays:
            return self._engine_on(self.cluster)
        is_sender = self._gathers and (ranks.is_main or self._all_send)
        source = self.model if is_sender else self._served
        if source is None:
            return None
        engine = build_engine(self.config, source, self.run_dir, self.num_episodes)
        if self._shares_servers and isinstance(engine, VllmEngine):
            engine.share(ranks.rank, ranks.count if self._all_send else 1)
        return engine

    def _engine_on(self, cluster: Cluster | JoinedCluster) -> Engine:
        """Return the engine on a Ray cluster. The first rank starts its actors before others look for them."""
        if not self.ranks.is_main:
            self.ranks.meet()
            return cluster.engine(None, self.tokenizer)
        engine = cluster.engine(self._served, self.tokenizer)
        if self.do_all_play:
            self.ranks.meet()
        return engine

    @property
    def _has_own_weights(self) -> bool:
        """True on a rank whose engine needs a whole model, to sample from or to give its weights to servers."""
        has_engine = self.do_all_play and not self.config.cluster.plays
        is_sender = self._all_send and not self._gathers
        needs_model = not self._lends and (not self._shares_servers or is_sender)
        return self.ranks.is_main or (has_engine and needs_model)

    def _trained_and_served(self, loaded: CausalLM | None) -> tuple[CausalLM, CausalLM | None]:
        """Return the model that is trained and, on a rank whose engine needs it, the model to sample from.

        Rollouts need a separate copy if the trained model is sharded, or if its weights change while they run (async
        mode) and the engine has none of its own.
        """
        ranks, precision = self.ranks, self.config.loss.precision
        needs_copy = self._has_own_weights and not self._lends
        if loaded is not None and (ranks.count == 1 or is_quantized(loaded)):
            is_shared = ranks.count == 1 and not self.config.samples_from_copy(on_gpu=loaded.device.type == "cuda")
            served = loaded if is_shared else frozen_copy(loaded) if needs_copy else None
            return shard(loaded, ranks, precision), served
        trained = shard_from_first(loaded, ranks, precision)
        return trained, never_trained(loaded) if loaded is not None and needs_copy else None

    @property
    def engine(self) -> Engine:
        """The inference engine; only ranks that sample have one."""
        assert self._engine is not None, "this rank does not play"
        return self._engine

    async def connect_engine(self, say: Callable[[str], None]) -> None:
        """Wait until an engine and env workers outside this process are ready. A second call does nothing."""
        if self.cluster is not None:
            await self.cluster.connect(say)
        if not self.ranks.is_main:
            if isinstance(self._engine, VllmEngine):
                await self._engine.connect(on_rank(self.ranks.rank))
            return
        if self._engine is not None and self._served is not None:
            for note in engine_notes(self._engine, self.config, self.model, self.tokenizer):
                say(note)
            await connect_engine(
                self._engine,
                self.config,
                self._served,
                self.tokenizer,
                self.run_dir,
                say,
                self.ranks.count,
                self.cluster.start_engines if self.cluster else lambda source: False,
            )
        for asked in self._asked:
            await asked.client.check()

    def engine_metrics(self) -> dict[str, float]:
        """Return counters since this process began: those of the engine, its servers and the env workers."""
        stats = {"engine": getattr(self._engine, "server_stats", None) or getattr(self._engine, "stats", None)}
        if self.cluster is not None:
            stats |= self.cluster.stats
        return {
            f"{of}/{name}": float(value)
            for of, counted in stats.items()
            if counted is not None
            for name, value in dataclasses.asdict(counted).items()
        }

    async def update_engine(self, version: int) -> None:
        """Send the model's current weights to the engine."""
        if self.config.engine.sleep:  # servers that wake take the memory of the gradients, whose step is over
            self.model.zero_grad()
        if self._lender is not None:
            self._lender.begin()
        elif self._served is not self.model and not self._gathers:
            copy_whole(self.model, self._served)
        if self._shares_servers:
            await self._update_servers(version)
        elif self.do_all_play:
            await self.ranks.from_all(lambda: self.engine.update_weights(version))
        else:
            if self._gathers:
                self._gather(version, self._known_dtypes())
            await self.ranks.from_main(lambda: self.engine.update_weights(version))

    def _gather(self, version: int, dtypes: Collection[str]) -> None:
        """Gather the weights that ranks write or send for servers. All ranks must call this.

        It comes after :meth:`connect_engine`, to which a new model's weights are still in the first rank's memory.
        """
        if self._gathered is None:
            is_sender = self.ranks.is_main or self._all_send
            weight_sync = self.config.engine.weight_sync
            self._gathered = GatheredWeights(self.model, self._served, weight_sync, is_sender=is_sender)
            if isinstance(self._engine, VllmEngine):
                self._engine.borrow(self._gathered)
        if isinstance(self._engine, VllmEngine):
            self._engine.forget()
        self._gathered.gather(probe_ids(version, facts_of(self.model.config).vocab_size), dtypes or DTYPES)

    def _known_dtypes(self) -> frozenset[str]:
        """Return the dtypes of all servers' computation, as far as they have told a rank. All ranks must call this."""
        own = self._engine.dtypes if isinstance(self._engine, VllmEngine) else frozenset()
        return frozenset().union(*self.ranks.gathered(own))

    async def _update_servers(self, version: int) -> None:
        """Give the servers from which all ranks sample their weights. All ranks must call this."""
        engine = self.engine
        assert isinstance(engine, ServersEngine)

        async def publish() -> Published:
            assert isinstance(engine, VllmEngine)
            return engine.publish(version, dtypes)

        known = await self.ranks.from_all(engine.hold)
        dtypes: frozenset[str] = frozenset().union(*(one.dtypes for one in known))
        if self._gathers:
            self._gather(version, dtypes)
        published = await self.ranks.from_main(publish)
        is_patient = not any(one.num_ready for one in known)
        given = await self.ranks.from_all(lambda: engine.give(published, is_patient=is_patient))
        if not any(given) and not is_patient:  # those that were ready are lost: wait until one is back
            given = await self.ranks.from_all(lambda: engine.give(published, is_patient=True))
        engine.adopt(Handover(published=published, servers={url: one for part in given for url, one in part.items()}))

    def _teacher(self) -> CausalLM | None:
        """Load the teacher of distillation, sharded as the policy is; None if the loss has no teacher.

        Raises:
            UsageError: the teacher's tokenizer differs from the policy's, so their probabilities cannot be compared.
        """
        source = self.config.loss.teacher
        if not source:
            return None
        teacher, tokenizer = load_model(source) if self.ranks.is_main else (None, self.tokenizer)
        if tokenizer.get_vocab() != self.tokenizer.get_vocab():
            raise UsageError(
                f"the teacher {source} has another tokenizer ({len(tokenizer)} tokens) than the policy "
                f"({len(self.tokenizer)} tokens), and distillation compares probabilities of the same tokens: choose a "
                "teacher of the same model family"
            )
        if teacher is not None:
            teacher.to("cuda" if torch.cuda.is_available() else "cpu")
            use_fused_attention(teacher)
            if self.ranks.count == 1:
                return never_trained(teacher)
        return never_trained(shard_from_first(teacher, self.ranks, self.config.loss.precision))

    def make_reference(self) -> Reference:
        """Return a frozen copy of the current policy as reference of the KL penalty, sharded as the policy is."""
        if self.config.needs_no_second_model:
            return EarlierAdapters(self.model)
        return never_trained(sharded_copy(self.model) if self.ranks.count > 1 else copy_of_trained(self.model))

    def whole_model(self) -> CausalLM | None:
        """Return the unsharded model on the first rank, None on the others. All ranks must call this."""
        if not isinstance(self.model, FSDPModule):
            return self.model
        if self._lender is not None:
            self._lender.give_all(is_kept=self.ranks.is_main)
        else:
            move_whole(self.model, self._served if self.ranks.is_main else None)
        return self._served if self.ranks.is_main else None

    async def close(self) -> None:
        """Close the engine and the environments."""
        if self._gateway is not None:
            await self._gateway.close()
        if self._engine is not None:
            await self._engine.close()
        for asked in self._asked:
            await asked.close()
        for env in self.envs:
            await env.close()
        if self.cluster is not None:
            await self.cluster.close_workers()
        self.leave_cluster()

    def leave_cluster(self) -> None:
        """Stop this run's actors on a cluster, whatever their state. A second call does nothing."""
        if self.cluster is not None:
            self.cluster.close()

    async def rest_engine(self) -> None:
        """Let inference servers on this GPU free their memory for training, if ``engine.sleep`` is set."""
        if self.config.engine.sleep and isinstance(self._engine, VllmEngine):
            await self._engine.rest()

    def make_agent(
        self, env: RunEnv, temperature: float | None = None, sampling: SamplingParams | None = None
    ) -> MakeAgent:
        """Return a factory of agents that sample from the run's policy. It is picklable if the engine is.

        Args:
            temperature: sampling temperature; by default that of training.
            sampling: by default the environment's.
        """
        engine, renderer, context = self._engine, self.renderer, env.config.context
        chosen = sampling or env.config.sampling
        if temperature is not None:
            chosen = dataclasses.replace(chosen, temperature=temperature)

        if self.config.harness.name:
            assert engine is not None, "this rank does not play"
            return self._harness_agents(engine, chosen, context)

        def make(env: Env, seed: int) -> ModelAgent:
            assert engine is not None, "this rank does not play"
            return ModelAgent(engine, renderer, chosen, seed, context, env.max_turns)

        return make

    def _harness_agents(self, engine: Engine, sampling: SamplingParams, context: ContextConfig) -> MakeAgent:
        """Return the agents that run episodes with the configured harness; all share one endpoint."""
        require_extra("harness.name", "serve", "fastapi", "uvicorn")
        from agentgym.endpoint.gateway import Gateway
        from agentgym.endpoint.play import HarnessAgents

        config = self.config.harness
        self._gateway = self._gateway or Gateway(config.host, config.port and config.port + self.ranks.rank)
        return HarnessAgents(engine, self.renderer, sampling, config, context, self._gateway)

    def make_reflect(self, env: RunEnv) -> Reflect | None:
        """Return a function that names the first mistake of a failure, and may advise; None on a rank that only trains.

        It is the judge's if retries begin at the first wrong turn (SCOPE), else the policy reflects itself (R3L).
        """
        if env.config.strategy.asks_judge:
            judge = self.judges.get(env.key)
            return None if judge is None else judge.reflect
        return None if self._engine is None else reflect_with(self._engine, self.renderer, env.config.sampling)

    def make_demonstrator(self, env: RunEnv) -> MakeAgent | None:
        """Return a factory of agents that act as the oracle does, in the policy's tokens; None for none."""
        if not env.config.strategy.demonstrates:
            return None
        renderer, context, sampling = self.renderer, env.config.context, env.config.sampling
        room = self.config.model.max_context_tokens

        def make(env: Env, seed: int) -> DemonstrationAgent:
            most = sampling.max_completion_tokens
            return DemonstrationAgent(lambda observation: env.oracle(), renderer, room, most, context, env.max_turns)

        return make

    def _model(self) -> tuple[CausalLM | None, Tokenizer]:
        """Return the model and its tokenizer; None for the model on a rank that receives its shard from the first."""
        config = self.config.model
        if config.path and not self._has_own_weights and config.lora.quantize == "none":
            return None, load_tokenizer(config.path)
        if config.path:
            model, tokenizer = load_model(config.path, config.lora.quantize)
        else:
            tokenizer = own_tokenizer(self.config, self.envs, self.run_dir, self.ranks, self.announce)
            model = build_model(tokenizer, config, derive_seed(self.config.seed, "model"))
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        check_experts(model, self.config, self.ranks.count, device)
        model = add_lora(model, config.lora, derive_seed(self.config.seed, "lora"))
        if not (self._gathers or self._lends):  # else the first rank sends shards from the machine's memory by tensors
            model.to(device)
        use_fused_attention(model)
        if self.ranks.count == 1 and not is_quantized(model):  # else it is not autocast that gives them
            skip_adapter_casts(model, self.config.loss.precision)
        check_model(model)
        if self.ranks.context is not None and not can_be_split(model):
            raise ConfigError(
                f"ranks.context_size={self.ranks.context.size} needs full causal attention in every layer, by torch's "
                f"kernels, and {model.config.model_type} has another: set ranks.context_size=1"
            )
        if self.config.loss.layout == "packed" and not can_be_packed(model):
            raise ConfigError(f"loss.layout=packed does not suit {config.path}: use loss.layout=prefix")
        return model, tokenizer
