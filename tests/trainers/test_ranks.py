"""Several ranks train as one does; checkpoints of two go on at one, and of one at two."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit import TESTKIT
from testkit.checkpoints import drop_checkpoint
from testkit.ranked_grid import GRID
from testkit.ranked_parts import LOSSES
from testkit.ranked_reduce import WAYS
from testkit.ranked_update import small_model
from testkit.ranks import forked, launched
from testkit.sampling_vllm import facts_of_run, model_of_run, serving_all
from transformers.models.mistral import MistralConfig, MistralForCausalLM

from agentgym.errors import ConfigError
from agentgym.rollout.record import GroupRecord, read_json_lines, read_records, record_path
from agentgym.rollout.token_scores import read_scores
from agentgym.trainers.checkpoint import checkpoint_path
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.rank_limits import all_ranks_sample, check_ranks, do_lend, do_share_servers
from agentgym.trainers.distributed.tensor_folder import tensors_of
from agentgym.trainers.recipes import load_recipe

ENV_FILE = TESTKIT / "counting_env.py"
SMALL = (
    f"env.id={ENV_FILE}:Counting-v0",
    'model={"hidden_size": 32, "num_layers": 1, "head_dim": 16, "vocab_size": 320, "max_context_tokens": 160}',
    "sft.num_demos=64",
    "sft.num_epochs=2",
    "sft.batch_size=8",
    "sft.checkpoint_every=16",
    "sft.mix.weight=0.5",
    "loss.tokens_per_microbatch=128",
    "groups_per_step=3",
    "group.group_size=4",
    "eval.num_episodes=6",
    "checkpoint_every=1",
)


def train(address: str, num_ranks: int, *arguments: str) -> Any:
    """Return the result of ``agentgym train`` on several ranks."""
    return json.loads(forked(address, num_ranks, "-m", "agentgym", "train", *arguments, "--json"))


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(run_dir / "model" / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["rows", "prefix", "packed"])
def test_two_ranks_update_as_one(tmp_path: Path, layout: str, warm_python: str) -> None:
    results = []
    for num_ranks in (1, 2):
        out = tmp_path / f"{num_ranks}.pt"
        forked(warm_python, num_ranks, str(TESTKIT / "ranked_update.py"), str(out), layout)
        results.append(torch.load(out, weights_only=True))
    one, two = results
    assert one["model"].keys() == two["model"].keys()
    for name, tensor in one["model"].items():
        torch.testing.assert_close(two["model"][name], tensor, atol=1e-6, rtol=0)
    for expected, got in zip(one["metrics"], two["metrics"], strict=True):
        assert got == pytest.approx(expected, abs=1e-4)
    assert {row["stopped_by_kl"] for row in one["metrics"]} == {0.0, 1.0}, "both ranks stop, or neither"
    for index, held in one["optimizer"]["state"].items():
        for name, value in held.items():
            torch.testing.assert_close(two["optimizer"]["state"][index][name], value, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_two_ranks_in_bfloat16_learn_what_one_does(tmp_path: Path, warm_python: str) -> None:
    learnt = []
    for num_ranks in (1, 2):
        out = tmp_path / f"{num_ranks}.pt"
        forked(warm_python, num_ranks, str(TESTKIT / "ranked_update.py"), str(out), "rows", "bfloat16")
        found = torch.load(out, weights_only=True)["model"]
        assert {tensor.dtype for tensor in found.values()} == {torch.float32}
        begin = small_model().state_dict()
        learnt.append(torch.cat([(found[name] - begin[name]).flatten() for name in sorted(found)]))
    assert torch.nn.functional.cosine_similarity(learnt[0], learnt[1], dim=0) > 0.9


def test_engines_read_a_sharded_model_part_by_part_without_a_copy(warm_python: str) -> None:
    said = forked(warm_python, 2, str(TESTKIT / "ranked_lending.py"))
    assert said.count("the same") == 2


def test_files_for_servers_are_gathered_from_shards_without_a_copy(tmp_path: Path, warm_python: str) -> None:
    said = forked(warm_python, 2, str(TESTKIT / "ranked_gathering.py"), str(tmp_path))
    assert said.count("the same") == 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_ranks_whose_engines_compute_in_bfloat16_keep_no_copy(mode: str, tmp_path: Path, warm_python: str) -> None:
    entropy = 'loss.regularisers=[{"kind": "entropy", "coef": 0.01}]'  # a gradient, whatever succeeds
    more = ("engine.dtype=bfloat16", f"pipeline.mode={mode}", "num_steps=2", "zero_variance_filter=off", entropy)
    train(warm_python, 2, "tiny", *EVEN, *more, "--run-dir", str(tmp_path / "run"))
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert all(row["trained_tokens"] and row["grad_norm"] for row in rows) and rows[0]["logprob_gap_mean"] < 0.02
    saved = weights(tmp_path / "run")
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}
    drop_checkpoint(tmp_path / "run", 2)
    train(warm_python, 2, "--resume", str(tmp_path / "run"))
    if mode == "sync":
        assert all(torch.equal(tensor, saved[name]) for name, tensor in weights(tmp_path / "run").items())


@pytest.mark.parametrize(("num_ranks", "shard_size"), [(2, 0), (4, 2)], ids=["one copy", "two copies"])
def test_gradients_are_the_same_however_often_they_are_reduced(
    num_ranks: int, shard_size: int, tmp_path: Path, warm_python: str
) -> None:
    out = tmp_path / "found.pt"
    forked(warm_python, num_ranks, str(TESTKIT / "ranked_reduce.py"), str(out), str(shard_size))
    found = torch.load(out, weights_only=True)
    each, auto, once = (found[way] for way in WAYS)
    assert found["num_batches"] > 2 * num_ranks and each["change"].abs().max() > 1e-3
    for other in (auto, once):
        torch.testing.assert_close(other["change"], each["change"], atol=1e-6, rtol=0)
    num_modules = 4  # three layers, and what belongs to none
    assert once["scattered"] == 2 * num_modules, "once in each of two updates"
    assert each["scattered"] == auto["scattered"] > once["scattered"]
    if shard_size:
        assert each["summed"] > auto["summed"] >= 2 * num_modules


@pytest.mark.slow
def test_every_combination_of_settings_trains_on_two_ranks_as_on_one(tmp_path: Path, warm_python: str) -> None:
    """KL, LoRA, bfloat16 and layouts, with the scores of information gain."""
    one, two = tmp_path / "1.pt", tmp_path / "2.pt"
    for num_ranks, out in ((1, one), (2, two)):
        forked(warm_python, num_ranks, str(TESTKIT / "ranked_grid.py"), str(out))
    expected, found = torch.load(one, weights_only=True), torch.load(two, weights_only=True)
    assert set(expected) == set(found) and len(found) == len(GRID) == 24
    for point, want in expected.items():
        got = found[point]
        assert want["change"].abs().max() > 1e-3, point
        if "bfloat16" in point:
            assert torch.nn.functional.cosine_similarity(got["change"], want["change"], dim=0) > 0.95, point
            torch.testing.assert_close(got["scores"], want["scores"], atol=0.3, rtol=0, msg=point)  # rounding
        else:
            torch.testing.assert_close(got["change"], want["change"], atol=1e-4, rtol=0, msg=point)
            torch.testing.assert_close(got["scores"], want["scores"], atol=1e-4, rtol=0, msg=point)


@pytest.mark.slow
def test_two_ranks_train_adapters_with_kl_beside_rollouts(tmp_path: Path, warm_python: str) -> None:
    run_dir = tmp_path / "run"
    model = SMALL[1].replace("160}", '160, "lora": {"rank": 4}}')
    more = (
        model,
        "pipeline.mode=async",
        "zero_variance_filter=off",
        'loss.regularisers=[{"kind": "kl", "coef": 0.01}]',
    )
    assert train(warm_python, 2, "tiny", *SMALL, *more, "num_steps=2", "--run-dir", str(run_dir))["steps"] == 2
    drop_checkpoint(run_dir, 2)
    assert train(warm_python, 2, "--resume", str(run_dir))["steps"] == 2
    rows = [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]
    assert [row["step"] for row in rows] == [1, 2] and all(row["grad_norm"] > 0 for row in rows)
    assert max(row["logprob_gap_max"] for row in rows if row["step"] == 1) < 1e-3, "the copy that samples is the policy"


@pytest.mark.slow
def test_a_run_of_two_ranks_goes_on_at_one_and_the_other_way_round(tmp_path: Path, warm_python: str) -> None:
    whole = tmp_path / "one"
    assert train(warm_python, 1, "tiny", *SMALL, "num_steps=2", "--run-dir", str(whole))["steps"] == 2
    together = tmp_path / "two"
    command = ("-m", "agentgym", "train", "tiny", *SMALL, "num_steps=2", "--run-dir", str(together), "--json")
    result = json.loads(launched(2, *command))
    assert result["run_dir"] == str(together) and 0 <= result["success_after"] <= 1
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(weights(together)[name], tensor, atol=1e-5, rtol=0)
    rows = read_json_lines(together / "metrics.jsonl")
    assert [row["step"] for row in rows if row["phase"] == "rl"] == [1, 2], "one rank alone keeps the log"
    for first, then in ((2, 1), (1, 2)):
        run_dir = tmp_path / f"{first} then {then}"
        stopped_after_one_step(warm_python, first, run_dir)
        assert train(warm_python, then, "--resume", str(run_dir))["steps"] == 2
        for name, tensor in weights(whole).items():
            torch.testing.assert_close(weights(run_dir)[name], tensor, atol=1e-5, rtol=0)


def test_a_checkpoint_of_two_ranks_is_read_by_one_and_then_by_three_bit_for_bit(
    tmp_path: Path, warm_python: str
) -> None:
    held = []
    for num_ranks, how in ((2, "background"), (1, "background"), (3, "blocking")):
        out = tmp_path / f"{num_ranks}.pt"
        forked(warm_python, num_ranks, str(TESTKIT / "ranked_checkpoint.py"), str(tmp_path), str(out), how)
        held.append(torch.load(out, weights_only=True))
    written, *others = held
    assert [found["step"] for found in held] == [1, 2, 3]
    for found in others:
        assert found["num_trajectories"] == 18
        assert found["optimizer"]["param_groups"] == written["optimizer"]["param_groups"]
        for (path, tensor), (same_path, same) in zip(tensors_of(written), tensors_of(found), strict=True):
            assert path == same_path and torch.equal(tensor, same), path
    parts = sorted(path.name for path in checkpoint_path(tmp_path, "rl", 3).glob("*.distcp"))
    assert parts == ["__0_0.distcp", "__1_0.distcp", "__2_0.distcp"], "every rank writes its own part"
    of_rank = [path.stat().st_size for path in checkpoint_path(tmp_path, "rl", 3).glob("*.distcp")]
    assert max(of_rank) < 0.5 * sum(of_rank), "no rank writes the whole"
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["rl-000002", "rl-000003"], "the last two, nothing half-written"


def stopped_after_one_step(address: str, num_ranks: int, run_dir: Path) -> None:
    """A run of two steps that has its checkpoint of the first and was killed in the second."""
    train(address, num_ranks, "tiny", *SMALL, "num_steps=2", "--run-dir", str(run_dir))
    drop_checkpoint(run_dir, 2)
    assert (run_dir / "checkpoints" / "rl-000001").is_dir()


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory: pytest.TempPathFactory, warm_python: str) -> Path:
    """The folder of a small model and its tokenizer."""
    run_dir = tmp_path_factory.mktemp("saved") / "run"
    train(
        warm_python, 1, "tiny", *SMALL, "num_steps=0", "sft.num_demos=0", "sft.mix.weight=0", "--run-dir", str(run_dir)
    )
    return run_dir / "model"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_ranks", "more"),
    [
        (2, ()),
        (2, ('model.lora={"rank": 4}', 'loss.regularisers=[{"kind": "distill", "teacher": "MODEL"}]')),
        (4, ("ranks.shard_size=2",)),
        (2, ("ranks.rollouts=all", "engine.dtype=bfloat16")),
    ],
)
def test_the_first_rank_alone_loads_the_model_and_sends_each_its_part(
    num_ranks: int, more: tuple[str, ...], saved_model: Path, tmp_path: Path, warm_python: str
) -> None:
    overrides = [text.replace("MODEL", str(saved_model)) for text in more]
    settings = (
        f"env.id={ENV_FILE}:Counting-v0",
        f"model.path={saved_model}",
        "model.max_context_tokens=160",
        *overrides,
    )
    found = {}
    for count in (1, num_ranks):
        script = str(TESTKIT / "ranked_load.py")
        forked(warm_python, count, script, str(tmp_path / "run"), str(tmp_path / f"{count}.pt"), *settings)
        found[count] = torch.load(tmp_path / f"{count}.pt", weights_only=True)
    one, several = found[1], found[num_ranks]
    assert ("teacher" in one) is ("teacher" in " ".join(more))
    for part in one.keys() & {"model", "teacher"}:
        assert one[part].keys() == several[part].keys()
        assert all(torch.equal(several[part][name], tensor) for name, tensor in one[part].items())
    assert several["trained"] == one["trained"]
    copies = 2 if num_ranks == 4 else 1
    assert sum(several["sizes"]) == copies * one["sizes"][0] and max(several["sizes"]) < 0.6 * one["sizes"][0]


@pytest.mark.slow
def test_ranks_play_with_an_architecture_that_only_transformers_knows(
    saved_model: Path, tmp_path: Path, warm_python: str
) -> None:
    folder = shutil.copytree(saved_model, tmp_path / "mistral")
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    sizes = {"hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    MistralForCausalLM(MistralConfig(vocab_size=vocab_size, num_hidden_layers=2, **sizes)).save_pretrained(folder)
    settings = (*EVEN, f"model.path={folder}", "engine.dtype=bfloat16", "num_steps=1", "sft.num_demos=0")
    done = train(warm_python, 2, "tiny", *settings, "--run-dir", str(tmp_path / "run"))
    assert done["steps"] == 1 and done["num_trajectories"] == 16


@pytest.mark.slow
def test_what_loading_takes_is_measured_for_each_rank(saved_model: Path, warm_run: Callable[..., str]) -> None:
    changes = (
        f"env.id={ENV_FILE}:Counting-v0",
        "env.kwargs={}",
        f"model.path={saved_model}",
        "model.max_context_tokens=160",
    )
    told = warm_run("benchmarks/plan/loading.py", "--ranks", 2, "--change", *changes, "context.example_turns=0")
    found = json.loads(told)
    assert found["ranks"] == 2 and len(found["peak_mib"]) == 2 and min(found["peak_mib"]) > 0


@pytest.mark.slow
def test_losses_parts_of_an_update_and_critics_learn_on_two_ranks_as_on_one(tmp_path: Path, warm_python: str) -> None:
    found = []
    for num_ranks in (1, 2):
        out = tmp_path / f"{num_ranks}.pt"
        forked(warm_python, num_ranks, str(TESTKIT / "ranked_parts.py"), str(out))
        found.append(torch.load(out, weights_only=True))
    one, two = found
    assert one.keys() == two.keys() and LOSSES.keys() < one.keys()
    for name, expected in one.items():
        for part in expected.keys() - {"metrics"}:
            torch.testing.assert_close(two[name][part], expected[part], atol=1e-5, rtol=0, msg=name)
        assert two[name]["metrics"] == pytest.approx(expected["metrics"], abs=1e-4), name
    unlike = {tuple(one[name]["change"].tolist()) for name in LOSSES}
    assert len(unlike) == len(LOSSES), "each setting changes something"


TWO_WORLDS = TESTKIT / "two_worlds.py"
EVEN = (*SMALL, "groups_per_step=4", "sft.num_demos=320", "sft.mix.weight=0")


@pytest.mark.parametrize(
    ("num_ranks", "more", "num_episodes"), [(1, (), 6), (2, (), 3), (2, ("ranks.rollouts=first",), 6)]
)
def test_a_rank_plays_and_reserves_its_share_of_the_episodes(
    num_ranks: int, more: tuple[str, ...], num_episodes: int, tmp_path: Path, warm_python: str
) -> None:
    """Evaluations play as many at a time as training does."""
    script = str(TESTKIT / "ranked_episodes.py")
    found = json.loads(
        forked(warm_python, num_ranks, script, str(tmp_path), *SMALL, "eval.num_episodes=24", "group.num_envs=6", *more)
    )
    playing = [one for one in found if one is not None]
    assert len(playing) == (1 if more else num_ranks)
    assert playing == [{"slots": num_episodes, "evaluation": num_episodes, "training": num_episodes}] * len(playing)


@pytest.mark.slow
@pytest.mark.parametrize("num_groups", [4, 3])
def test_ranks_that_all_play_make_the_run_of_one_rank(num_groups: int, tmp_path: Path, warm_python: str) -> None:
    # a completion is the same whatever else is sampled
    exact = ("engine.batch_invariant=true", "num_steps=2", f"groups_per_step={num_groups}")
    train(warm_python, 1, "tiny", *EVEN, *exact, "--run-dir", str(tmp_path / "one"))
    train(warm_python, 2, "tiny", *EVEN, *exact, "--run-dir", str(tmp_path / "two"))
    for step in (0, 1):
        one, two = (read_records(record_path(tmp_path / name, step)) for name in ("one", "two"))
        ordinals = range(num_groups * step, num_groups * (step + 1))
        assert [record.group.ordinal for record in two] == list(ordinals)
        assert [played(record) for record in one] == [played(record) for record in two]
        scores = [read_scores(tmp_path / name, step) for name in ("one", "two")]
        assert scores[0] and list(scores[0]) == list(scores[1]) == sorted(scores[0]), "in the same order"
        for key, of_one in scores[0].items():
            assert scores[1][key].logprobs == pytest.approx(of_one.logprobs, abs=1e-4), key
    for label in ("before", "after"):
        found = [evaluated(tmp_path / name / "eval" / label) for name in ("one", "two")]
        assert len(found[0]) == 6 and found[0] == found[1]
    rows = [row for row in read_json_lines(tmp_path / "two" / "metrics.jsonl") if row["phase"] == "rl"]
    assert all(row["trained_tokens"] > 0 for row in rows)
    drop_checkpoint(tmp_path / "two", 2)
    ended = weights(tmp_path / "two")
    train(warm_python, 1, "--resume", str(tmp_path / "two"))
    for name, tensor in weights(tmp_path / "one").items():
        torch.testing.assert_close(ended[name], tensor, atol=1e-5, rtol=0)
        torch.testing.assert_close(weights(tmp_path / "two")[name], tensor, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [(), ("engine.weight_sync=lora", 'model.lora={"rank": 4}'), ('model.lora={"rank": 4}', "ranks.rollouts=first")],
)
def test_ranks_that_share_servers_make_the_run_of_one_rank(
    more: tuple[str, ...], tmp_path: Path, warm_python: str
) -> None:
    served = ("engine.kind=vllm", "num_steps=2", *more)
    config = apply_overrides(load_recipe("tiny"), [*EVEN, *served, 'engine.urls=["http://127.0.0.1:9"]'])
    facts = facts_of_run(config, tmp_path / "facts")
    asked: list[int] = []
    for count, name in ((1, "one"), (2, "two")):
        with serving_all(facts, 2) as (first, second):
            if "engine.weight_sync=lora" in more:
                base = apply_overrides(load_recipe("tiny"), EVEN)
                first.base, second.base = (model_of_run(base, tmp_path / "facts") for _ in range(2))
            urls = f'engine.urls=["{first.url}", "{second.url}"]'
            train(warm_python, count, "tiny", *EVEN, *served, urls, "--run-dir", str(tmp_path / name))
            assert min(len(first.requests), len(second.requests)) > 20, "both are asked"
            if first.base is None:
                assert (first.held["version"], second.held["version"]) == (2, 2)
            asked.append(sum("prompt_logprobs" not in r for r in (*first.requests, *second.requests)))
    assert asked[0] == asked[1], "nothing is sampled twice"
    for step in (0, 1):
        one, two = (read_records(record_path(tmp_path / name, step)) for name in ("one", "two"))
        assert [played(record) for record in one] == [played(record) for record in two]
    for name, tensor in weights(tmp_path / "one").items():
        torch.testing.assert_close(weights(tmp_path / "two")[name], tensor, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "dtype"), [("sync", torch.bfloat16), ("async", torch.float32)])
def test_each_rank_gives_the_server_on_its_gpu_the_weights(
    mode: str, dtype: torch.dtype, tmp_path: Path, warm_python: str
) -> None:
    """They are rounded to the servers' dtype; the model that is saved is not."""
    kept = {"async": ("pipeline.max_staleness=1", "zero_variance_filter=off"), "sync": ("engine.sleep=true",)}
    served = (f"pipeline.mode={mode}", *kept[mode], "engine.kind=vllm", "engine.weight_sync=ipc", "num_steps=2")
    config = apply_overrides(load_recipe("tiny"), [*EVEN])
    facts = facts_of_run(config, tmp_path / "facts")
    with serving_all(facts, 2) as both:
        for rank, server in enumerate(both):
            server.gpu, server.model = f"GPU-{rank}", model_of_run(config, tmp_path / "facts")
            server.facts["dtype"] = str(dtype).removeprefix("torch.")
        urls = f"engine.urls={json.dumps([server.url for server in both])}"
        arguments = ("train", "tiny", *EVEN, *served, urls, "--run-dir", str(tmp_path / "run"), "--json")
        forked(warm_python, 2, str(TESTKIT / "ranked_ipc.py"), *arguments)
        assert [server.senders for server in both] == [{"GPU-0"}, {"GPU-1"}]
        assert [server.held["version"] for server in both] == [2, 2]
        assert min(len(server.requests) for server in both) > 20, "both are asked"
        trained = weights(tmp_path / "run")
        for server in both:
            for name, tensor in server.model.named_parameters():
                torch.testing.assert_close(tensor.detach(), trained[name].to(dtype).float(), atol=0, rtol=0)
        is_exact = all(torch.equal(tensor, tensor.bfloat16().float()) for tensor in trained.values())
        assert not is_exact, "the model that is saved has all its bits"
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert {row["engine/num_left_out"] for row in rows} == {0.0}
    assert all(row["trained_tokens"] > 0 for row in rows)


