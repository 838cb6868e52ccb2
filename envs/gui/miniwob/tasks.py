"""The tasks of MiniWoB++ by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentgym.env.tasks import LazyTasks
from agentgym.errors import require_known
from agentgym.types import Task

_NAMES = """
    ascending-numbers bisect-angle book-flight book-flight-nodelay button-delay buy-ticket chase-circle choose-date
    choose-date-easy choose-date-medium choose-date-nodelay choose-list circle-center click-button
    click-button-sequence click-checkboxes click-checkboxes-large click-checkboxes-soft click-checkboxes-transfer
    click-collapsible click-collapsible-2 click-collapsible-2-nodelay click-collapsible-nodelay click-color
    click-dialog click-dialog-2 click-link click-menu click-menu-2 click-option click-pie click-pie-nodelay
    click-scroll-list click-shades click-shape click-tab click-tab-2 click-tab-2-easy click-tab-2-hard
    click-tab-2-medium click-test click-test-2 click-test-transfer click-widget copy-paste copy-paste-2 count-shape
    count-sides daily-calendar drag-box drag-circle drag-cube drag-items drag-items-grid drag-shapes drag-shapes-2
    drag-single-shape drag-sort-numbers draw-circle draw-line email-inbox email-inbox-delete email-inbox-forward
    email-inbox-forward-nl email-inbox-forward-nl-turk email-inbox-important email-inbox-nl-turk email-inbox-noscroll
    email-inbox-reply email-inbox-star-reply enter-date enter-password enter-text enter-text-2 enter-text-dynamic
    enter-time find-greatest find-midpoint find-word focus-text focus-text-2 form-sequence form-sequence-2
    form-sequence-3 generate-number grid-coordinate guess-number highlight-text highlight-text-2 hot-cold
    identify-shape login-user login-user-popup moving-items multi-layouts multi-orderings navigate-tree
    number-checkboxes odd-or-even order-food phone-book read-table read-table-2 resize-textarea right-angle
    scroll-text scroll-text-2 search-engine sign-agreement simon-says simple-algebra simple-arithmetic social-media
    social-media-all social-media-some stock-market terminal text-editor text-transform tic-tac-toe unicode-test
    use-autocomplete use-autocomplete-nodelay use-colorwheel use-colorwheel-2 use-slider use-slider-2 use-spinner
    visual-addition
"""
TASKS: Final = tuple(_NAMES.split())
"""Pages of the package ``miniwob``: the 125 that it registers, and four that it only ships, since they
change by themselves (button-delay, chase-circle, moving-items, simon-says). Here the page's clock stands still between
turns, so these four can be played, too."""
_IN_A_FRAME = "a site in a frame, whose goal is a table of fields; the page around it shows the reward at the end"
EXCLUDED: Final = {
    "flight.AA": _IN_A_FRAME,
    "flight.Alaska": _IN_A_FRAME,
    "flight.Alaska-auto": _IN_A_FRAME,
    "hover-shape": "its page never ends an episode and gives no reward, whatever is done there",
}
"""Other pages of the package, with the reason why they are no tasks here."""
TOLD_APART: Final = (
    "click-checkboxes-transfer",
    "click-test-transfer",
    "email-inbox-forward-nl",
    "email-inbox-forward-nl-turk",
    "email-inbox-nl-turk",
)
"""Pages whose tasks or wordings differ in the data mode ``test``."""

_RELOADED = """
    book-flight book-flight-nodelay chase-circle choose-date choose-date-easy choose-date-medium
    choose-date-nodelay click-collapsible click-menu-2 click-pie click-pie-nodelay drag-box drag-items
    drag-items-grid drag-sort-numbers focus-text-2 form-sequence form-sequence-2 form-sequence-3 moving-items
    phone-book resize-textarea scroll-text scroll-text-2 search-engine simon-says social-media social-media-all
    social-media-some terminal text-editor use-autocomplete use-autocomplete-nodelay use-colorwheel
    use-colorwheel-2 use-slider use-slider-2 use-spinner
"""
RELOADED: Final = frozenset(_RELOADED.split())
"""Pages that are loaded again for every episode. If kept open, they would show traces of an earlier episode, such as a
widget's place, a counter in an id, or the order of class names. All other pages are kept open."""

_FIRST_SEED: Final = {"train": 0, "valid": 1_000_000_000, "test": 2_000_000_000}
_NUM_SEEDS: Final = {"train": 100_000, "valid": 1_000, "test": 1_000}


class MiniWoBTasks(LazyTasks):
    """Names in turn, each time with the next seed; the splits' seeds are disjoint.

    Example:
        >>> tasks = MiniWoBTasks("test", ("click-test", "click-link"))
        >>> tasks[3].id, tasks[3].seed, tasks[3].data
        ('click-link-2000000001', 2000000001, {'task': 'click-link'})
        >>> tasks.named("click-test-2000000001").id == tasks[2].id
        True
    """

    def __init__(self, split: str, names: Sequence[str]) -> None:
        require_known("split", split, _FIRST_SEED)
        self._split, self._names = split, tuple(names)

    def __len__(self) -> int:
        return _NUM_SEEDS[self._split] * len(self._names)

    def task_at(self, index: int) -> Task:
        number, at = divmod(index, len(self._names))
        name, seed = self._names[at], _FIRST_SEED[self._split] + number
        return Task(id=f"{name}-{seed}", split=self._split, seed=seed, data={"task": name})

    def named(self, task_id: str) -> Task | None:
        """Return the task of an id, without a search; None if it is not one of these."""
        name, _, digits = task_id.rpartition("-")
        number = int(digits) - _FIRST_SEED[self._split] if digits.isdecimal() else -1
        if name not in self._names or not 0 <= number < _NUM_SEEDS[self._split]:
            return None
        return self[number * len(self._names) + self._names.index(name)]
