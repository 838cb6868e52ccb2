"""``agentgym/Wordle-v0``: find a word of five letters in six guesses, with a mark for each letter.

The game is J. Wardle's (2021); LMRL-Gym has it as a task ("LMRL Gym: Benchmarks for Multi-Turn Reinforcement Learning
with Language Models", Abdulhai et al., 2023). The words are agentgym's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from agentgym.canonical import canonical
from agentgym.env.tasks import SeededTasks
from agentgym.envs.games.solo_game import SoloGame
from agentgym.envs.since_reset import SinceReset
from agentgym.errors import ToolError, UsageError
from agentgym.tool import tool
from agentgym.types import Message, Task

HERE, ELSEWHERE, ABSENT = "+", "?", "-"
WORD_SEED = 20
"""Seed of the split of the words into training, validation and test words."""


def feedback(guess: str, secret: str) -> str:
    """Return a mark for each letter: ``+`` right here, ``?`` elsewhere in the word, ``-`` not (or not again) in it.

    Example:
        >>> feedback("apple", "paper")
        '??+-?'
        >>> feedback("sleep", "these")
        '?-+?-'
    """
    left = Counter(there for letter, there in zip(guess, secret, strict=True) if letter != there)
    marks = []
    for letter, there in zip(guess, secret, strict=True):
        if letter == there:
            marks.append(HERE)
        elif left[letter]:
            left[letter] -= 1
            marks.append(ELSEWHERE)
        else:
            marks.append(ABSENT)
    return "".join(marks)


@lru_cache(maxsize=1 << 12)
def best_guess(left: tuple[str, ...]) -> str:
    """Return the remaining word whose feedback distinguishes the remaining words best; of equal ones the first.

    Example:
        >>> best_guess(("baker", "maker", "taker"))
        'baker'
    """
    return max(left[:: max(1, len(left) // 40)], key=lambda guess: len({feedback(guess, secret) for secret in left}))


def words_of(split: str) -> tuple[str, ...]:
    """Return the secret words of a split. No word is in two splits; a fifth each is for validation and testing.

    Example:
        >>> len(words_of("train")), len(words_of("valid")), len(words_of("test"))
        (277, 92, 92)
    """
    order = np.random.default_rng(WORD_SEED).permutation(len(WORDS)).tolist()
    held_out = len(WORDS) // 5
    first, last = {"train": (2 * held_out, len(WORDS)), "valid": (held_out, 2 * held_out), "test": (0, held_out)}[split]
    return tuple(sorted(WORDS[at] for at in order[first:last]))


class WordleEnv(SoloGame):
    """Find a word of five letters in six guesses. The reply to a guess has a mark for each letter.

    ``+``: right here; ``?``: elsewhere in the word; ``-``: not in the word. Any word of the list may be guessed. The
    secret words of training, validation and testing differ. The reward is 1 for the word and ``-guess_cost`` for every
    guess.

    Args:
        max_guesses: number of guesses, after which the word is shown, 1 to 20.
        guess_cost: cost of a guess, taken off the reward.
        max_turns: turns after which an episode is truncated; None allows twice ``max_guesses``.

    Raises:
        UsageError: a value is out of range.

    Example:
        >>> env = WordleEnv()
        >>> observation, info = env.reset(seed=0)
        >>> while not env.step(env.oracle())[2]:
        ...     pass
        >>> env.turn
        3
    """

    state_names = ("_word", "_left", "_num_guesses")
    _word = SinceReset[str]()
    _left: tuple[str, ...] = ()
    _num_guesses = 0

    def __init__(
        self,
        *,
        max_guesses: int = 6,
        guess_cost: float = 0.0,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        if not 1 <= max_guesses <= 20 or guess_cost < 0:
            raise UsageError(f"max_guesses must be between 1 and 20, guess_cost at least 0; got {max_guesses}")
        self._max_guesses, self._guess_cost = max_guesses, guess_cost
        super().__init__({}, max_turns=2 * max_guesses if max_turns is None else max_turns, render_mode=render_mode)

    def start(self, task: Task) -> str:
        words = words_of(task.split)
        self._word = words[int(self.np_random.integers(len(words)))]
        self._left, self._num_guesses = tuple(sorted(WORDS)), 0
        marks = f"{HERE} right here, {ELSEWHERE} elsewhere in the word, {ABSENT} not in it"
        return f"Find a word of five letters in {self._max_guesses} guesses. Marks: {marks}."

    @tool
    def guess(self, word: str) -> str:
        """Guess the word.

        Args:
            word: A common word of five letters.
        """
        guessed = word.strip().lower()
        if guessed not in WORDS:
            raise ToolError(f"{guessed[:20]!r} is not in the list of common words of five letters", "unknown_word")
        self.charge(self._guess_cost, "guess")
        marks = feedback(guessed, self._word)
        self._left = tuple(word for word in self._left if feedback(guessed, word) == marks)
        self._num_guesses += 1
        if guessed == self._word:
            self.finish(1.0)
        elif self._num_guesses == self._max_guesses:
            self.finish(0.0)
            return f"{guessed} {marks} It was {self._word}."
        return f"{guessed} {marks}"

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def tasks(self, split: str) -> Sequence[Task]:
        """Return ten tasks per word of the split. The seed of a task draws its word."""
        return SeededTasks(split, 10 * len(words_of(split)) if split in ("train", "valid", "test") else 0)

    def state_key(self) -> str:
        """Return a key of the secret and the remaining words, independent of the guesses and their number."""
        return canonical([self._word, self._left])

    def oracle(self) -> Message:
        """Return the guess that distinguishes the remaining words best; in the last guess, the secret."""
        is_last = self._num_guesses == self._max_guesses - 1
        return self.move_of("guess", word=self._word if is_last else best_guess(self._left))

    def admissible_actions(self) -> tuple[str, ...]:
        return tuple(f"guess: {word}" for word in WORDS)


# ------------------------------------------------------------------ common English words of five letters Source:
# written down for this project from everyday vocabulary; no list was copied. No plurals in -s, no names.

WORDS = tuple(
    """
    about above actor acute adapt admit adopt after again agree ahead alarm album alert alike alive allow alone along
    angle angry apart apple apply arena argue arise aside avoid awake award aware basic beach begin bench birth black
    blade blame blank blind block blood board bonus brain brave bread break brick brief bring broad brown brush build
    cabin cable carry catch cause chain chair chalk charm chart chase cheap check cheek chess chest chief child civil
    claim clean clear climb clock close cloth cloud coach coast color count court cover craft crash cream crime crowd
    crown curve cycle daily dance death delay depth dirty doubt dozen draft drama dream dress drift drink drive eager
    early earth eight elbow empty enemy enjoy enter equal error event exact exist extra faint faith false fancy favor
    fence fever field fifth fight final first flame flash fleet float flood floor flour focus force forth frame fresh
    front fruit funny ghost giant given glass globe glory grace grade grain grand grant grape grass grave great green
    greet group guard guess guest guide habit happy heart heavy hello honey honor horse hotel house human humor ideal
    image index inner input issue judge juice knife knock label labor large laser later laugh layer learn least leave
    legal lemon level light limit local logic loose lower lucky lunch magic major maker march match mayor medal merry
    metal meter might minor mixed model money month moral motor mount mouse mouth movie music naked nerve never night
    noble noise north novel nurse ocean offer often onion opera orbit order other outer owner paint panel paper party
    patch pause peace phone photo piano piece pilot pitch place plain plane plant plate point pound power press price
    pride prime print prize proof proud queen quick quiet quite radio raise range rapid ratio reach ready relax reply
    right rival river robot rough round route royal rural salad sauce scale scene scope score sense serve seven shade
    shake shape share sharp sheep sheet shelf shell shift shine shirt shock shoot shore short shout sight silly since
    skill skirt sleep slice slide slope small smart smell smile smoke snake solid solve sound south space spare speak
    speed spend spice split spoon sport staff stage stair stamp stand start state steam steel steep stick stiff still
    stone store storm story stove strip study stuff style sugar sunny sweet swift swing table taste teach thank thick
    thing think third throw thumb tiger tight tired title toast today tooth topic total touch tough towel tower trace
    track trade trail train treat trend trial trick truck trust truth twice uncle under union unite until upper upset
    urban usual value video visit vital voice waste watch water wheel where white whole woman world worry worth wound
    write wrong yield young youth
    """.split()  # noqa: SIM905  (a list of quoted words is no easier to read)
)
