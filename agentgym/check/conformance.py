"""The conformance kit: checks that an environment is fit for training and evaluating agents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing as closing_env
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from agentgym.check.behaviour import (
    hostile_actions,
    noop_policy,
    random_policy,
    speed,
    void_on_demand,
)
from agentgym.check.contract import (
    closing,
    control_verbs,
    episodes,
    gymnasium_api,
    observations,
    order_of_calls,
    rewards,
    splits,
    tool_schemas,
)
from agentgym.check.determinism import (
    async_path,
    global_randomness,
    instance_isolation,
    process_determinism,
    seed_determinism,
    snapshots,
)
from agentgym.check.episodes import ON_TURN, STEP_TIMEOUT_S
from agentgym.check.gold import oracle
from agentgym.check.injection import cheats, injection
from agentgym.check.leaks import leaks
from agentgym.check.repeats import repeated_rewards
from agentgym.check.report import CheckFailed, CheckReport, CheckResult, blocked, run_check
from agentgym.check.state_keys import state_keys
from agentgym.check.subject import DEFAULT_EPISODES, Subject
from agentgym.env.env import Env
from agentgym.env.live import Connections, service_of
from agentgym.errors import UsageError
from agentgym.registry import check_arguments, find, is_remote, make
from agentgym.settings import Range, check_number

_FEW_EPISODES = 2
"""Episodes of each check where none are given and the environment asks a service or is slow."""
_SLOW_S = 1.0
"""Seconds of an episode from which an environment is slow: all checks together play about eighty at five each."""
CheckFunction = Callable[[Subject], str]


@dataclass(frozen=True, slots=True)
class Check:
    """An entry of the kit: a check's name, its function, and the checks that it depends on."""

    name: str
    function: CheckFunction
    needs: tuple[str, ...] = ()
    """Checks that must pass for a failure of this one to be informative."""
    judges: bool = True
    """False for a measurement, which no environment fails."""


_PLAYED = ("episodes", "rewards")
_REPEATABLE = (*_PLAYED, "seed determinism")

CHECKS = (
    Check("tool schemas", tool_schemas),
    Check("control verbs", control_verbs),
    Check("episodes", episodes),
    Check("rewards", rewards, ("episodes",)),
    Check("order of calls", order_of_calls, _PLAYED),
    Check("closing", closing),
    Check("observations", observations, _PLAYED),
    Check("splits", splits),
    Check("global randomness", global_randomness, _PLAYED),
    Check("seed determinism", seed_determinism, _PLAYED),
    Check("process determinism", process_determinism, _REPEATABLE),
    Check("instance isolation", instance_isolation, _REPEATABLE),
    Check("async path", async_path, _REPEATABLE),
    Check("snapshots", snapshots, _REPEATABLE),
    Check("state keys", state_keys, _REPEATABLE),
    Check("gymnasium", gymnasium_api, _REPEATABLE),
    Check("oracle", oracle, _PLAYED),
    Check("no-op policy", noop_policy, _PLAYED),
    Check("random policy", random_policy, _PLAYED),
    Check("repeated rewards", repeated_rewards, (*_PLAYED, "state keys")),
    Check("hostile actions", hostile_actions, _PLAYED),
    Check("injection", injection, _PLAYED),
    Check("cheats", cheats, _PLAYED),
    Check("void on demand", void_on_demand, _PLAYED),
    Check("leaks", leaks, _PLAYED),
    Check("speed", speed, _PLAYED, judges=False),
)
"""All checks, in the order in which they run."""


