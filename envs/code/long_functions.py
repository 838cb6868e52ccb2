"""Families of longer functions: with a loop or two, and with a helper."""

from __future__ import annotations

from typing import Final

from agentgym.envs.code.function_families import Family

_LIMITS: Final = range(3, 13)

LOOPS: Final = (
    Family(
        names=("first_at", "find", "position"),
        template='''
def $name(items, wanted):
    """Return the index of the first item that equals wanted, or -1 if there is none."""
    for index in range(len(items)):
        if items[index] == wanted:
            return index
    return -1
''',
        inputs=("repeats", "small"),
    ),
    Family(
        names=("running", "cumulated", "balances"),
        template='''
def $name(amounts):
    """Return a list with, for each amount, the sum of it and of all before it, starting from $k."""
    total = $k
    totals = []
    for amount in amounts:
        total += amount
        totals.append(total)
    return totals
''',
        inputs=("ints",),
        constants={"k": range(0, 6)},
    ),
    Family(
        names=("steps", "differences", "changes"),
        template='''
def $name(values):
    """Return a list of how much each value is above the one before it; the first has none."""
    result = []
    for index in range(1, len(values)):
        result.append(values[index] - values[index - 1])
    return result
''',
        inputs=("ints",),
    ),
    Family(
        names=("window_sums", "moving", "sums_of_runs"),
        template='''
def $name(values, size):
    """Return a list of the sums of every size neighbouring values, from left to right."""
    result = []
    for start in range(len(values) - size + 1):
        result.append(sum(values[start:start + size]))
    return result
''',
        inputs=("ints", "small"),
    ),
    Family(
        names=("chunks", "pieces", "pages"),
        template='''
def $name(items, size):
    """Return the items as a list of lists of size items each; the last may be shorter."""
    result = []
    for start in range(0, len(items), size):
        result.append(items[start:start + size])
    return result
''',
        inputs=("ints", "small"),
    ),
    Family(
        names=("count_letter", "occurrences", "frequency"),
        template='''
def $name(text, letter):
    """Return how often letter occurs in the text, not counting its first $k characters."""
    count = 0
    for index in range($k, len(text)):
        if text[index] == letter:
            count += 1
    return count
''',
        inputs=("text", "letter"),
        constants={"k": range(0, 4)},
    ),
    Family(
        names=("long_words", "kept_words", "words_of"),
        template='''
def $name(text):
    """Return a list of the words of the text that have at least $k letters, each with its first letter a capital."""
    result = []
    for word in text.split():
        if len(word) >= $k:
            result.append(word[0].upper() + word[1:])
    return result
''',
        inputs=("text",),
        constants={"k": range(3, 7)},
    ),
    Family(
        names=("shift_letters", "encoded", "cipher"),
        template='''
def $name(word):
    """Return the word with each letter replaced by the one $k places on in the alphabet; after z comes a."""
    result = ""
    for letter in word:
        place = ord(letter) - ord("a")
        result += chr((place + $k) % 26 + ord("a"))
    return result
''',
        inputs=("word",),
        constants={"k": range(1, 14)},
    ),
    Family(
        names=("runs", "compressed", "encoded_runs"),
        template='''
def $name(items):
    """Return a list of (item, length) for each run of equal neighbours."""
    result = []
    for item in items:
        if result and result[-1][0] == item:
            result[-1] = (item, result[-1][1] + 1)
        else:
            result.append((item, 1))
    return result
''',
        inputs=("repeats",),
    ),
    Family(
        names=("column_sums", "totals_down", "sum_columns"),
        template='''
def $name(rows):
    """Return the sum of each column of the rows, which are of equal length; at most $k is taken from each cell."""
    sums = [0] * len(rows[0])
    for row in rows:
        for column in range(len(row)):
            sums[column] += min(row[column], $k)
    return sums
''',
        inputs=("matrix",),
        constants={"k": _LIMITS},
    ),
    Family(
        names=("deepest", "nesting", "depth_of"),
        template='''
def $name(text):
    """Return how deep the brackets of the text are nested, or -1 if they do not match."""
    depth = 0
    most = 0
    for mark in text:
        if mark == "(":
            depth += 1
        else:
            depth -= 1
        if depth < 0:
            return -1
        most = max(most, depth)
    return most if depth == 0 else -1
''',
        inputs=("brackets",),
    ),
    Family(
        names=("tallies", "counts", "histogram"),
        template='''
def $name(items):
    """Return a dict from each item to how often it occurs, without those that occur less than $k times."""
    found = {}
    for item in items:
        found[item] = found.get(item, 0) + 1
    return {item: count for item, count in found.items() if count >= $k}
''',
        inputs=("repeats",),
        constants={"k": range(1, 4)},
    ),
    Family(
        names=("pairs_with_sum", "matching_pairs", "pairs"),
        template='''
def $name(values):
    """Return how many pairs of two different places hold values whose sum is $k."""
    count = 0
    for first in range(len(values)):
        for second in range(first + 1, len(values)):
            if values[first] + values[second] == $k:
                count += 1
    return count
''',
        inputs=("repeats",),
        constants={"k": range(2, 6)},
    ),
    Family(
        names=("longest_rise", "best_streak", "longest_climb"),
        template='''
def $name(values):
    """Return the length of the longest run of neighbours in which each value is above the one before it."""
    best = 0
    length = 0
    for index in range(len(values)):
        if index > 0 and values[index] > values[index - 1]:
            length += 1
        else:
            length = 1
        best = max(best, length)
    return best
''',
        inputs=("ints",),
    ),
    Family(
        names=("coins", "change", "notes"),
        template='''
def $name(amount):
    """Return how many pieces of $a, of $b and of 1 make up the amount, as a list; large ones first."""
    counts = []
    for piece in ($a, $b, 1):
        counts.append(amount // piece)
        amount = amount % piece
    return counts
''',
        inputs=("seconds",),
        constants={"a": (10, 20, 50), "b": (2, 3, 5)},
    ),
)
"""One loop, or two, each."""

