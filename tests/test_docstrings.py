"""Docstrings of tools: the forms that people write, and nothing dropped that the model should read."""

import inspect

import pytest

from agentgym.docstrings import split_docstring
from agentgym.errors import ToolDefinitionError
from agentgym.tool import tool, tool_of

BOTH = {"city": "the city", "n": "how many"}

FORMS = {
    "google": "Go.\n\nArgs:\n    city: the city\n    n: how many\n",
    "types": "Go.\n\nArgs:\n    city (str): the city\n    n (int, optional): how many\n",
    "blanks before the colon": "Go.\n\nArgs:\n    city (str) : the city\n    n : how many\n",
    "brackets in types": "Go.\n\nArgs:\n    city (Tuple[int, (str)]): the city\n    n (dict[str: int]): how many\n",
    "full-width colons": "Go.\n\nArgs：\n    city：the city\n    n：how many\n",
    "continued by two blanks": "Go.\n\nArgs:\n  city: the\n    city\n  n: how\n\n    many\n",
    "continued without blanks": "Go.\n\nArgs:\n    city: the city\n    n: how\n    many\n",
    "Arguments": "Go.\n\nArguments:\n    city: the city\n    n: how many\n",
    "Parameters": "Go.\n\nParameters:\n    city: the city\n    n: how many\n",
    "lower case": "Go.\n\nargs:\n    city: the city\n    n: how many\n",
    "keywords apart": "Go.\n\nArgs:\n    city: the city\n\nKeyword Args:\n    n: how many\n",
    "without indentation": "Go.\n\nArgs:\ncity: the city\nn: how many\n",
    "an indented section": "Go.\n\n    Args:\n      city: the city\n      n: how many\n    Returns:\n      x\n",
    "a list": "Go.\n\nArgs:\n    - city: the city\n    - n: how many\n",
    "marked names": "Go.\n\nArgs:\n    `city`: the city\n    **n**: how many\n",
    "dashes": "Go.\n\nArgs:\n    city - the city\n    n – how many\n",
    "texts below": "Go.\n\nArgs:\n    city:\n        the city\n    n (int)\n        how many\n",
    "numpy": "Go.\n\nParameters\n---\ncity : str\n    the city\nn : int, optional\n    how many\n\nNotes\n-----\nx\n",
    "numpy in one line": "Go.\n\nParameters\n----------\ncity: the city\nn: how many\n",
    "numpy in two sections": "Go.\n\nParameters\n---\ncity\n  the city\n\nOther Parameters\n---\nn\n  how many\n",
    "sphinx": "Go.\n\n:param city: the city\n:type city: str\n:param n: how\n    many\n:returns: x\n",
    "sphinx with types": "Go.\n\n:param str city: the city\n:param int | None n: how many\n:raises X: if\n",
    "epytext": "Go.\n\n@param city: the city\n@param n: how many\n@return: x\n",
    "no blank line": "Go.\nArgs:\n    city: the city\n    n: how many\n",
    "lines of blanks": "Go.\n    \nArgs:\n    city: the city\n    n: how many\n    \nReturns:\n    a + b\n",
    "errors before": "Go.\n\nRaises:\n    ValueError: if bad\n\nArgs:\n    city: the city\n    n: how many\n",
    "after results": "Go.\n\nReturns:\n    x\n\nArgs:\n    city: the city\n    n: how many\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_parameters_are_read_in_every_form(form: str) -> None:
    assert split_docstring(inspect.cleandoc(FORMS[form]), ["city", "n"]) == ("Go.", BOTH)


@pytest.mark.parametrize(
    ("doc", "description"),
    [
        ("Go.\n\nArgs:\n    citty: the city\n        in words\n", "Go. citty: the city in words"),
        ("Go.\n\nArgs:\n    Note: all in metres.\n", "Go. Note: all in metres."),
        ("Go.\n\nArgs:\n    n (Tuple[int: how many\n", "Go. n (Tuple[int: how many"),
        ("Go.\n\nParameters\n----------\na, b : int\n    Two.\n", "Go. a, b : int Two."),
        ("Go.\n\n:param to: where\n", "Go. to: where"),
        ("Go.\n\nReturns:\n    x\n\nBe quick.\n", "Go. Be quick."),
        ("Go.\n\nReturns: the price\nin euros.\n\nBe quick.\n", "Go. Be quick."),
        ("Go.\n\nNote: be quick: now.\n", "Go. Note: be quick: now."),
        ("Go.\n\nWarnings\n--------\nDeletes all.\n", "Go. Warnings -------- Deletes all."),
        ("Go. Args: none. See :func:`x` and mail a@param.org: hello", None),
        ("Search: find it.\nTwo\n  lines.", "Search: find it. Two lines."),
        ("Returns: the price.", None),
    ],
)
def test_what_describes_no_parameter_stays_in_the_description(doc: str, description: str | None) -> None:
    assert split_docstring(doc, ["city", "n"]) == (description or doc, {})


def test_colons_and_quotes_in_a_description_are_part_of_it() -> None:
    doc = 'Get it.\n\nArgs:\n    ref (str) : Where, as "3:5" or "4a".\n    (ex. "Rashi")\n    by (str) : Who.\n'
    assert split_docstring(inspect.cleandoc(doc), ["ref", "by"]) == (
        "Get it.",
        {"ref": 'Where, as "3:5" or "4a". (ex. "Rashi")', "by": "Who."},
    )


def test_a_docstring_of_parameters_alone_is_refused() -> None:
    with pytest.raises(ToolDefinitionError, match=r"tool 'go' .*: the docstring describes its parameters, and not"):

        @tool
        def go(city: str) -> str:
            """
            Args:
                city: the city
            """
            return ""


def test_a_parameter_named_like_a_section() -> None:
    @tool
    def write(notes: str, Example: str) -> str:
        """Write.

        Args:
            notes: the notes
            Example: an example

        Example:
            write("a", "b")
        """
        return ""

    spec = tool_of(write).spec
    assert spec.description == "Write."
    assert spec.parameters["properties"]["notes"]["description"] == "the notes"
    assert spec.parameters["properties"]["Example"]["description"] == "an example"
