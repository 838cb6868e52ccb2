#!/usr/bin/env bash
# SmolLM2-135M learns an errand through mini-swe-agent: three steps, 5 minutes on two cores. Usage: train.sh RUN_DIR
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
run=${1:?usage: train.sh RUN_DIR}
demos=$(mktemp --suffix .jsonl)
trap 'rm -f "$demos"' EXIT
"$root/.venv/bin/python" "$here/make_demos.py" "$demos" 8
"$root/.venv/bin/agentgym" train smollm2-wiki "env.id=$here/errand_env.py:Errand-v0" 'env.kwargs={"sandbox": "process"}' \
    harness.name=mini_swe_agent "harness.options.python=$root/.venv-agents/bin/python" \
    "harness.options.config=$here/short.yaml" harness.options.step_limit=2 \
    sft.num_demos=0 "sft.files=[\"$demos\"]" num_steps=3 groups_per_step=2 group.group_size=8 group.num_envs=4 \
    sampling.max_new_tokens=32 model.max_context_tokens=1024 eval.num_episodes=16 eval.base=false --run-dir "$run"
