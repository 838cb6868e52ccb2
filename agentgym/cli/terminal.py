"""An episode in a terminal: its display, and the commands a person has besides the environment's actions."""

from __future__ import annotations

import base64
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agentgym.call_syntax import format_call, parse_calls
from agentgym.env.actions import gold_action
from agentgym.env.env import Env, Snapshot
from agentgym.env.tasks import require_tasks
from agentgym.env.time_limit import time_limit
from agentgym.errors import EnvError, UsageError, boundary
from agentgym.rollout.request import EpisodeLimits
from agentgym.tool import usage
from agentgym.types import ImagePart, Message, Observation, ToolCall
from agentgym.visible_text import visible

COMMANDS = {
    "help": "this page",
    "actions": "what is possible now",
    "hint": "what the gold policy would do",
    "undo": "take the last turn back",
    "quit": "stop",
}
_MOST_ACTIONS = 40


class Game:
    """An episode that is displayed in the terminal.

    Args:
        env: the environment, which stays open when the game ends.
        seed: chooses the task of the split. The environment's randomness depends on the task only.
    """

    def __init__(self, env: Env, console: Console, *, seed: int, split: str) -> None:
        self.env = env
        self.console = console
        self.is_over = False
        self._seed, self._split = seed, split
        self._limits = EpisodeLimits().of(env)
        self._status = "stopped"
        self._success: bool | None = None
        self._rewards: list[float] = []
        self._past: list[Snapshot] = []
        self.observation: Observation = ()
        self._pictures: list[Path] = []

    def begin(self) -> None:
        """Reset the environment and show the first observation."""
        tasks = require_tasks(self.env.tasks, self._split, self.env.env_id)
        task = tasks[self._seed % len(tasks)]
        what = f"{self.env.env_id} reset"
        with boundary(EnvError, what), time_limit(self._limits.reset_timeout_s, what):
            self.observation, _ = self.env.reset(options={"task": task})
        limit = f", at most {self.env.max_turns} turns" if self.env.max_turns else ""
        title = f"[bold]{escape(self.env.env_id)}[/]  task {escape(task.id)}{limit}"
        self.console.print(Panel(self._shown(), title=title, title_align="left", border_style="cyan"))

    def step(self, action: Message) -> None:
        """Take a turn and show its result."""
        snapshot = self.env.snapshot()
        what = f"{self.env.env_id} step"
        with boundary(EnvError, what), time_limit(self._limits.step_timeout_s, what):
            self.observation, reward, terminated, truncated, info = self.env.step(action)
        self._past.append(snapshot)
        self._rewards.append(float(reward))
        self._show_turn(info)
        self.is_over = terminated or truncated
        if self.is_over:
            self._success = bool(info["success"])
            self._status = "completed" if terminated else "truncated_turns"
            verdict = "[bold green]success[/]" if self._success else "[bold red]no success[/]"
            out_of_turns = "out of turns, " if truncated else ""
            total = f"return {sum(self._rewards):.4g} in {len(self._rewards)} turns"
            self.console.print(f"{out_of_turns}{verdict}, {total}")

    def undo(self) -> None:
        """Undo the last turn."""
        if not self._past:
            self.console.print("[dim]nothing to take back[/]")
            return
        snapshot = self._past.pop()
        self._rewards.pop()
        self.env.restore(snapshot)
        self.console.print(f"[dim]back after turn {len(self._rewards)}[/]")

    def result(self) -> dict[str, Any]:
        """Return the episode as the command's JSON value. ``success`` is None if the episode was stopped before its
        end.
        """
        return {
            "env": self.env.env_id,
            "task_id": self.env.task.id,
            "status": self._status,
            "success": self._success,
            "return": sum(self._rewards),
            "num_turns": len(self._rewards),
        }

    def _shown(self) -> Text:
        """Return the observation's text, with the file into which each of its pictures is written."""
        lines = [message.text for message in self.observation]
        parts = [part for message in self.observation if isinstance(message.content, tuple) for part in message.content]
        for picture in (part for part in parts if isinstance(part, ImagePart)):
            folder = self._pictures[-1].parent if self._pictures else Path(tempfile.mkdtemp(prefix="agentgym-play-"))
            self._pictures.append(folder / f"{len(self._pictures) + 1}.png")
            self._pictures[-1].write_bytes(base64.b64decode(picture.png_base64))
            lines.append(f"picture {len(self._pictures)}: {self._pictures[-1]}")
        return Text(visible("\n".join(lines)))

    def _show_turn(self, info: dict[str, Any]) -> None:
        parts = " ".join(f"{part.name} {part.value:+.4g}" for part in info["reward_parts"])
        notes = [f"turn {len(self._rewards)}", *([parts] if parts else [])]
        notes += [] if info["is_valid"] else ["not possible"]
        self.console.print(
            Panel(
                self._shown(),
                title=escape(", ".join(notes)),
                title_align="left",
                border_style="blue" if info["is_valid"] else "yellow",
            )
        )


