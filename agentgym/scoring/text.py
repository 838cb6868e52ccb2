"""Scores of answers in question answering: exact match, F1 and cover exact match.

Sources: the normalisation is that of SQuAD's official script (``evaluate-v1.1.py``; "SQuAD: 100,000+ Questions for
Machine Comprehension of Text"), which HotpotQA's script also uses (``hotpot_evaluate_v1.py``; "HotpotQA: A Dataset for
Diverse, Explainable Multi-hop Question Answering"): lower case, no ASCII punctuation, no articles (a, an, the), single
spaces. HotpotQA's F1 adds that yes, no and noanswer get no partial credit. Papers on search agents also report cover
exact match, or sub-EM ("Search-R1: Training LLMs to Reason and Leverage Search Engines with Reinforcement Learning",
``subem_check``). Of several references the best one counts, as in SQuAD's script.

One difference to the scripts: for a text of only articles and punctuation ("The", "?"), they compare empty texts, so
that any such answer is right, and F1 is 0 even for the reference itself. Here such a text keeps its articles, or its
punctuation if it has nothing else: the choice "A." becomes "a".
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Literal, get_args

from agentgym.errors import unknown_name

Metric = Literal["em", "f1", "cover_em"]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ALL_OR_NOTHING: Final = ("yes", "no", "noanswer")


def normalize(text: str) -> str:
    """Return the normalised text for comparisons.

    Example:
        >>> normalize("The  U.S.A., a Nation!"), normalize("A."), normalize(" ?")
        ('usa nation', 'a', '?')
    """
    bare = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split()) or " ".join((bare.strip() or text.lower()).split())


def exact_match(answer: str, reference: str) -> float:
    """Return 1.0 if both texts are equal after normalisation, else 0.0.

    Example:
        >>> exact_match("the Eiffel Tower.", "Eiffel tower")
        1.0
    """
    return float(normalize(answer) == normalize(reference))


def f1(answer: str, reference: str) -> float:
    """Return the harmonic mean of precision and recall of words, counting repetitions; 0.0 if no word is shared.

    Example:
        >>> round(f1("the old Eiffel Tower", "Eiffel Tower"), 3)
        0.8
        >>> f1("yes it is", "yes")
        0.0
    """
    given, wanted = normalize(answer), normalize(reference)
    if given != wanted and (given in _ALL_OR_NOTHING or wanted in _ALL_OR_NOTHING):
        return 0.0
    given_words, wanted_words = given.split(), wanted.split()
    num_shared = sum((Counter(given_words) & Counter(wanted_words)).values())
    if num_shared == 0:
        return 0.0
    precision, recall = num_shared / len(given_words), num_shared / len(wanted_words)
    return 2 * precision * recall / (precision + recall)


def cover_exact_match(answer: str, reference: str) -> float:
    """Return 1.0 if the normalised answer contains the normalised reference, else 0.0.

    It compares characters, not words, as the published check does. It favours long answers: it suits the evaluation of
    talkative models, but not training.

    Example:
        >>> cover_exact_match("It is the Eiffel Tower in Paris.", "Eiffel tower")
        1.0
        >>> cover_exact_match("a cartoon", "art")
        1.0
    """
    given, wanted = normalize(answer), normalize(reference)
    return float(wanted in given if wanted else given == wanted)


METRICS: Final[dict[Metric, Callable[[str, str], float]]] = {
    "em": exact_match,
    "f1": f1,
    "cover_em": cover_exact_match,
}


def check_metric(name: str) -> None:
    """Raise an error for an unknown metric.

    Raises:
        UnknownNameError: there is no such metric; the message names those that exist.
    """
    if name not in METRICS:
        raise unknown_name("outcome", name, get_args(Metric))


def score(answer: str, references: Sequence[str], metric: Metric) -> float:
    """Return the best score of an answer over several references, from 0 to 1; 0.0 without references.

    Example:
        >>> score("Stanley Hall", ["G. Stanley Hall", "Stanley Hall"], "em")
        1.0
    """
    return max((METRICS[metric](answer, reference) for reference in references), default=0.0)
