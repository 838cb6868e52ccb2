"""Checks of what only a GPU can show, in minutes: one line a check, PASS, FAIL or SKIP, with its value and its limit.

    make gpu-check                                                  on a GPU; JSON in benchmarks/gpu/check.json
    python benchmarks/gpu/check.py --device cpu --out check.json    on a CPU, to see that it runs

Nothing is downloaded: models have random weights. A check that raises is a FAIL with its error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import speed
import torch
import torch.nn.functional as F
from engine import build, sample_all, synchronize
from head import head
from ranked import two_ranks
from real_model import real_model
from rows import Row
from servers import servers
from torch.nn.attention import SDPBackend, sdpa_kernel
from train import episodes, update_on_samples

from agentgym.engine import SamplingParams
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.distributed.devices import on_background_thread
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.distributed.tensor_folder import held_in_memory, load_tree, read_outline, save_tree
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.models import compiled
from agentgym.trainers.models.precision import allow_tf32, chosen_backend, matched_heads, use_fused_attention
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train

VOCAB = {"tiny": 512, "0.5B": 151936, "1.5B": 151936}
ENTROPY = 'loss.regularisers=[{"kind": "entropy", "coef": 0.01}]'
RUN = ("num_steps=2", "sft.num_demos=16", "eval.num_episodes=4", "zero_variance_filter=off", ENTROPY)
"""So small a run has no successes; its gradient is the entropy's."""


def attention(device: torch.device, shape: str) -> Iterator[Row]:
    """Compare attention with the math kernel by dtype, mask and grouping; check that another kernel is chosen."""
    length = 2048 if device.type == "cuda" else 64
    for dtype, has_mask, heads in product((torch.float32, torch.bfloat16), (False, True), (8, 2)):
        query = torch.randn(2, 8, length, 64, device=device, dtype=dtype)
        key, value = (torch.randn(2, heads, length, 64, device=device, dtype=dtype) for _ in range(2))
        mask = torch.zeros(1, 1, length, length, device=device, dtype=dtype).masked_fill_(
            ~torch.ones(length, length, device=device, dtype=torch.bool).tril(), -torch.inf
        )
        given = mask if has_mask else None
        same = matched_heads(query, key, value, given)
        backend = chosen_backend(query, *same, given, is_causal=not has_mask)
        is_grouped = same[0].shape[1] != 8
        call = partial(
            F.scaled_dot_product_attention, query, *same, given, is_causal=not has_mask, enable_gqa=is_grouped
        )
        got = call()
        with sdpa_kernel(SDPBackend.MATH):
            want = F.scaled_dot_product_attention(
                query.float(), key.float(), value.float(), mask.float(), enable_gqa=heads != 8
            )
        name = f"attention {str(dtype)[6:]} {'mask' if has_mask else 'causal'} {8 // heads} queries a key"
        error = float("nan") if backend == SDPBackend.MATH else (got.float() - want).abs().max().item()
        yield Row(name, error, 0.05 if dtype == torch.bfloat16 else 5e-3, f"{backend.name}{cost(device, call)}")


def cost(device: torch.device, call: Callable[[], object]) -> str:
    """Return the milliseconds and the GiB of a call on a GPU, as the end of a note; nothing on a CPU."""
    if device.type != "cuda":
        return ""
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - held
    start = time.perf_counter()
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    return f", {(time.perf_counter() - start) / 20 * 1e3:.2f} ms, {peak / 2**30:.2f} GiB"


def gap_to_forward(engine: TorchEngine, model: Any, vocab_size: int) -> float:
    """Return the largest difference between sampled log-probabilities and those of the model's own forward."""
    ids = torch.randint(vocab_size, (40,), generator=torch.Generator().manual_seed(3)).tolist()
    done = asyncio.run(engine.generate(ids, SamplingParams(max_new_tokens=12, seed=5)))
    with torch.no_grad():
        whole = torch.tensor([[*ids, *done.token_ids]], device=model.device)
        logprobs = model(whole).logits[0, 39:-1].float().log_softmax(-1)
    own = logprobs[range(12), list(done.token_ids)]
    return (own.cpu() - torch.tensor(done.logprobs)).abs().max().item()


