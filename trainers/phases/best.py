"""The best model so far by the evaluations of a run, and the end of RL when none has been better for a while."""

from __future__ import annotations

from pathlib import Path

from agentgym.evals.episodes import write_json
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.models.model import save_model
from agentgym.trainers.reporting.metrics import Log
from agentgym.trainers.run.folder import ROLES
from agentgym.trainers.run.run import Run

BEST = "best"
"""Folder of the best model in a run's folder and in those of trained roles, and name of the file with its step and
success."""


def best_of(run_dir: Path) -> tuple[int, float, int]:
    """Return the step and the success of a run's best evaluation, and the number of evaluations since then.

    Of equal ones the first is the best. They are read from ``metrics.jsonl``, which a resumed run cuts back to its
    checkpoint, so no other state is needed.
    """
    rows = [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "eval"]
    by_step = {int(row["step"]): float(row["success"]) for row in rows}  # of one step the last, as after RL
    step = max(by_step, key=lambda at: (by_step[at], -at))
    return step, by_step[step], sum(at > step for at in by_step)


async def note_evaluation(run: Run, log: Log, step: int) -> bool:
    """Keep the model if the evaluation after ``step`` is the best so far; return True if RL has come to its end.

    All ranks must call this.
    """
    config = run.config.eval
    if not config.keep_best and not config.patience:
        return False

    async def found() -> tuple[int, float, int]:
        return best_of(run.run_dir)

    best_step, success, num_since = await run.ranks.from_main(found)
    if config.keep_best and best_step == step:
        models = [(run.config, run.run_dir, run.policy, run.tokenizer)]
        models += [
            (role.config, run.run_dir / ROLES / name, role.policy, role.tokenizer)
            for name, role in run.roles.trained.items()
        ]
        for own, folder, policy, tokenizer in models:
            model = policy.whole_model()
            if model is not None:
                save_model(model, tokenizer, folder / BEST, own.context, own.model.chat)
        if run.ranks.is_main:
            write_json(run.run_dir / f"{BEST}.json", {"step": step, "success": success})
    is_over = 0 < config.patience <= num_since
    if is_over:
        log.say(
            f"RL ends after step {step}: {num_since} evaluations in a row are not better than {success:.3f} after step "
            f"{best_step} (eval.patience)"
        )
    return is_over
