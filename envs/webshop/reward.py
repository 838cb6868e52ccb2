"""WebShop's reward: the share of wishes that a purchase fulfils, times how well the product's type matches.

Source: "WebShop: Towards Scalable Real-World Web Interaction with Grounded Language Agents", and the code at
princeton-nlp/WebShop 64fa2a5, ``web_agent_site/engine/goal.py``::

    reward = r_type * (attributes met + options met + [price <= limit]) / (attributes + options + 1)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from rapidfuzz import fuzz

from agentgym.envs.webshop.product import Goal, Product
from agentgym.envs.webshop.vocabulary import TEXTS
from agentgym.types import RewardPart

_ALIKE = 85  # a token_set_ratio above this is a match


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeMatch:
    """Degree to which a product is of the kind that was asked for."""

    query_match: bool
    category_match: bool
    """Two parts of the category path are shared."""
    title_score: float
    """Share of the nouns of the wanted product's name that are in the bought one's."""

    @property
    def r_type(self) -> float:
        """The factor of the whole reward: 1, 0.5, 0.1 or 0.

        Example:
            >>> TypeMatch(query_match=False, category_match=False, title_score=0.2).r_type
            0.5
            >>> TypeMatch(query_match=True, category_match=True, title_score=0.05).r_type
            0.1
        """
        if self.title_score == 0.0:
            return 0.0
        if self.title_score < 0.1:
            return 0.1
        return 1.0 if self.query_match or self.category_match or self.title_score > 0.2 else 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A purchase's reward and its parts; ``r_...`` are named as in WebShop's records.

    Example:
        >>> match = TypeMatch(query_match=False, category_match=True, title_score=0.125)
        >>> score = Score(
        ...     type_match=match, num_attributes=2, num_attributes_met=1, num_options=1, num_options_met=0, r_price=True
        ... )
        >>> score.reward, score.r_att, score.r_option
        (0.5, 0.5, 0.0)
    """

    type_match: TypeMatch
    num_attributes: int
    num_attributes_met: int
    num_options: int
    num_options_met: int
    r_price: bool

    @property
    def reward(self) -> float:
        """The whole reward, 0 to 1."""
        num_met = self.num_attributes_met + self.num_options_met + self.r_price
        return self.type_match.r_type * num_met / self._num_wishes

    @property
    def r_att(self) -> float:
        """Share of the attributes that are met."""
        return self.num_attributes_met / self.num_attributes if self.num_attributes else 0.0

    @property
    def r_option(self) -> float | None:
        """Share of the options that are met, None where none was asked for."""
        return self.num_options_met / self.num_options if self.num_options else None

    def parts(self) -> tuple[RewardPart, ...]:
        """Return the reward in parts that sum to it; ``type`` is the deduction for a product of another kind.

        Example:
            >>> match = TypeMatch(query_match=False, category_match=False, title_score=0.15)
            >>> score = Score(
            ...     type_match=match, num_attributes=2, num_attributes_met=2, num_options=1, num_options_met=0,
            ...     r_price=True,
            ... )
            >>> [(part.name, part.value) for part in score.parts()]
            [('attributes', 0.5), ('options', 0.0), ('price', 0.25), ('type', -0.375)]
        """
        whole = self._num_wishes
        num_met = self.num_attributes_met + self.num_options_met + self.r_price
        return (
            RewardPart("attributes", self.num_attributes_met / whole),
            RewardPart("options", self.num_options_met / whole),
            RewardPart("price", self.r_price / whole),
            RewardPart("type", (self.type_match.r_type - 1.0) * num_met / whole),
        )

    @property
    def _num_wishes(self) -> int:
        return self.num_attributes + self.num_options + 1


def score_purchase(goal: Goal, product: Product, options: Iterable[str]) -> Score:
    """Score the purchase of a product with these values of its options."""
    return Score(
        type_match=match_type(goal, product),
        num_attributes=len(goal.attributes),
        num_attributes_met=count_attributes(goal, product),
        num_options=len(goal.options),
        num_options_met=count_options(goal.options, options),
        r_price=product.price <= goal.price_upper,
    )