def engine(device: torch.device, shape: str) -> Iterator[Row]:
    """Check the embedded engine's steps of fixed shape before an update, after it, and while another thread trains."""
    model, other = build(shape, device).float(), build(shape, device).float()
    for each in (model, other):
        use_fused_attention(each)
    served = TorchEngine(model, num_slots=4, max_context_tokens=256, fixed_decode=True)
    yield Row("engine: log-probabilities", gap_to_forward(served, model, VOCAB[shape]), 1e-2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    asyncio.run(served.update_weights(1))
    yield Row("engine: log-probabilities after an update", gap_to_forward(served, model, VOCAB[shape]), 1e-2)
    started = time.perf_counter()
    errors: list[Exception] = []

    def steps() -> None:
        try:
            step(other, "auto", shape, lr=1e-6)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=on_background_thread(steps))
    thread.start()
    asyncio.run(sample_all(served, VOCAB[shape], 4, 16))
    gap = gap_to_forward(served, model, VOCAB[shape])
    thread.join()
    for error in errors:
        raise error
    yield Row("engine: beside a training thread", gap, 1e-2, f"{time.perf_counter() - started:.1f} s")
    asyncio.run(served.close())


def step(model: Any, precision: Any, shape: str, lr: float = 0.0, *, is_compiled: bool = False) -> torch.Tensor:
    """Take one optimizer step and return the gradient of the first layer's queries."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    config = LossConfig(precision=precision, layout="rows", tokens_per_microbatch=2048, compile=is_compiled)
    update_on_samples(model, optimizer, episodes(1, 16, 2, 8, VOCAB[shape]), config, max_grad_norm=1e9)
    gradient: torch.Tensor = model.model.layers[0].self_attn.q_proj.weight.grad.flatten().clone()
    return gradient


def precisions(device: torch.device, shape: str) -> Iterator[Row]:
    """Compare gradients in TF32 and bfloat16 with IEEE's float32: one minus the cosine."""
    model = build(shape, device).float()
    use_fused_attention(model)
    allow_tf32("float32_ieee")
    exact = step(model, "float32_ieee", shape)
    for precision in ("float32", "bfloat16"):
        allow_tf32(precision)  # type: ignore[arg-type]
        started = time.perf_counter()
        found = step(model, precision, shape)
        synchronize(device)
        taken = time.perf_counter() - started
        yield Row(
            f"gradient in {precision}", 1 - F.cosine_similarity(found, exact, dim=0).item(), 0.02, f"{taken:.2f} s"
        )


def compiling(device: torch.device, shape: str) -> Iterator[Row]:
    """Compare the gradient of compiled layers with plain ones. On a CPU no code is generated, to save a minute."""
    model = build(shape, device).float()
    use_fused_attention(model)
    compiled.BACKEND = "inductor" if device.type == "cuda" else "aot_eager"
    seconds: list[float] = []
    gradients = []
    for is_compiled in (False, False, True, True):
        started = time.perf_counter()
        gradients.append(step(model, "auto", shape, is_compiled=is_compiled))
        synchronize(device)
        seconds.append(time.perf_counter() - started)
    note = f"a step: plain {seconds[1]:.3f} s, compiled {seconds[3]:.3f} s; compiling {seconds[2]:.1f} s"
    yield Row(
        "compiled layers: gradient", 1 - F.cosine_similarity(gradients[1], gradients[3], dim=0).item(), 1e-3, note
    )


