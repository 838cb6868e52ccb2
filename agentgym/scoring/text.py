"""Scores of answers: exact match, F1 and cover exact match, as question answering measures them.

Sources: the normalisation is that of SQuAD's official script (``evaluate-v1.1.py``; "SQuAD: 100,000+ Questions for
Machine Comprehension of Text"), which HotpotQA's takes over (``hotpot_evaluate_v1.py``; "HotpotQA: A Dataset for
Diverse, Explainable Multi-hop Question Answering"): small letters, ASCII punctuation out, the articles a, an and the
out, spaces made single. HotpotQA's F1 adds that yes, no and noanswer have no partial credit. Cover exact match, also
called sub-EM, is what search agents report beside it ("Search-R1: Training LLMs to Reason and Leverage Search Engines
with Reinforcement Learning", ``subem_check``). Of several references the best one counts, as in SQuAD's script.

One thing is different: where a text is nothing but articles and punctuation ("The", "?"), the scripts compare nothing
with nothing, so that any such answer is right and F1 is 0 even for the reference itself. Here such a text keeps its
articles, and its punctuation if it has nothing else: the choice "A." is "a".
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
    """The text as it is compared.

    Example:
        >>> normalize("The  U.S.A., a Nation!"), normalize("A."), normalize(" ?")
        ('usa nation', 'a', '?')
    """
    bare = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split()) or " ".join((bare.strip() or text.lower()).split())


def exact_match(answer: str, reference: str) -> float:
    """1.0 if both are the same once normalised, else 0.0.

    Example:
        >>> exact_match("the Eiffel Tower.", "Eiffel tower")
        1.0
    """
    return float(normalize(answer) == normalize(reference))


def f1(answer: str, reference: str) -> float:
    """Harmonic mean of the precision and recall of words, repetitions counted; 0.0 if none is shared.

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
    """1.0 if the reference is a part of the answer, both normalised, else 0.0.

    It compares characters, not words, as the published check does, and pays for saying much: good for reading results
    of talkative models, a poor thing to train on.

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
    """Refuse a name that is no metric.

    Raises:
        UnknownNameError: naming those there are.
    """
    if name not in METRICS:
        raise unknown_name("outcome", name, get_args(Metric))


def score(answer: str, references: Sequence[str], metric: Metric) -> float:
    """The best of an answer's scores, from 0 to 1, against several references; 0.0 without any.

    Example:
        >>> score("Stanley Hall", ["G. Stanley Hall", "Stanley Hall"], "em")
        1.0
    """
    return max((METRICS[metric](answer, reference) for reference in references), default=0.0)