def match_type(goal: Goal, product: Product) -> TypeMatch:
    """Compare kinds by query, category path and name."""
    wanted = nouns(goal.name)
    shared = set(wanted) & set(nouns(product.name))
    return TypeMatch(
        query_match=goal.query == product.query,
        category_match=len(_path(goal.product_category) & _path(product.product_category)) >= 2,
        title_score=len(shared) / len(wanted) if wanted else 0.2,
    )


def count_attributes(goal: Goal, product: Product) -> int:
    """Count the wanted attributes that a product has, by its attributes or word for word on its pages."""
    texts = (product.name.lower(), " ".join(product.features).lower(), product.description.lower())
    return sum(
        any(token_set_ratio(attribute, wanted) > _ALIKE for attribute in product.attributes)
        or any(wanted in text for text in texts)
        for wanted in goal.attributes
    )


def count_options(wanted: Iterable[str], chosen: Iterable[str]) -> int:
    """Count the wanted values that were chosen; colours are compared by their first plain name.

    Example:
        >>> count_options(["pink", "8"], ["8", "z2-pink"])
        2
    """
    values = [normalised_color(value) for value in chosen]
    return sum(any(token_set_ratio(value, normalised_color(option)) > _ALIKE for value in values) for option in wanted)


def _path(product_category: str) -> set[str]:
    return {part.strip() for part in product_category.split("›")}


# ----------------------------------- how WebShop compares words: fuzzily for attributes and options, by nouns for names
# Source: princeton-nlp/WebShop at 64fa2a5, ``web_agent_site/engine/goal.py`` and ``normalize.py``; the fuzzy score is
# ``token_set_ratio`` of the package thefuzz, which is rapidfuzz's.

COLORS: Final = tuple(TEXTS["colors"])
"""WebShop's names of colours, in the order in which they are looked for."""

_WORD = re.compile(r"[^\W_]+")
_NAME_WORD = re.compile(r"[a-z0-9][a-z0-9.'’]*[a-z0-9]|[a-z]")
_MEASURE = re.compile(r"[\d.]+(?:mm|cm|m|km|ft|in|oz|lb|g|kg|mg|l|w|v|k|t)?")
_FUNCTION_WORDS: Final = frozenset(TEXTS["function_words"])


def token_set_ratio(first: str, second: str) -> int:
    """Return the similarity of two texts, 0 to 100, ignoring the order and the repetition of words.

    Case and punctuation do not matter; a text without words has similarity 0.

    Example:
        >>> token_set_ratio("cool powder snow", "Powder-Snow"), token_set_ratio("essential oils", "essential oil")
        (100, 96)
        >>> token_set_ratio("easy clean", "easy use"), token_set_ratio("", "")
        (67, 0)
    """
    return round(fuzz.token_set_ratio(*(" ".join(_WORD.findall(text.lower())) for text in (first, second))))


def normalised_color(option: str) -> str:
    """Return the first of :data:`COLORS` that an option's value contains, else the value itself.

    Example:
        >>> normalised_color("z2-pink"), normalised_color("38 | 40 | 41 mm")
        ('pink', '38 | 40 | 41 mm')
    """
    return next((color for color in COLORS if color in option), option)


@lru_cache(maxsize=1 << 14)
def nouns(name: str) -> tuple[str, ...]:
    """Return the nouns of a product's name, in lower case, with repetitions.

    WebShop takes what spaCy's ``en_core_web_sm`` tags as nouns and proper nouns. In names, most words of which begin
    with a capital, that is nearly every word which is neither a function word nor a measure, so those are taken here;
    no model has to be downloaded. Counts differ by a word now and then.

    Example:
        >>> nouns("Letter I Birthday Cake Candles Set with Holders (96 Pack)")
        ('letter', 'birthday', 'cake', 'candles', 'set', 'holders', 'pack')
    """
    words = _NAME_WORD.findall(name.lower())
    return tuple(word for word in words if word not in _FUNCTION_WORDS and not _MEASURE.fullmatch(word))