def checkpoints(device: torch.device, shape: str) -> Iterator[Row]:
    """Compare the weights that a thread writes during training with the weights at the time of the copy."""
    model = build(shape, device).float()
    before = {name: tensor.cpu().clone() for name, tensor in model.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as thread:
        started = time.perf_counter()
        tree = held_in_memory({"model": model.state_dict()})
        copied_s = time.perf_counter() - started
        written = thread.submit(save_tree, Path(folder), tree, {}, Ranks())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        written.result()
        written_s = time.perf_counter() - started - copied_s
        found = load_tree(Path(folder), read_outline(Path(folder))[0], {}, Ranks())["model"]
    gap = max((found[name] - tensor).abs().max().item() for name, tensor in before.items())
    note = f"training stops for {copied_s:.2f} s, the disk takes {written_s:.2f} s"
    yield Row("checkpoint beside training: largest difference", gap, 0.0, note)


def runs(device: torch.device, shape: str) -> Iterator[Row]:
    """Train a short run in each mode, and compare sampled with trained log-probabilities."""
    for mode in ("sync", "async"):
        with tempfile.TemporaryDirectory() as folder:
            config = apply_overrides(load_recipe("household-smoke"), [*RUN, f"pipeline.mode={mode}"])
            train(config, Path(folder) / "run")
            rows = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
        steps = [row for row in rows if row["phase"] == "rl"]
        # else nothing is compared
        has_trained = all(row["trained_tokens"] and row["grad_norm"] for row in steps)
        # of the first step: in async mode the next is sampled from older weights
        gap = steps[0]["logprob_gap_mean"] if has_trained else float("nan")
        yield Row(f"run in {mode} mode: log-probability gap", gap, 0.1 if device.type == "cuda" else 1e-3)


CHECKS: tuple[Callable[[torch.device, str], Iterator[Row]], ...] = (
    attention,
    engine,
    precisions,
    compiling,
    head,
    checkpoints,
    runs,
    two_ranks,
    servers,
    *speed.CHECKS,
    real_model,
)


def checked(check: Callable[[torch.device, str], Iterator[Row]], device: torch.device, shape: str) -> Iterator[Row]:
    """Return the rows of a check. If it raises, return a failed row, so that the other checks still run."""
    try:
        yield from check(device, shape)
    except Exception as error:
        traceback.print_exc()
        yield Row(check.__name__, float("nan"), 0.0, f"{type(error).__name__}: {error}")


def main() -> int:
    """Check, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", choices=list(VOCAB), default="")
    parser.add_argument(
        "--only", nargs="+", choices=[check.__name__ for check in CHECKS], help="these alone; a file's others stay"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("check.json"))
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("this machine has no GPU; --device cpu tries the checks at a tiny size")
    shape = options.shape or ("0.5B" if device.type == "cuda" else "tiny")
    machine = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
    about = {"machine": machine, "torch": torch.__version__, "date": date.today().isoformat(), "shape": shape}
    names = [check.__name__ for check in CHECKS]
    made = earlier(options.out, about) if options.only else {}
    passed = True
    for check in CHECKS:
        if options.only and check.__name__ not in options.only:
            continue
        started = time.perf_counter()
        rows: list[dict[str, Any]] = []
        for row in checked(check, device, shape):
            rows.append(row.to_dict())
            passed &= row.passed
            print(f"{row.verdict}  {row.name:60}  {row.value:.3g}  (limit {row.limit:g})  {row.note}", flush=True)
        made[check.__name__] = {"seconds": round(time.perf_counter() - started, 1), "rows": rows}
        print(f"      {check.__name__}: {made[check.__name__]['seconds']} s", flush=True)
        # after each check, so that a run that is cut off leaves what it found
        checks = {name: made[name] for name in names if name in made}
        options.out.write_text(json.dumps(about | {"checks": checks}, indent=1) + "\n", encoding="utf-8")
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return 0 if passed else 1


def earlier(path: Path, about: dict[str, str]) -> dict[str, Any]:
    """Return the checks of an earlier run in a file, if it was one of this machine, day and size."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    checks: dict[str, Any] = found.get("checks", {})
    return checks if {name: found.get(name) for name in about} == about else {}


if __name__ == "__main__":
    raise SystemExit(main())