def watch(game: Game, choose: Callable[[Observation], Message]) -> None:
    """Let a policy play the episode to its end."""
    while not game.is_over:
        action = choose(game.observation)
        game.console.print(f"[bold green]>[/] {escape(_shown(action, game))}", soft_wrap=True)
        game.step(action)


def play_by_hand(game: Game) -> None:
    """Ask for actions until the episode or the input ends, or the person types ``quit`` or presses Ctrl-C.

    A command that is also the first word of one of the environment's tools is written with a colon (``:help``).
    """
    taken = {tool.name for tool in game.env.tools}
    console = game.console
    help_word = ":help" if "help" in taken else "help"
    if sys.stdin.isatty():
        console.print(f"[dim]type an action, or {help_word}; Tab completes[/]")
    for line in _lines(game):
        command = line[1:] if line.startswith(":") else line
        if command in COMMANDS and (line.startswith(":") or line not in taken):
            if command == "quit":
                break
            _obey(game, command)
        else:
            game.step(game.env.parse_action(line))
            if game.is_over:
                return
    console.print(f"stopped after {game.result()['num_turns']} turns")


def _obey(game: Game, command: str) -> None:
    console = game.console
    match command:
        case "help":
            _show_help(game)
        case "actions":
            _show_actions(game)
        case "undo":
            game.undo()
        case "hint":
            try:
                gold = gold_action(game.env)
                console.print(f"[dim]the gold policy would say:[/] {escape(_shown(gold, game))}", soft_wrap=True)
            except (UsageError, EnvError) as error:
                console.print(f"[yellow]{escape(str(error))}[/]", soft_wrap=True)


def _show_help(game: Game) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for tool in game.env.tools:
        table.add_row(f"[green]{escape(usage(tool, has_values=True))}[/]", escape(tool.description))
    for name, what in COMMANDS.items():
        table.add_row(f"[bold]{name}[/]", what)
    game.console.print(table)
    if game.env.tools:
        game.console.print(
            "[dim]a call is a line like `name: value; value`, values in the order above; `name: key=value` names an\n"
            'argument, those with ? may be left out, and `name: {"key": value}` gives all of them as JSON[/]',
            soft_wrap=True,
        )


def _show_actions(game: Game) -> None:
    actions = game.env.admissible_actions()
    if not actions:
        game.console.print("[dim]this environment does not list them; see help for the tools[/]")
        return
    for action in actions[:_MOST_ACTIONS]:
        game.console.print(f"  {escape(action)}", soft_wrap=True)
    if len(actions) > _MOST_ACTIONS:
        game.console.print(f"  [dim]and {len(actions) - _MOST_ACTIONS} more[/]")


def _lines(game: Game) -> Iterator[str]:
    """Yield non-empty lines from the keyboard or a pipe, until the end of input or Ctrl-C."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        _complete_with_tab(lambda: [*game.env.admissible_actions(), *(tool.name for tool in game.env.tools), *COMMANDS])
    while True:
        try:
            line = input("> ") if is_terminal else sys.stdin.readline()
        except (EOFError, KeyboardInterrupt):
            game.console.print()
            return
        if not is_terminal:
            if not line:
                return
            game.console.print(Text(f"> {line.strip()}", style="bold green"), soft_wrap=True)
        if line.strip():
            yield line.strip()


def _complete_with_tab(candidates: Callable[[], Sequence[str]]) -> None:
    try:
        import readline
    except ImportError:  # this Python was built without readline; typing still works
        return

    def complete(text: str, state: int) -> str | None:
        matches = [one for one in candidates() if one.startswith(text) and visible(one) == one]
        return matches[state] if state < len(matches) else None

    readline.set_completer(complete)
    readline.set_completer_delims("")  # actions contain spaces and colons, so complete the whole line
    readline.parse_and_bind("tab: complete")


def _shown(action: Message, game: Game) -> str:
    """Return an action as a person would type it: its text, and the calls that the text does not hold."""
    tools = game.env.tools
    held = [one for one in parse_calls(action.text, tools) if isinstance(one, ToolCall)]
    calls = [one for one in action.calls if isinstance(one, ToolCall)]
    if [(one.name, one.arguments) for one in calls] == [(one.name, one.arguments) for one in held]:
        calls = []
    lines = [*filter(None, [action.text]), *(format_call(one, tools) for one in calls)]
    return visible("\n".join(lines)) or "(nothing)"
