"""vLLM's part of beside_vllm.py, run by the Python of vLLM's environment: sample in this process, on one thread.

It reads lines ``[[prompt ids], num_new_tokens]`` as JSON, and answers each with the seconds that sampling took.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main(folder: str, max_tokens: str, max_rows: str) -> None:
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    llm: Any = LLM(
        model=folder,
        dtype="float32",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=int(max_tokens),
        max_num_seqs=int(max_rows),
        gpu_memory_utilization=0.15,
        enable_chunked_prefill=False,  # a seeded request in two pieces crashes vLLM 0.32 on a CPU
        enable_prefix_caching=False,  # rounds repeat their prompts
    )
    print("ready", flush=True)
    for line in sys.stdin:
        prompts, num_new_tokens = json.loads(line)
        settings = [
            SamplingParams(
                temperature=1.0, max_tokens=num_new_tokens, ignore_eos=True, seed=seed, logprobs=0, detokenize=False
            )
            for seed in range(len(prompts))
        ]
        start = time.perf_counter()
        made = llm.generate([{"prompt_token_ids": ids} for ids in prompts], settings, use_tqdm=False)
        seconds = time.perf_counter() - start
        assert all(len(one.outputs[0].token_ids) == num_new_tokens for one in made)
        print(seconds, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
