"""Tables for terminals of any width, without split words or truncated cells."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_LEAST_PROSE = 24
"""Narrowest column, in characters, in which sentences are still easy to read."""
_GAP = 2


class Grid:
    """A table without lines whose rows are named by their first column.

    If the console is too narrow for whole words, each row becomes a paragraph: its name, its sentences, and a list of
    the other columns.

    Args:
        titles: titles of the columns.
        whole: titles of the columns whose cells stay on one line; the first column is always one of them.
        prose: title of the column that holds sentences, if there is one.
        optional: titles of columns that are shown only if all columns fit side by side.
    """

    def __init__(
        self, *titles: str, whole: Collection[str] = (), prose: str = "", optional: Collection[str] = ()
    ) -> None:
        self._titles = titles
        self._whole = {titles[0], *whole}
        self._prose = prose
        self._optional = optional
        self._rows: list[tuple[Text, ...]] = []

    def add_row(self, *cells: str) -> None:
        """Add a row of cells in rich's markup. Missing cells at the end are empty."""
        filled = [*cells, *[""] * (len(self._titles) - len(cells))]
        self._rows.append(tuple(Text.from_markup(cell) for cell in filled))

    def add_heading(self, text: str) -> None:
        """Add a heading above the following rows."""
        if self._rows:
            self.add_row("")
        self.add_row(f"[bold default]{text}[/]")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for columns in (range(len(self._titles)), self._needed()):
            if self._width(columns) <= options.max_width:
                yield self._as_table(columns)
                return
        yield from self._as_paragraphs()

    def _needed(self) -> Sequence[int]:
        return [at for at, title in enumerate(self._titles) if title not in self._optional]

    def _width(self, columns: Sequence[int]) -> int:
        """Return the smallest width of a table of these columns, in characters."""
        return sum(map(self._least, columns)) + _GAP * (len(columns) - 1)

    def _least(self, column: int) -> int:
        title = self._titles[column]
        cells = [row[column].plain for row in self._rows]
        longest = max(map(cell_len, cells), default=0)
        if title in self._whole:
            return max(cell_len(title), longest)
        readable = min(longest, _LEAST_PROSE) if title == self._prose else 0
        return max([readable, *(cell_len(word) for text in (title, *cells) for word in text.split())])

    def _as_table(self, columns: Sequence[int]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
        for column in columns:
            title = self._titles[column]
            style = "bold cyan" if column == 0 else None
            table.add_column(title, style=style, min_width=self._least(column), no_wrap=title in self._whole)
        for row in self._rows:
            table.add_row(*(row[column] for column in columns))
        return table

    def _as_paragraphs(self) -> Iterator[Text | Padding]:
        for name, *cells in self._rows:
            yield Text("", style="bold cyan").append_text(name)
            named = dict(zip(self._titles[1:], cells, strict=True))
            if sentences := named.pop(self._prose, None):
                yield Padding(sentences, (0, 0, 0, 2))
            if facts := [Text.assemble((f"{title} ", "dim"), cell) for title, cell in named.items() if cell]:
                yield Padding(Text(", ").join(facts), (0, 0, 0, 2))