WITH_HELPERS: Final = (
    Family(
        names=("spread", "range_of", "extent"),
        template='''
def difference(high, low):
    """Return how much high is above low."""
    return high - low


def $name(values):
    """Return how much the largest value is above the smallest, and 0 if there is none."""
    if not values:
        return 0
    return difference(max(values), min(values))
''',
        inputs=("ints",),
    ),
    Family(
        names=("invoice", "bill", "receipt"),
        template='''
def with_rebate(amount, rebate):
    """Return amount less rebate percent of it, rounded down to whole numbers."""
    return amount * (100 - rebate) // 100


def $name(prices, rebate):
    """Return the sum of the prices, each less rebate percent if it is at least $k; others are not reduced."""
    total = 0
    for price in prices:
        if price >= $k:
            total += with_rebate(price, rebate)
        else:
            total += price
    return total
''',
        inputs=("ints", "natural"),
        constants={"k": _LIMITS},
    ),
    Family(
        names=("busy_minutes", "overlap", "shared_time"),
        template='''
def latest(first, second):
    """Return the later of two times."""
    return first if first > second else second


def $name(begin, end, other_begin, other_end):
    """Return for how long two spans of time overlap; 0 if they do not."""
    start = latest(begin, other_begin)
    stop = min(end, other_end)
    if stop <= start:
        return 0
    return stop - start
''',
        inputs=("natural", "natural", "natural", "natural"),
    ),
    Family(
        names=("check_digit", "checksum", "control_digit"),
        template='''
def weighted(digit, place):
    """Return digit times $k at even places, which count from 0, and the digit itself at odd ones."""
    if place % 2 == 0:
        return digit * $k
    return digit


def $name(number):
    """Return what must be added to the sum of the weighted digits to reach a multiple of 10."""
    total = 0
    for place, digit in enumerate(str(number)):
        total += weighted(int(digit), place)
    return (10 - total % 10) % 10
''',
        inputs=("seconds",),
        constants={"k": (3, 7, 9)},
    ),
    Family(
        names=("ranking", "leaders", "podium"),
        template='''
def beats(score, other):
    """Return True if score is above the other by at least $k."""
    return score - other >= $k


def $name(scores):
    """Return a list of how many other scores each score beats."""
    result = []
    for score in scores:
        beaten = 0
        for other in scores:
            if beats(score, other):
                beaten += 1
        result.append(beaten)
    return result
''',
        inputs=("ints",),
        constants={"k": range(1, 4)},
    ),
    Family(
        names=("stock_after", "level_after", "left_over"),
        template='''
def taken(stock, wanted):
    """Return how many of those wanted the stock has."""
    return min(stock, wanted)


def $name(stock, orders):
    """Return what is left of the stock after the orders; below $k, the stock first grows by $d before an order."""
    for wanted in orders:
        if stock < $k:
            stock += $d
        stock -= taken(stock, wanted)
    return stock
''',
        inputs=("natural", "repeats"),
        constants={"k": range(2, 6), "d": range(1, 6)},
    ),
)
"""Two functions each, one of which calls the other."""
