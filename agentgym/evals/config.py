"""The options of an evaluation, each with its type, default and help.

``agentgym eval``, :func:`agentgym.evaluate`, the evaluation of suites and the files that ``--resume`` and ``--rescore``
read are made from :class:`EvalConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from agentgym.canonical import read_json
from agentgym.errors import ConfigError, CorruptDataError, UsageError
from agentgym.settings import Count, Natural, NonNegative, Settings, check_ranges, checked

if TYPE_CHECKING:
    from agentgym.evals.scoring import Scoring

T = TypeVar("T")
OPPONENT: Final = "opponent"
"""Part of the policy that plays, in a game, all players but one (:data:`agentgym.rollout.roles.OPPONENT`)."""
Use = Literal["env", "size", "model", "limit"]
"""The part of an evaluation that an option sets: its environment, which a suite fixes; its size and its scorers; the
sampling and rendering of a model, which scripted policies ignore; limits, which do not change the result."""


def _option(use: Use, default: object, text: str, **facts: Any) -> Any:
    """Return a field with its help.

    Args:
        facts: ``shown``, the default as the help shows it; ``metavar``; ``of_server``, True if the server of an
            endpoint determines the option. Of a mapping: the ``group`` of its ``GROUP.KEY=VALUE``, and a ``flag`` of
            the command line that sets one ``key`` of it, with the flag's ``flag_help``.
    """
    value: dict[str, Any] = {"default_factory": dict} if default is dict else {"default": default}
    return field(**value, metadata={"use": use, "help": text, **facts})


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig(Settings):
    """All options of an evaluation of one policy on one environment. A suite is a list of them with one policy."""

    env: str = _option("env", "", "An id, module:Id, or file.py:Id.")
    policy: str = _option(
        "env", "",
        "oracle, random, idle, file.py:NAME, openai:URL?model=NAME, vllm:URL?model=SOURCE, or a model (a folder, a "
        "GGUF file, pypi:PACKAGE, a hub name, smollm2); with suites also several times. A training run's folder brings "
        "the run's own settings. best:POLICY,attempts=4, retry:POLICY and summary:POLICY attempt each task several "
        "times.",
    )  # fmt: skip
    kwargs: dict[str, Any] = _option("env", dict, "Arguments of the environment's class.")
    episodes: Count = _option(
        "size", 50, "The first N tasks, of a suite's parts or of the split.", shown="all, the run's or 50"
    )
    repeats: Count = _option("size", 1, "Episodes per task, for pass@k and pass^k.")
    seed: int = _option("env", 0, "Seed of the policy's sampling.")
    split: str = _option("env", "test", "train, valid or test.")
    scoring: dict[str, Any] = _option(
        "size", dict, "The scorer that defines success, by kind=NAME (agentgym list --scorers).", group="scorer"
    )
    temperature: NonNegative = _option("model", 1.0, "Sampling temperature; 0 is greedy.")
    max_new_tokens: Count = _option("model", 64, "Most sampled tokens per turn.")
    max_thinking_tokens: Natural = _option(
        "model", 0, "Thinking tokens per turn, in addition to --max-new-tokens.", of_server=True
    )
    max_context_tokens: Natural = _option(
        "model", 0, "Most tokens in the context.", shown="the model's own limit", of_server=True
    )
    chat: dict[str, Any] = _option(
        "model", dict, "The rendering of a model's conversations.", group="chat", of_server=True,
        flag="codec", key="codec", flag_help="Tool-call format.", shown="the chat template's",
    )  # fmt: skip
    context: dict[str, Any] = _option(
        "model", dict, "The content of a model's prompts.", group="context", of_server=True
    )
    harness: dict[str, Any] = _option(
        "model", dict, "The settings of --harness.", group="harness",
        flag="harness", key="name", metavar="NAME", shown="",
        flag_help="Agent program that plays, through the policy endpoint: openai_loop, command, mini_swe_agent, "
        "file.py:NAME; harness.KEY=VALUE sets it up.",
    )  # fmt: skip
    verify: dict[str, Any] = _option(
        "model", dict, "The scorer that chooses an attempt of best: or retry:, by kind=NAME.", group="verify"
    )
    opponent: str = _option(
        "env", "", "In a game with opponent=self: who plays against the policy, named as it is.", shown=""
    )
    roles: dict[str, Any] = _option(
        "env", dict, "Who plays a sub-agent or another player in the policy's place, by its name.", group="roles"
    )
    num_envs: Count = _option("limit", 32, "Episodes played at the same time.")
    max_minutes: NonNegative = _option(
        "limit", 0.0, "Stop after so many minutes; --resume continues. 0: no limit.", shown=""
    )
    max_tokens: Natural = _option(
        "limit", 0, "Stop after so many sampled tokens; --resume continues. 0: no limit.", shown=""
    )
    max_cost: NonNegative = _option(
        "limit", 0.0, "Stop after spending so much according to --prices; --resume continues. 0: no limit.", shown=""
    )
    prices: str = _option(
        "limit", "",
        "Money per million tokens: IN,OUT or IN,CACHED,OUT for every policy, or a file .toml or .json with a table for "
        "each.",
        shown="", metavar="IN,OUT|FILE",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_ranges(self)
        if wrong := [name for name, policy in self.roles.items() if not isinstance(policy, str) or not policy]:
            raise UsageError(
                f"roles.{wrong[0]} names a policy, as in roles.{wrong[0]}=oracle; got {self.roles[wrong[0]]!r}"
            )
        if self.prices:
            from agentgym.evals.prices import read_prices

            read_prices(self.prices)  # raises an error before anything is played

    @property
    def others(self) -> dict[str, str]:
        """The policies that play parts of the environment, by the name of the part; an opponent is one of them."""
        return {**self.roles, **({OPPONENT: self.opponent} if self.opponent else {})}

    @property
    def scorers(self) -> Scoring:
        """The scorers that define success; none if the environment does."""
        from agentgym.evals.scoring import Scoring  # not at the start: `agentgym --help` reads the options

        return Scoring.read(self.scoring)

    def values(self, *uses: Use) -> dict[str, Any]:
        """Return the options of some uses as plain data, which a file keeps."""
        found = asdict(self)
        return {name: found[name] for name in names_of_options(*uses)}


def names_of_options(*uses: Use) -> list[str]:
    """Return the names of the options of some uses.

    Example:
        >>> names_of_options("limit")
        ['num_envs', 'max_minutes', 'max_tokens', 'max_cost', 'prices']
    """
    return [part.name for part in fields(EvalConfig) if part.metadata["use"] in uses]


GROUPS: Final = {part.metadata["group"]: part.name for part in fields(EvalConfig) if "group" in part.metadata}
"""Groups of settings given as ``GROUP.KEY=VALUE``, with the option that holds each group."""
MAPPINGS: Final = [part.name for part in fields(EvalConfig) if part.default_factory is dict]
"""Options that are mappings."""
OF_SERVERS: Final = [part.name for part in fields(EvalConfig) if part.metadata.get("of_server")]
"""Options that the server of an endpoint determines."""


# ------------------------------------------------------------------------------------------------------- the kept file


def keep_config(folder: Path, config: dict[str, Any], rescored_from: Path | None = None) -> None:
    """Write the ``config.json`` of an evaluation, with copies of the user's files that it names, and sign it.

    Args:
        config: ``{"eval": ...}`` or ``{"eval_suites": ...}``.
        rescored_from: folder of the episodes, if they were only scored again.
    """
    from agentgym.evals.episodes import write_json
    from agentgym.rollout.kept_files import keep_files
    from agentgym.trust import sign

    kept = keep_files(folder, config) | ({} if rescored_from is None else {"rescored_from": str(rescored_from)})
    write_json(folder / "config.json", kept)
    sign(folder)


def read_config(folder: Path, kinds: Mapping[str, type[T]], *, ignores_unknown: bool = False) -> T:
    """Return the options of the evaluation in a folder, as :func:`keep_config` wrote them.

    Args:
        kinds: classes of the evaluations that are allowed, by ``eval`` and ``eval_suites``.
        ignores_unknown: leave out options of other versions.

    Raises:
        UsageError: the folder has no ``config.json``.
        CorruptDataError: the file cannot be read, or is not the configuration of such an evaluation.
    """
    path = folder / "config.json"
    try:
        config: Mapping[str, Any] = read_json(path.read_text(encoding="utf-8"))
        kind = next(kind for kind in kinds if kind in config)
        return checked(kinds[kind], config[kind], ignores_unknown=ignores_unknown)
    except FileNotFoundError:
        raise UsageError(
            f"{folder} is not an evaluation: it has no config.json; name the folder of one, of suites, or "
            "RUN/eval/after of a training run"
        ) from None
    except ConfigError as error:
        raise CorruptDataError(f"{path}: {error}; another version of agentgym may have written it") from None
    except (OSError, ValueError, TypeError, StopIteration) as error:
        raise CorruptDataError(f"{path} is not an evaluation's configuration ({error!r})") from error
