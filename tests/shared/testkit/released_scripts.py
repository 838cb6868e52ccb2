"""Recipes and the released scripts they follow, for a test and for the tables of `docs/recipes.md`.

PYTHONPATH=.:tests/shared python -m testkit.released_scripts docs/recipes.md
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from agentgym.trainers.config.overrides import to_dict
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.recipes import load_recipe
from testkit.family_episodes import write_between

BEGIN, END = "<!-- begin: recipes -->", "<!-- end: recipes -->"
NO_CORRECTION = "The release has none. Where the engine's probabilities are the trainer's, its weights are 1"
DEALT = "We deal rows out over the minibatches, where the release takes them as they lie after balancing its ranks"
NATIVE = "The release has tags of its own in the prompt. Ours uses the model's tool-call format"
OLD_VERL = "This verl has no dual clip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key of our configuration, and the value in the released script."""

    key: str
    theirs: Any
    why: str = ""
    """Reason for a different value of ours; empty if the values are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """A recipe and the script it follows."""

    recipe: str
    script: str
    settings: tuple[Setting, ...]
    besides: tuple[str, ...] = ()
    """Differences that no key of our configuration describes."""


def settings(**values: Any) -> tuple[Setting, ...]:
    """Return settings with equal values; ``__`` in a name stands for a dot."""
    return tuple(Setting(key=name.replace("__", "."), theirs=value) for name, value in values.items())


def found(config: TrainConfig, key: str) -> Any:
    """Return the value of a dotted key; in lists the part of a kind, as in ``loss.regularisers.kl.coef``."""

    def step(value: Any, name: str) -> Any:
        if isinstance(value, list | tuple):
            return next((part for part in value if part["kind"] == name), None)
        return None if value is None else value.get(name)

    return reduce(step, key.split("."), json.loads(json.dumps(to_dict(config))))


VERL = settings(
    loss__clip_low=0.2, loss__clip_high=0.2, loss__num_epochs=1, optimizer__betas=[0.9, 0.999], optimizer__eps=1e-8,
    optimizer__weight_decay=0.01, optimizer__max_grad_norm=1.0, optimizer__schedule="constant",
    sampling__temperature=1.0,
)  # fmt: skip
WITHOUT_CORRECTION = (Setting(key="loss.corrections", theirs=[], why=NO_CORRECTION),)
GIGPO = (
    *VERL,
    *settings(
        loss__dual_clip=3.0, group__group_size=8, groups_per_step=16, sampling__max_new_tokens=512, num_steps=150,
        credit__estimator="gigpo", credit__gamma=0.95, credit__step_weight=1.0, context__policy="window",
        eval__temperature=0.4, eval__num_episodes=128, loss__minibatch="rows", optimizer__warmup_steps=0,
    ),
    *WITHOUT_CORRECTION,
)  # fmt: skip
VERL_AGENT = "zhangzf01/verl-agent@d501621:examples/gigpo_trainer"


def changed(base: tuple[Setting, ...], *changes: Setting) -> tuple[Setting, ...]:
    """Return the settings with some replaced, followed by further ones."""
    known = {setting.key: setting for setting in base} | {setting.key: setting for setting in changes}
    return tuple(known.values())


RELEASED = (
    Released(
        recipe="alfworld-qwen2.5-1.5b-fsdp",
        script=f"{VERL_AGENT}/run_alfworld.sh",
        settings=changed(
            GIGPO,
            *settings(
                env__kwargs__max_turns=50, context__num_turns=2, credit__norm="mean_std_norm",
                credit__invalid_penalty=0.1, loss__rows_per_update=256, loss__regularisers__kl__coef=0.01,
                loss__regularisers__entropy__coef=0.001, optimizer__lr=1e-6, model__lora__rank=0,
            ),
        ),
        besides=(DEALT, NATIVE),
    ),
    Released(
        recipe="alfworld-qwen2.5-7b",
        script=f"{VERL_AGENT}/run_alfworld_lora.sh",
        settings=changed(
            GIGPO,
            *settings(
                env__kwargs__max_turns=50, context__num_turns=2, credit__norm="mean_std_norm",
                credit__invalid_penalty=0.1, loss__rows_per_update=256, loss__regularisers__kl__coef=None,
                loss__regularisers__entropy__coef=0.001, optimizer__lr=3e-6, model__lora__rank=64,
                model__lora__alpha=64,
            ),
        ),
        besides=(DEALT, NATIVE),
    ),
    Released(
        recipe="webshop-qwen2.5-1.5b-fsdp",
        script=f"{VERL_AGENT}/run_webshop.sh",
        settings=changed(
            GIGPO,
            *settings(
                env__kwargs__max_turns=15, context__num_turns=2, credit__norm="mean_norm",
                credit__invalid_penalty=0.1, loss__rows_per_update=64, loss__regularisers__kl__coef=0.01,
                loss__regularisers__entropy__coef=0.001, optimizer__lr=1e-6,
            ),
            Setting(key="eval.num_episodes", theirs=256, why="One number for all recipes; set eval.num_episodes=256"),
        ),
        besides=(DEALT, NATIVE),
    ),
    Released(
        recipe="webshop-qwen3-4b-fsdp",
        script=f"{VERL_AGENT}/run_webshop_qwen3.sh",
        settings=changed(
            GIGPO,
            *settings(
                model__template_args__enable_thinking=False, loss__regularisers__kl__coef=None,
                credit__norm="mean_norm", loss__rows_per_update=64, optimizer__lr=1e-6,
            ),
            Setting(key="eval.num_episodes", theirs=256, why="One number for all recipes; set eval.num_episodes=256"),
            Setting(key="model.path", theirs="Qwen/Qwen3-1.7B", why="The model of this name; set model.path"),
        ),
        besides=(DEALT, NATIVE),
    ),
    Released(
        recipe="searchqa-qwen2.5-7b-fsdp",
        script=f"{VERL_AGENT}/run_search.sh",
        settings=changed(
            GIGPO,
            *settings(
                env__kwargs__max_turns=4, env__kwargs__search_only=True, env__kwargs__max_results=3,
                context__num_turns=4, credit__norm="mean_std_norm", group__group_size=5, groups_per_step=256,
                credit__invalid_penalty=0.01, credit__options__anchors="similarity",
                credit__options__similarity_threshold=0.9, loss__rows_per_update=512,
                loss__regularisers__kl__coef=0.001, loss__regularisers__entropy__coef=None, optimizer__lr=1e-6,
                num_steps=662, optimizer__warmup_steps=66,
            ),
            Setting(key="eval.num_episodes", theirs=512, why="One number for all recipes; set eval.num_episodes=512"),
            Setting(key="eval.temperature", theirs=0, why="One temperature for all recipes; set eval.temperature=0"),
        ),
        besides=(DEALT, NATIVE, "Steps and warm-up are one epoch of 169,615 questions, and a tenth of it"),
    ),
    Released(
        recipe="searchr1",
        script="PeterGriffinJin/Search-R1@a14dc3a:scripts/nq_hotpotqa/v0.2/train_grpo.sh",
        settings=changed(
            VERL,
            *settings(
                model__path="Qwen/Qwen2.5-7B", group__group_size=5, groups_per_step=512, num_steps=1005,
                sampling__max_new_tokens=500, env__kwargs__search_only=True, env__kwargs__max_results=3,
                env__kwargs__result_tokens=500, credit__estimator="grpo", loss__rows_per_update=256,
                loss__regularisers__kl__coef=0.001, loss__regularisers__entropy__coef=0.001, optimizer__lr=1e-6,
                optimizer__warmup_steps=286, context__policy="full",
            ),
            Setting(
                key="env.kwargs.max_turns",
                theirs=4,
                why="After four turns the release has the model answer once more. Ours counts that turn",
            ),
            Setting(key="loss.dual_clip", theirs=0.0),
            *WITHOUT_CORRECTION,
        ),
        besides=(DEALT, NATIVE, OLD_VERL),
    ),
    Released(
        recipe="igpo",
        script="GuoqingWang1/IGPO@bff163b:policy_optimization.sh",
        settings=changed(
            VERL,
            *settings(
                group__group_size=16, groups_per_step=32, sampling__max_new_tokens=2000, env__kwargs__max_turns=10,
                credit__estimator="igpo", loss__regularisers__kl__coef=0.001,
                loss__regularisers__entropy__coef=0.001, optimizer__lr=1e-6, model__max_context_tokens=32768,
                loss__rows_per_update=32, loss__dual_clip=3.0,
            ),
            *WITHOUT_CORRECTION,
        ),
        besides=(
            DEALT,
            NATIVE,
            "The script names no model and trains for one epoch. Ours takes Qwen2.5-7B-Instruct and 100 steps",
        ),
    ),
    Released(
        recipe="spiral",
        script="spiral-rl/spiral@a02d0ed:run.sh",
        settings=(
            *settings(
                model__path="Qwen/Qwen3-4B-Base", groups_per_step=128, group__group_size=1, num_steps=400,
                sampling__max_new_tokens=4096, sampling__temperature=1.0, model__max_context_tokens=12800,
                credit__estimator="rae", loss__num_epochs=2, loss__regularisers=[], optimizer__lr=1e-6,
                optimizer__schedule="constant", eval__temperature=0.6,
            ),
            *WITHOUT_CORRECTION,
        ),
        besides=(
            "The release trains on 128 turns a step, drawn from the 128 games; ours on all of them",
            "The release evaluates against a model of a vendor; ours against an equilibrium",
            NATIVE,
        ),
    ),
    Released(
        recipe="rstar2",
        script="microsoft/rStar@ecbfb94:examples/run_qwen3-14b_rstar2_agent_weave.sh",
        settings=changed(
            VERL,
            *settings(
                model__path="Qwen/Qwen3-14B-Base", group__group_size=32, groups_per_step=128, num_steps=200,
                credit__estimator="grpo", credit__selections__roc__keep=16, credit__selections__roc__min_positive=2,
                credit__selections__roc__min_negative=2, loss__clip_high=0.28, loss__dual_clip=3.0,
                loss__regularisers=[], loss__num_updates=1, sampling__max_new_tokens=8192, optimizer__lr=1e-6,
                optimizer__warmup_steps=20, model__max_context_tokens=10240,
            ),
            *WITHOUT_CORRECTION,
        ),
        besides=(
            "The release trains on DAPO's 17,000 problems and evaluates on AIME 2024, ours on generated problems",
            NATIVE,
        ),
    ),
)  # fmt: skip


def as_markdown() -> str:
    """Return the tables of the page."""
    lines: list[str] = []
    for released in RELEASED:
        config = load_recipe(released.recipe)
        lines += [
            f"## {released.recipe}",
            "",
            f"After `{released.script}`.",
            "",
            "| key | ours | theirs |",
            "|---|---|---|",
        ]
        lines += [
            f"| `{one.key}` | {shown(found(config, one.key))} | {shown(one.theirs)} |" for one in released.settings
        ]
        lines += ["", *(f"* `{one.key}`: {one.why}." for one in released.settings if one.why)]
        lines += [*(f"* {line}." for line in released.besides), ""]
    return "\n".join(lines)


def shown(value: Any) -> str:
    """Return the text of a value in a table's cell."""
    if value in (None, [], {}):
        return "none"
    if isinstance(value, list) and isinstance(value[0], dict):
        return ", ".join(part["kind"] for part in value)
    return f"`{json.dumps(value)}`" if not isinstance(value, str) else f"`{value}`"


if __name__ == "__main__":
    write_between(Path(sys.argv[1]), BEGIN, END, as_markdown())