def check_env(
    reference_or_factory: str | Callable[[], Env],
    *,
    num_episodes: int | None = None,
    seed: int = 0,
    step_timeout_s: float = 60.0,
    check_timeout_s: float = 300.0,
    on_result: Callable[[CheckResult], None] = lambda result: None,
    on_turn: Callable[[str, int], None] = lambda name, num_turns: None,
    arguments: Mapping[str, object] = MappingProxyType({}),
) -> CheckReport:
    """Check that an environment keeps the contract of :class:`~agentgym.env.env.Env`.

    Args:
        reference_or_factory: an id, ``module:Id`` or ``file.py:Id``; or a class or function that makes a new instance
            per call.
        num_episodes: episodes per check; more episodes find rarer faults. None is 5, or 2 for an environment that asks
            a service (:attr:`~agentgym.env.env.Env.is_live`) or whose episodes take more than a second.
        seed: seed of the drawn tasks and of the random policy.
        step_timeout_s: most seconds for a reset or a step; enforced only in the main thread, see
            :func:`~agentgym.env.time_limit.time_limit`.
        check_timeout_s: most seconds for one check of up to 5 episodes, with the same restriction; twice as many for
            10 episodes, and so on.
        on_result: called with the result of each check.
        on_turn: called while a check runs, with its name and the number of turns that it has played so far.
        arguments: arguments of the environment that the reference names, as JSON values.

    Raises:
        UsageError: there is no such environment or argument, this machine lacks what it needs, ``num_episodes`` is
            below 1, or a time limit is not above 0.

    Example:
        >>> report = check_env("agentgym/Household-v0", num_episodes=1)
        >>> [check.name for check in report.failures]
        []
    """
    check_number("num_episodes", DEFAULT_EPISODES if num_episodes is None else num_episodes, Range(at_least=1))
    if min(step_timeout_s, check_timeout_s) <= 0:
        raise UsageError(f"time limits must be above 0 s, got {step_timeout_s:g} and {check_timeout_s:g}")
    if isinstance(reference_or_factory, str):
        entry = find(reference_or_factory)
        if arguments:
            check_arguments(entry, arguments)
        if entry.is_available and not is_remote(arguments) and (lacks := entry.lacks(arguments)):
            raise UsageError(f"{entry.id} cannot be played here: {lacks}")
        factory = partial(make, reference_or_factory, **arguments)
        subject = Subject(factory, reference_or_factory, num_episodes or DEFAULT_EPISODES, seed, arguments)
    else:
        subject = Subject(reference_or_factory, None, num_episodes or DEFAULT_EPISODES, seed)
    limits = (step_timeout_s, check_timeout_s)
    check = partial(_check, subject, limits, on_result, on_turn, is_given=num_episodes is not None)
    work = partial(copy_context().run, check)  # a copied context, so that the step limit ends with this call
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    # in a notebook a loop is already running, and the checks need loops of their own
    with ThreadPoolExecutor(1, "check_env") as outside:
        return outside.submit(work).result()


def _check(
    subject: Subject,
    limits: tuple[float, float],
    on_result: Callable[[CheckResult], None],
    on_turn: Callable[[str, int], None],
    *,
    is_given: bool,
) -> CheckReport:
    """Run all checks. Later checks of a service or of a slow environment play less, unless the number was given."""
    step_timeout_s, check_timeout_s = limits
    STEP_TIMEOUT_S.set(step_timeout_s)
    results: dict[str, CheckResult] = {}
    service, connections = "", Connections()
    for check in (Check("construction", _construction), *CHECKS):
        failed = [results[needed] for needed in check.needs if not results[needed].passed]
        ON_TURN.set(_counting(check.name, on_turn))
        with connections.collected() as found:
            result = _check_on(check, failed, subject, check_timeout_s * subject.patience)
        reason = ""
        if result.passed and not service and (found or check.name == "construction"):
            service = _service_of(subject, found)
            reason = f"it asks {service}" if service else ""
        if result.passed and not (reason or is_given) and check.name == "episodes" and subject.episode_s > _SLOW_S:
            reason = f"an episode takes {subject.episode_s:.1f} s"
        if reason:
            subject = replace(subject, num_episodes=subject.num_episodes if is_given else _FEW_EPISODES)
            told = f"{result.detail}; {reason}, so each check plays {subject.num_episodes} episodes (--episodes)"
            result = replace(result, detail=told)
        results[check.name] = result
        on_result(result)
        if check.name == "construction" and not result.passed:
            break
    checks = tuple(results.values())
    return CheckReport(env=subject.name, passed=all(check.passed for check in checks), checks=checks)


def _counting(name: str, on_turn: Callable[[str, int], None]) -> Callable[[int], None]:
    """Return a function that adds up the turns of a check and tells the sum."""
    played = [0]

    def count(num_turns: int) -> None:
        played[0] += num_turns
        on_turn(name, played[0])

    return count


def _check_on(check: Check, failed: list[CheckResult], subject: Subject, timeout_s: float) -> CheckResult:
    """Run a check. If a check that it depends on has failed, its own failure counts as blocked, while a pass counts.

    If a check that it depends on has hung, it does not run, so that the kit ends in bounded time.
    """
    names = ", ".join(result.name for result in failed)
    if any(result.is_hung for result in failed):
        return blocked(check.name, f"not run: it depends on {names}, which failed")
    result = run_check(check.name, check.function, subject, timeout_s)
    if not failed or result.passed:
        return result
    return blocked(check.name, f"no result: it depends on {names}, which failed; this failed too: {result.detail}")


def _service_of(subject: Subject, found: dict[str, None]) -> str:
    with closing_env(subject.factory()) as env:
        return service_of(env, found)


def _construction(subject: Subject) -> str:
    env = subject.factory()
    if not isinstance(env, Env):
        raise CheckFailed(f"made a {type(env).__name__}, expected an agentgym.Env")
    env.close()
    return env.env_id
