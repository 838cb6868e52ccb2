"""Legal moves of TextArena's games, found by trying candidates on copies of the game.

TextArena lists no legal moves. Its rules show moves, placeholders and examples alike in brackets, so that text in
brackets alone is often illegal, and an opponent that plays it forfeits.
"""

from __future__ import annotations

import copy
import itertools
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

MOST_TRIES: Final = 2_000
"""Most candidates that are tried for one move."""
_SHOWN: Final = re.compile(r"\[[^\[\]\n]{1,30}\]")
_SQUARE_PAIR: Final = re.compile(r"\[([a-z])(\d)(\W*)([a-z])(\d)\]")
_NUMBERS: Final = range(21)
_FILES, _RANKS = "abcdefgh", range(1, 9)
_NEAR: Final = 2
"""Distance in files and ranks up to which pairs of squares are tried first."""


def moves_in(shown: str) -> list[str]:
    """Return the texts in brackets, without repetitions.

    Example:
        >>> moves_in("Play [1] or [2], not [1].")
        ['[1]', '[2]']
    """
    return list(dict.fromkeys(_SHOWN.findall(shown)))


def candidates(shown: Iterable[str], rng: random.Random) -> Iterator[str]:
    """Yield moves of the forms that the rules show, in random order, likely ones first.

    Each number of a shown move is varied, each word of a placeholder such as ``[pile quantity]`` becomes a number, and
    pairs of squares such as ``[a2a3]`` become all pairs.
    """
    texts = list(shown)
    forms = {_form(text) for text in texts}
    squares = {found.group(3) for text in texts if (found := _SQUARE_PAIR.fullmatch(text.lower()))}
    likely = [*texts, *(move for form in sorted(forms) if form.count("{}") == 1 for move in _filled(form))]
    near: list[str] = []
    far: list[str] = []
    for mark in sorted(squares):
        for start, end in itertools.permutations(itertools.product(range(8), _RANKS), 2):
            is_near = max(abs(start[0] - end[0]), abs(start[1] - end[1])) <= _NEAR
            move = f"[{_FILES[start[0]]}{start[1]}{mark}{_FILES[end[0]]}{end[1]}]"
            (near if is_near else far).append(move)
    likely += [move for form in sorted(forms) if form.count("{}") == 2 and not squares for move in _filled(form)]
    many = [_filled_once(form, rng) for form in sorted(forms) if form.count("{}") > 2 for _ in range(MOST_TRIES // 4)]
    seen: set[str] = set()
    for batch in ([*likely, *near], many, far):
        rng.shuffle(batch)
        for move in batch:
            if move not in seen:
                seen.add(move)
                yield move


def is_legal(game: Any, move: str) -> bool:
    """Return True if a copy of a game accepts the current player's move. The game and its randomness are unchanged."""
    global_state = random.getstate()
    try:
        trial = copy.deepcopy(game)
        player, num_errors = trial.state.current_player_id, getattr(trial.state, "error_count", 0)
        trial.step(move)
        return not has_forfeited(trial, player) and getattr(trial.state, "error_count", 0) <= num_errors
    except Exception:  # of a game that cannot read the move
        return False
    finally:
        random.setstate(global_state)


def has_forfeited(game: Any, player: int) -> bool:
    """Return True if the game ended because a player moved against the rules."""
    return bool((game.state.game_info or {}).get(player, {}).get("invalid_move"))


def first_legal(game: Any, moves: Iterable[str]) -> str | None:
    """Return the first legal move among the first :data:`MOST_TRIES`, or None."""
    return next((move for move in itertools.islice(moves, MOST_TRIES) if is_legal(game, move)), None)


def legal_moves(game: Any, shown: Sequence[str], seed: int) -> list[str]:
    """Return the legal moves among a limited number of candidates, sorted by their numbers and texts."""
    tried = itertools.islice(candidates(shown, random.Random(seed)), MOST_TRIES // 4)
    return sorted((move for move in tried if is_legal(game, move)), key=_sort_key)


def _form(text: str) -> str:
    """Replace numbers by ``{}``, or else the words of a placeholder."""
    bare = text.replace("{", "(").replace("}", ")")
    if re.search(r"\d", bare):
        return re.sub(r"\d+", "{}", bare)
    words = re.findall(r"[^\W\d]+", bare)
    return "[" + " ".join(["{}"] * len(words)) + "]" if len(words) <= 2 else bare


def _filled(form: str) -> list[str]:
    return [form.format(*numbers) for numbers in itertools.product(_NUMBERS, repeat=form.count("{}"))]


def _filled_once(form: str, rng: random.Random) -> str:
    return form.format(*(rng.choice(_NUMBERS) for _ in range(form.count("{}"))))


def _sort_key(move: str) -> tuple[list[int], str]:
    return [int(number) for number in re.findall(r"\d+", move)], move
