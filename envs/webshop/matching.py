"""How WebShop compares words: fuzzily for attributes and options, by nouns for names.

Source: princeton-nlp/WebShop at 64fa2a5, ``web_agent_site/engine/goal.py`` and ``normalize.py``; the fuzzy score is
``token_set_ratio`` of the package thefuzz, which is rapidfuzz's.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from rapidfuzz import fuzz

_COLORS: Final = """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
    caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal
    dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory
    ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor
    mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand
    sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut
    wheat white wine yellow"""
COLORS: Final = tuple(_COLORS.split())
"""WebShop's names of colours, in the order in which they are looked for."""

_WORD = re.compile(r"[^\W_]+")
_NAME_WORD = re.compile(r"[a-z0-9][a-z0-9.'’]*[a-z0-9]|[a-z]")
_MEASURE = re.compile(r"[\d.]+(?:mm|cm|m|km|ft|in|oz|lb|g|kg|mg|l|w|v|k|t)?")
_FUNCTION: Final = """
    a about above after all also an and any are as at be been before below between both but by can each either even
    every few for from had has have he her here his how i if in into is it its itself just may me more most much my no
    nor not of off on once only or other our out over own per so some such than that the their them then there these
    they this those through to too under until up us very via was we what when where which while who will with within
    without you your"""
_FUNCTION_WORDS: Final = frozenset(_FUNCTION.split())


def token_set_ratio(first: str, second: str) -> int:
    """How alike two texts are, 0 to 100, whatever the order and the repetition of words.

    Case and punctuation do not matter; a text without words is like nothing.

    Example:
        >>> token_set_ratio("cool powder snow", "Powder-Snow"), token_set_ratio("essential oils", "essential oil")
        (100, 96)
        >>> token_set_ratio("easy clean", "easy use"), token_set_ratio("", "")
        (67, 0)
    """
    return round(fuzz.token_set_ratio(*(" ".join(_WORD.findall(text.lower())) for text in (first, second))))


def normalised_color(option: str) -> str:
    """The first of :data:`COLORS` that an option's value contains, else the value itself.

    Example:
        >>> normalised_color("z2-pink"), normalised_color("38 | 40 | 41 mm")
        ('pink', '38 | 40 | 41 mm')
    """
    return next((color for color in COLORS if color in option), option)


@lru_cache(maxsize=1 << 14)
def nouns(name: str) -> tuple[str, ...]:
    """The words of a product's name that say what it is, in lower case, repetitions kept.

    WebShop takes what spaCy's ``en_core_web_sm`` tags as nouns and proper nouns. In names, most words of which begin
    with a capital, that is nearly every word which is neither a function word nor a measure, so those are taken here;
    no model has to be downloaded. Counts differ by a word now and then.

    Example:
        >>> nouns("Letter I Birthday Cake Candles Set with Holders (96 Pack)")
        ('letter', 'birthday', 'cake', 'candles', 'set', 'holders', 'pack')
    """
    words = _NAME_WORD.findall(name.lower())
    return tuple(word for word in words if word not in _FUNCTION_WORDS and not _MEASURE.fullmatch(word))