def groups_of(run_dir: Path, num_steps: int) -> list[list[int]]:
    """The ordinals of every step, none with a token that is too old."""
    steps = []
    for step in range(num_steps):
        records = list(read_records(record_path(run_dir, step)))
        versions = {
            version
            for record in records
            for episode in record.group.trajectories
            for turn in episode.turns
            for version in turn.completion.policy_versions
        }
        assert max(versions) <= step and step - min(versions) <= 1
        steps.append([record.group.ordinal for record in records])
        assert steps[-1] == sorted(steps[-1])
    return steps


@pytest.mark.slow
def test_ranks_that_play_ahead_of_training_share_the_groups(tmp_path: Path, warm_python: str) -> None:
    """Any number of ranks goes on with the groups that others had begun."""
    ahead = ("pipeline.mode=async", "pipeline.max_staleness=1", "num_steps=4", "zero_variance_filter=off")
    run_dir = tmp_path / "run"
    train(warm_python, 2, "tiny", *EVEN, *ahead, "--run-dir", str(run_dir))
    rows = [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]
    assert all(row["trained_tokens"] > 0 for row in rows) and rows[0]["groups_ahead"] == 4
    for num_ranks in (1, 4):
        drop_checkpoint(run_dir, 3)
        drop_checkpoint(run_dir, 4)
        train(warm_python, num_ranks, "--resume", str(run_dir))
    assert sorted(ordinal for step in groups_of(run_dir, 4) for ordinal in step) == list(range(16))


