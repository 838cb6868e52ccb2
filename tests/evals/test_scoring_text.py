"""Answers are graded as SQuAD's and HotpotQA's official scripts grade them."""

from __future__ import annotations

import pytest

from agentgym.errors import UnknownNameError
from agentgym.registry import make
from agentgym.scoring.text import METRICS, cover_exact_match, exact_match, f1, normalize, score

# Every value is worked out by hand from the definition: lower, ASCII punctuation out, articles out, spaces single.
NORMALIZED = [
    ("The Eiffel Tower", "eiffel tower"),
    ("  A  quick\tbrown\nfox ", "quick brown fox"),
    ("", ""),
    ("the", "the"),  # nothing else is left: the scripts compare nothing with nothing here
    ("The, a; an!", "the a an"),
    ("...!?", "...!?"),
    ("U.S.A.", "usa"),
    ("well-known", "wellknown"),
    ("1,000,000", "1000000"),
    ("3.14", "314"),
    ("$5 (five)", "5 five"),
    ("the-end", "theend"),  # punctuation goes first: what is left is one word
    ("a.b", "ab"),
    ("Theodore's anthem", "theodores anthem"),  # articles only as whole words
    ("Beyoncé Knowles", "beyoncé knowles"),
    ("ÉCOLE", "école"),
    ("“curly” – quotes", "“curly” – quotes"),  # only ASCII punctuation is taken out
    ("Straße", "straße"),
    ("東京 タワー", "東京 タワー"),
    ("İstanbul", "i̇stanbul"),
    ("x\u00a0y", "x y"),  # a no-break space is a space
    ("an_apple", "anapple"),
]

# answer, reference, exact match, F1, cover exact match
SCORED = [
    ("Paris", "Paris", 1, 1, 1),
    ("paris.", "The Paris", 1, 1, 1),
    ("Paris, France", "Paris", 0, 2 / 3, 1),
    ("Paris", "Paris, France", 0, 2 / 3, 0),
    ("London", "Paris", 0, 0, 0),
    ("", "Paris", 0, 0, 0),
    ("the", "Paris", 0, 0, 0),
    ("", "", 1, 0, 1),  # HotpotQA's F1 shares no word with nothing
    ("A", "The", 0, 0, 0),
    ("the", "The", 1, 1, 1),
    ("A.", "a", 1, 1, 1),
    ("", "?", 0, 0, 0),
    ("anything", "the", 0, 0, 0),
    ("yes", "Yes.", 1, 1, 1),
    ("yes", "no", 0, 0, 0),
    ("yes it is", "yes", 0, 0, 1),
    ("yes", "yes it is", 0, 0, 0),
    ("no", "no way", 0, 0, 0),
    ("noanswer", "no answer", 0, 0, 0),
    ("12,000", "12000", 1, 1, 1),
    ("12 000", "12000", 0, 0, 0),
    ("twelve", "12", 0, 0, 0),
    ("21 May 1990", "May 21, 1990", 0, 1, 0),
    ("a b b", "b b b", 0, 0.8, 0),  # "a" is an article: 2 of 2 words, 2 of 3
    ("new york new york", "New York", 0, 2 / 3, 1),
    ("Jean-Luc Godard", "Jean Luc Godard", 0, 0.4, 0),
    ("cartoon", "art", 0, 0, 1),
    ("Café", "Cafe", 0, 0, 0),
    ("Émile Zola", "émile zola", 1, 1, 1),
]


@pytest.mark.parametrize(("text", "wanted"), NORMALIZED)
def test_normalisation(text: str, wanted: str) -> None:
    assert normalize(text) == wanted
    assert normalize(normalize(text)) == wanted


@pytest.mark.parametrize(("answer", "reference", "em", "f", "cover"), SCORED)
def test_scores(answer: str, reference: str, em: float, f: float, cover: float) -> None:
    assert exact_match(answer, reference) == em
    assert f1(answer, reference) == pytest.approx(f)
    assert cover_exact_match(answer, reference) == cover


def test_f1_is_symmetric_and_cover_is_no_stricter_than_exact() -> None:
    for answer, reference, em, _, cover in SCORED:
        assert f1(answer, reference) == f1(reference, answer)
        assert cover >= em


def test_of_several_references_the_best_counts() -> None:
    assert score("Hall", ["G. Stanley Hall", "Stanley Hall"], "f1") == pytest.approx(2 / 3)
    assert score("stanley hall", ["G. Stanley Hall", "Stanley Hall"], "em") == 1.0
    assert score("x", [], "em") == 0.0
    assert set(METRICS) == {"em", "f1", "cover_em"}


def test_an_outcome_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown outcome 'f2'; did you mean 'f1'"):
        make("agentgym/WikiWorld-v0", outcome="f2")
