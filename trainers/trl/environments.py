"""Our environments as TRL's ``environment_factory``: TRL generates, parses the calls and runs the tools.

TRL reads a class: every public method is a tool, ``reset(**row)`` gives the first observation, and reward functions
see the instances. Three things it cannot do are the price of this direction:

* it cannot leave a rollout out of its loss. :func:`episode_return` gives None for what the infrastructure spoilt, which
  TRL keeps out of the group's mean and deviation and trains with advantage 0; its tokens stay in the denominator of the
  loss, and a KL term or an entropy bonus still acts on them;
* it cannot play a rollout again, so only a reset is retried;
* it gives one advantage to a whole episode.

:class:`~agentgym.trainers.trl.trainer.CreditGRPOTrainer` has none of these limits.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from agentgym.env.env import Env
from agentgym.errors import MissingExtraError, RunStoppedError, UsageError
from agentgym.registry import make
from agentgym.rollout.request import EpisodeLimits
from agentgym.trainers.trl.episode import Episode, EpisodeSettings
from agentgym.trainers.trl.event_loop import EventLoopThread
from agentgym.trainers.trl.schemas import tool_method
from agentgym.types import Json, Task

if TYPE_CHECKING:
    from datasets import Dataset

TASK_COLUMNS = ("task_id", "task_split", "task_index", "task_seed")


class TrlEnvironment:
    """An environment in the form TRL reads; :func:`environment_factory` adds the tools as methods.

    It has no other public method than ``reset``, since TRL would take it for a tool.
    """

    _settings: EpisodeSettings
    _loop: EventLoopThread

    def __init__(self) -> None:
        self._episode = Episode(self._settings, self._loop)
        weakref.finalize(self, self._episode.close)  # TRL never closes an environment

    def reset(self, task_id: str = "", task_split: str = "", task_index: int | None = None, **columns: object) -> str:
        """Begin the episode of a dataset's row; the other columns are not the environment's business."""
        if task_index is None:
            raise UsageError(
                f"the rows of the dataset have no columns {', '.join(TASK_COLUMNS)}, by which all rollouts of a group "
                "start from one state; make the dataset with task_dataset()"
            )
        return self._episode.begin(task_split, task_index, task_id)


def environment_factory(
    env_id: str | Callable[[], Env],
    *,
    limits: EpisodeLimits = EpisodeLimits(),  # noqa: B008  (frozen)
    max_retries: int = 2,
    max_failure_rate: float = 0.5,
    **kwargs: Any,
) -> type[TrlEnvironment]:
    """An environment as what ``GRPOTrainer(environment_factory=...)`` takes, its tools as methods.

    One call of a tool is one turn of the environment, also where the policy writes several calls at once. Observations
    are text, appended to the last user message of the row's prompt.

    Args:
        env_id: a registered id, ``module:Id``, ``file.py:Id``, or a function that makes the environment.
        limits: how long a reset and a call may take before the environment counts as hung.
        max_retries: times a reset is tried again on a fresh environment.
        max_failure_rate: share of a batch lost to the infrastructure above which :func:`episode_return` stops the run.
        kwargs: arguments of the environment.

    Raises:
        UsageError: the environment has no tools, so that TRL has nothing to call.
        ConfigError: a tool has a name that TRL cannot expose.

    Example:
        >>> factory = environment_factory("agentgym/Household-v0")
        >>> household = factory()
        >>> household.reset(task_id="train-0", task_split="train", task_index=0)[:28]
        'You are in the middle of a r'
        >>> household.look()[:28]
        'You are in the middle of a r'
    """
    make_env = env_maker(env_id, kwargs)
    probe = make_env()
    tools, name = probe.tools, type(probe).__name__
    probe.close()
    if not tools:
        raise UsageError(f"{name} has no tools: TRL's environment_factory drives an environment by its tools alone")
    methods = {spec.name: tool_method(spec, _call) for spec in tools}
    settings = EpisodeSettings(
        make_env=make_env, limits=limits, max_retries=max_retries, max_failure_rate=max_failure_rate
    )
    return type(name, (TrlEnvironment,), {**methods, "_settings": settings, "_loop": EventLoopThread(name)})


def episode_return(
    prompts: Sequence[object],
    completions: Sequence[object],
    environments: Sequence[object],
    log_metric: Callable[[str, float], None] | None = None,
    **columns: object,
) -> list[float | None]:
    """The reward function that goes with :func:`environment_factory`: each episode's return.

    None where the infrastructure failed, which is no reward, and for environments of other makers in a mixed run. The
    share of lost episodes, and the success of the others, are logged.

    Raises:
        RunStoppedError: more of the batch than ``max_failure_rate`` was lost to the infrastructure.
    """
    ours = [environment for environment in environments if isinstance(environment, TrlEnvironment)]
    lost = [environment._episode for environment in ours if environment._episode.is_lost]
    _stop_if_failing(ours, lost)
    if log_metric is not None and ours:
        log_metric("rollouts/lost_share", len(lost) / len(ours))
        valid = [environment._episode for environment in ours if not environment._episode.is_lost]
        log_metric("rollouts/success", fmean([episode.success for episode in valid] or [0.0]))
    return [
        environment._episode.reward if isinstance(environment, TrlEnvironment) else None for environment in environments
    ]


def task_dataset(
    env_id: str | Callable[[], Env], split: str = "train", num_tasks: int = 1000, **kwargs: Any
) -> Dataset:
    """The first tasks of a split as a dataset for TRL, at most ``num_tasks``.

    Columns: ``task_id``, ``task_split``, ``task_index``, ``task_seed``, and ``prompt``, a user message without text to
    which TRL appends the first observation.

    Raises:
        MissingExtraError: the library ``datasets`` is not installed.
        UsageError: there is no such environment or split.
    """
    try:
        from datasets import Dataset
    except ImportError as error:
        raise MissingExtraError("task_dataset", "trl") from error
    env = env_maker(env_id, kwargs)()
    tasks = env.tasks(split)
    rows = [_row(tasks[index], split, index) for index in range(min(num_tasks, len(tasks)))]
    env.close()
    return Dataset.from_list(rows)


def _row(task: Task, split: str, index: int) -> dict[str, Json]:
    return {
        "prompt": [{"role": "user", "content": ""}],
        "task_id": task.id,
        "task_split": split,
        "task_index": index,
        "task_seed": task.seed,
    }


def env_maker(env_id: str | Callable[[], Env], kwargs: Mapping[str, object]) -> Callable[[], Env]:
    """Return what makes the environment of an id, with arguments; a function is taken as it is."""
    if not isinstance(env_id, str):
        if kwargs:
            raise UsageError(f"{', '.join(kwargs)}: a function that makes the environment takes no arguments of it")
        return env_id
    return lambda: make(env_id, **kwargs)


def _call(environment: TrlEnvironment, name: str, arguments: dict[str, object]) -> str:
    return environment._episode.call(name, arguments)


def _stop_if_failing(ours: Sequence[TrlEnvironment], lost: Sequence[Episode]) -> None:
    limit = max((environment._settings.max_failure_rate for environment in ours), default=1.0)
    if len(lost) > limit * len(ours):
        raise RunStoppedError(
            f"{len(lost)} of {len(ours)} episodes failed because of the infrastructure (limit {limit:.0%}); "
            f"the last: {lost[-1].error}"
        )
