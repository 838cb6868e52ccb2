"""Generated code that is run in this process, and the bugs it is given."""

import ast

import pytest

from agentgym.envs.code.mutations import BUG_KINDS, mutations
from agentgym.envs.code.trusted_code import EndlessError, Outcome, TrustedModules, why_unbounded

SOURCE = '''
def shipping(weight, is_far):
    """Return the price."""
    base = 3
    if weight > 10:
        base += 2
    elif weight > 5:
        base += 1
    if not is_far:
        return base
    return max(base, weight - 1) * 2 if is_far else base


def prices(weights):
    """Return all prices."""
    result = []
    for index in range(len(weights)):
        result.append((index, shipping(weights[index], index % 2 == 0)))
    return f"{result[0]}: {len(result):03}"
'''

EXAMPLES = [
    ("off_by_one", "base = 3", "base = 4"),
    ("off_by_one", "range(len(weights))", "range(len(weights) - 1)"),
    ("wrong_operator", "base += 2", "base -= 2"),
    ("wrong_operator", "weight - 1", "weight + 1"),
    ("wrong_comparison", "weight > 10", "weight >= 10"),
    ("wrong_constant", "base += 1", "base += 10"),
    ("swapped_arguments", "max(base, weight - 1)", "max(weight - 1, base)"),
    ("swapped_arguments", "weight - 1", "1 - weight"),
    ("swapped_arguments", "(index, shipping(weights[index], index % 2 == 0))",
     "(shipping(weights[index], index % 2 == 0), index)"),
    ("missing_branch", "    if not is_far:\n        return base\n", ""),
    ("missing_branch", "    elif weight > 5:\n        base += 1\n", ""),
    ("wrong_condition", "not is_far", "is_far"),
    ("wrong_variable", "max(base, weight - 1)", "max(weight, weight - 1)"),
    ("wrong_function", "max(base, weight - 1)", "min(base, weight - 1)"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "old", "new"), EXAMPLES)
def test_each_kind_of_bug(kind: str, old: str, new: str) -> None:
    assert SOURCE.count(old) == 1
    broken = {mutation.applied(SOURCE) for mutation in mutations(SOURCE, [kind])}
    assert SOURCE.replace(old, new) in broken


def test_every_kind_has_an_example_here() -> None:
    assert {kind for kind, _, _ in EXAMPLES} == set(BUG_KINDS)


def test_a_mutation_changes_what_it_says_and_nothing_else() -> None:
    for mutation in mutations(SOURCE, tuple(BUG_KINDS)):
        assert SOURCE[mutation.start :].startswith(mutation.old)
        assert mutation.function in ("shipping", "prices")
        changed = mutation.applied(SOURCE)
        assert changed != SOURCE
        assert len(changed) - len(SOURCE) == len(mutation.new) - len(mutation.old)
        assert ast.parse(changed).body[0] is not None  # still a program


def test_docstrings_and_formatted_texts_are_left_alone() -> None:
    for mutation in mutations(SOURCE, tuple(BUG_KINDS)):
        changed = mutation.applied(SOURCE)
        assert changed.count('f"{result[0]}: {len(result):03}"') == 1
        assert changed.count('"""Return the price."""') == changed.count('"""Return all prices."""') == 1


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("while True:\n    pass", "While"),
        ("def f(n):\n    return f(n)", "f calls f, which is not above it"),
        ("def f(n):\n    return g(n)\ndef g(n):\n    return n", "f calls g, which is not above it"),
        ("x = 9 ** 9 ** 9", "the operator Pow"),
        ("x = 1 << 99", "the operator LShift"),
        ("def f(xs):\n    for x in xs:\n        xs.append(x)", "a loop over xs, which grows in it"),
        ("def f(xs):\n    for x in enumerate(xs):\n        xs += [x]", "a loop over xs, which grows in it"),
        ("def f(d):\n    for x in d:\n        d[x + 1] = x", "a loop over d, which grows in it"),
        ("def f(o):\n    for x in o.xs:\n        o.xs.insert(0, x)", "a loop over o.xs, which grows in it"),
        ("def f(x):\n    for _ in range(99):\n        x *= x", "x grows by itself"),
        ("def f(x):\n    for _ in range(99):\n        x = x + x", "x grows by itself"),
    ],
)
def test_what_might_not_end_is_refused(source: str, reason: str) -> None:
    assert reason in why_unbounded(ast.parse(source))
    with pytest.raises(ValueError, match="might not end"):
        TrustedModules({"m": source})


def test_what_ends_is_not_refused() -> None:
    assert why_unbounded(ast.parse(SOURCE)) == ""


def test_a_loop_that_the_look_at_its_text_missed_is_stopped() -> None:
    modules = TrustedModules({"m": "def f(xs):\n    ys = xs\n    for x in ys:\n        xs.append(x)\n"})
    with pytest.raises(EndlessError):
        modules.outcome("m", "f([1])")
    assert modules.outcome("m", "f([])") == Outcome(None)  # the count begins anew


def test_outcomes_and_imports() -> None:
    modules = TrustedModules({"a.b": "def f(n):\n    return 1 // n\n", "a.c": "from a.b import f\n"})
    assert modules.outcome("a.c", "f(1)") == Outcome(1)
    assert modules.outcome("a.c", "f(0)") == Outcome(None, "ZeroDivisionError")
    assert modules.outcome("a.c", "open('/etc/passwd')") == Outcome(None, "NameError")
    with pytest.raises(ValueError, match="ImportError: os is not among"):
        TrustedModules({"m": "import os"})
    with pytest.raises(ValueError, match="does not compile"):
        TrustedModules({"m": "def"})
