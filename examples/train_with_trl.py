"""Train with TRL's GRPOTrainer, an environment of agentgym and an advantage per turn (extra `trl`).

Run it with `python examples/train_with_trl.py`. It warms up a small model and takes about two minutes on one CPU core.
With a model of your own, leave out the warm start and name its folder.
"""

from __future__ import annotations

import argparse

import torch
from trl import GRPOConfig

import agentgym
from agentgym.credit.compose import CreditConfig
from agentgym.trainers.trl.environments import task_dataset
from agentgym.trainers.trl.settings import CreditSettings
from agentgym.trainers.trl.trainer import CreditGRPOTrainer

ENV = "agentgym/GuessNumber-v0"


def warm_model() -> str:
    """Return the folder of a small model that was fine-tuned on the oracle's demonstrations."""
    changes = {"env.id": ENV, "sft.num_demos": 300, "num_steps": 1, "eval.num_episodes": 8}
    return f"{agentgym.train('tiny', changes).run_dir}/model"


def main() -> None:
    """Train with TRL on agentgym's rollouts, with an advantage per turn from GiGPO."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=3)
    given = arguments.parse_args()
    torch.set_num_threads(1)
    trainer = CreditGRPOTrainer(
        warm_model(),
        ENV,
        settings=CreditSettings(credit=CreditConfig(estimator="gigpo")),
        args=GRPOConfig(
            output_dir="runs/trl",
            per_device_train_batch_size=16,  # episodes: four groups
            num_generations=4,  # episodes of a group
            max_completion_length=16,  # tokens of one turn
            max_steps=given.steps,
            learning_rate=1e-3,
            logging_steps=1,
            report_to="none",
            use_cpu=not torch.cuda.is_available(),
            bf16=torch.cuda.is_available(),
        ),
        train_dataset=task_dataset(ENV, "train", 400),
    )
    trainer.train()
    print("mean reward by step:", [round(row["reward"], 2) for row in trainer.state.log_history if "reward" in row])
    trainer.close()


if __name__ == "__main__":
    main()