@pytest.mark.slow
def test_ranks_that_play_ahead_share_servers(tmp_path: Path, warm_python: str) -> None:
    ahead = ("pipeline.mode=async", "pipeline.max_staleness=1", "num_steps=4", "zero_variance_filter=off")
    config = apply_overrides(
        load_recipe("tiny"), [*EVEN, *ahead, "engine.kind=vllm", 'engine.urls=["http://127.0.0.1:9"]']
    )
    with serving_all(facts_of_run(config, tmp_path / "facts"), 2) as (first, second):
        urls = f'engine.urls=["{first.url}", "{second.url}"]'
        train(warm_python, 2, "tiny", *EVEN, *ahead, "engine.kind=vllm", urls, "--run-dir", str(tmp_path / "run"))
    assert sorted(ordinal for step in groups_of(tmp_path / "run", 4) for ordinal in step) == list(range(16))
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert {row["engine/num_left_out"] for row in rows} == {0.0}
    assert all(row["trained_tokens"] > 0 for row in rows)


@pytest.mark.slow
def test_ranks_agree_on_the_order_of_a_mixtures_environments(tmp_path: Path, warm_python: str) -> None:
    """Also where shares follow what both ranks observed."""
    envs = [{"id": f"{TWO_WORLDS}:Adding-v0", "weight": 2}, {"id": f"{TWO_WORLDS}:Picking-v0"}]
    exact = ("engine.batch_invariant=true", "num_steps=2", f"envs={json.dumps(envs)}", "mixture.by=progress")
    for count, name in ((1, "one"), (2, "two")):
        train(warm_python, count, "tiny", *EVEN, *exact, "--run-dir", str(tmp_path / name))
    for step in (0, 1):
        one, two = (read_records(record_path(tmp_path / name, step)) for name in ("one", "two"))
        assert {record.group.env_name for record in one} == {"adding", "picking"}
        assert [record.group.env_name for record in one] == [record.group.env_name for record in two]
        assert [played(record) for record in one] == [played(record) for record in two]
    for name, tensor in weights(tmp_path / "one").items():
        torch.testing.assert_close(weights(tmp_path / "two")[name], tensor, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_each_rank_may_have_an_engine_that_a_user_made(tmp_path: Path, warm_python: str) -> None:
    made = (f"engine.kind={TESTKIT / 'user_parts.py'}:noted", "num_steps=2", "ranks.rollouts=all")
    for count, name in ((1, "one"), (2, "two")):
        train(warm_python, count, "tiny", *EVEN, *made, "--run-dir", str(tmp_path / name))
    rows = [row for row in read_json_lines(tmp_path / "two" / "metrics.jsonl") if row["phase"] == "rl"]
    assert all(row["trained_tokens"] > 0 for row in rows)
    one, two = (read_records(record_path(tmp_path / name, 0)) for name in ("one", "two"))
    assert [record.group.ordinal for record in one] == [record.group.ordinal for record in two]
    assert max(row["logprob_gap_max"] for row in rows) < 1e-4, "each samples from the weights that are trained"


def evaluated(folder: Path) -> list[tuple[Any, ...]]:
    """Return what an evaluation found of each task."""
    rows = read_json_lines(folder / "episodes.jsonl")
    return sorted((row["task_id"], row["success"], row["return"], row["num_turns"]) for row in rows)


def played(record: GroupRecord) -> list[Any]:
    """What was sampled in a group, and what it was worth."""
    return [
        [(turn.completion.token_ids, turn.reward) for turn in trajectory.turns]
        for trajectory in record.group.trajectories
    ]


def test_all_ranks_play_where_they_can() -> None:
    config = apply_overrides(load_recipe("tiny"), ["groups_per_step=8"])
    assert not all_ranks_sample(config, 1)
    assert all_ranks_sample(config, 2) and all_ranks_sample(config, 8) and all_ranks_sample(config, 3)
    assert not all_ranks_sample(apply_overrides(config, ["ranks.rollouts=first"]), 2)
    on_ray = apply_overrides(config, ["cluster.address=local"])
    assert all_ranks_sample(on_ray, 2) and not do_lend(on_ray, 2, on_gpu=True)
    assert not do_share_servers(apply_overrides(on_ray, ["engine.kind=vllm"]), 2), "the actors have them"
    assert not all_ranks_sample(apply_overrides(on_ray, ["ranks.rollouts=first"]), 2)
    own = [f"engine.kind={TESTKIT / 'user_parts.py'}:noted"]
    assert not all_ranks_sample(apply_overrides(config, own), 2)
    assert all_ranks_sample(apply_overrides(config, [*own, "ranks.rollouts=all"]), 2)
    for override, said in (
        (["pipeline.mode=async", "groups_per_step=3"], "pipeline.mode=async and groups_per_step=3, which 2 ranks do"),
    ):
        hindered = apply_overrides(config, override)
        assert not all_ranks_sample(hindered, 2)
        with pytest.raises(ConfigError, match=f"ranks.rollouts=all cannot go with {said}"):
            check_ranks(apply_overrides(hindered, ["ranks.rollouts=all"]), 2)


@pytest.mark.slow
def test_two_copies_of_the_model_on_two_ranks_each_train_as_one_rank(tmp_path: Path, warm_python: str) -> None:
    """HSDP: weights are gathered within a copy, gradients are added up over both."""
    exact = ("engine.batch_invariant=true", "num_steps=2")
    train(warm_python, 1, "tiny", *EVEN, *exact, "--run-dir", str(tmp_path / "one"))
    train(warm_python, 4, "tiny", *EVEN, *exact, "ranks.shard_size=2", "--run-dir", str(tmp_path / "four"))
    for name, tensor in weights(tmp_path / "one").items():
        torch.testing.assert_close(weights(tmp_path / "four")[name], tensor, atol=1e-5, rtol=0)
    drop_checkpoint(tmp_path / "four", 2)
    train(warm_python, 2, "--resume", str(tmp_path / "four"))
    for name, tensor in weights(tmp_path / "one").items():
        torch.testing.assert_close(weights(tmp_path / "four")[name], tensor, atol=1e-5, rtol=0)


def test_copies_of_a_model_have_the_same_number_of_ranks() -> None:
    config = apply_overrides(load_recipe("tiny"), ["ranks.shard_size=4"])
    check_ranks(config, 8)
    with pytest.raises(ConfigError, match=r"ranks\.shard_size=4 does not divide 6 ranks"):
        check_ranks(config, 6)


RUNS = {
    "critic": ("credit.estimator=token_gae", "critic.lr=1e-3", 'loss.corrections=[{"kind": "m2po"}]'),
    "twin critics": ("credit.estimator=archer", "critic.lr=1e-3", "loss.kind=bapo"),
    "spo": (f"env.id={TESTKIT / 'clue_env.py'}:Clue-v0", "env.kwargs.num_tasks=3", "credit.estimator=spo"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_two_ranks_ends_as_that_of_one_also_when_resumed_by_one(
    name: str, tmp_path: Path, warm_python: str
) -> None:
    command = ("tiny", *SMALL, *RUNS[name], "num_steps=2", "--run-dir")
    train(warm_python, 1, *command, str(tmp_path / "one"))
    train(warm_python, 2, *command, str(tmp_path / "two"))
    drop_checkpoint(tmp_path / "two", 2)
    ended = weights(tmp_path / "two")
    train(warm_python, 1, "--resume", str(tmp_path / "two"))
    for tensor_name, tensor in weights(tmp_path / "one").items():
        torch.testing.assert_close(ended[tensor_name], tensor, atol=1e-5, rtol=0)
        torch.testing.assert_close(weights(tmp_path / "two")[tensor_name], tensor, atol=1e-5, rtol=0)
    rows = [row for row in read_json_lines(tmp_path / "two" / "metrics.jsonl") if row["phase"] == "rl"]
    assert [row["step"] for row in rows] == [1, 2] and all(row["grad_norm"] > 0 for row in rows)


def test_what_several_ranks_cannot_do_is_refused() -> None:
    sft = 'sft={"trainer": "trl", "num_demos": 4, "observation_weight": 0}'
    config = apply_overrides(load_recipe("tiny"), [sft])
    check_ranks(config, 1)
    with pytest.raises(ConfigError, match=r"sft\.trainer=trl"):
        check_ranks(config, 2)
