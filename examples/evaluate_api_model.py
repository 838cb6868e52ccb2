"""Evaluate a model behind an OpenAI-compatible API, and compare it with a baseline task by task.

The key is read from OPENAI_API_KEY. For example:

    python examples/evaluate_api_model.py 'openai:https://api.openai.com/v1?model=gpt-4.1-mini' --episodes 50

If a request still fails after its retries, its episode counts as failed, separately from wrong answers.
"""

from __future__ import annotations

import argparse

import agentgym


def main() -> None:
    """Evaluate twice on the same tasks and compare the pairs."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("policy", help="openai:URL?model=NAME")
    arguments.add_argument("--env", default="agentgym/GuessNumber-v0")
    arguments.add_argument("--episodes", type=int, default=20)
    arguments.add_argument("--max-new-tokens", type=int, default=512, help="longest answer of a turn")
    given = arguments.parse_args()
    baseline = agentgym.evaluate(given.env, "random", episodes=given.episodes)
    print(f"random: {baseline}", flush=True)
    model = agentgym.evaluate(given.env, given.policy, episodes=given.episodes, max_new_tokens=given.max_new_tokens)
    print(f"model:  {model}")
    found = agentgym.compare(baseline, model)
    print(
        f"difference {found.difference:+.3f} ({found.difference_low:+.3f} to {found.difference_high:+.3f}), "
        f"p = {found.p_value:.3g}; {found.num_only_b} tasks only by the model, {found.num_only_a} only by chance"
    )
    for row in model.rows:
        if not row["success"]:
            print(f"not solved: {row['task_id']} ({row['status']}, {row['num_turns']} turns)")
    print(f"every turn of every episode: agentgym view {model.run_dir}")


if __name__ == "__main__":
    main()
