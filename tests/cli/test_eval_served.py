"""``--policy vllm:URL?model=SOURCE``: what is refused before a server is asked."""

from __future__ import annotations

import pytest

from agentgym.api.policies import check_policy
from agentgym.errors import UsageError
from agentgym.evals.config import EvalConfig
from agentgym.trainers.engines.vllm.address import parse_served


@pytest.mark.parametrize(
    ("policy", "needle"),
    [
        ("vllm:http://127.0.0.1:8000", "names no model"),
        ("vllm:http://127.0.0.1:8000?model=", "names no model"),
        ("vllm:http://127.0.0.1:8000?model=no/such/folder/here", "vllm:URL"),
        ("vllm:http://127.0.0.1:8000?modle=smollm2", "did you mean 'model'?"),
        ("vllm:127.0.0.1:8000?model=smollm2", "http://"),
        ("vllm:http://a:1,http://a:1?model=smollm2", "twice"),
    ],
)
def test_what_is_no_such_policy(policy: str, needle: str) -> None:
    with pytest.raises(UsageError) as raised:
        check_policy(policy, EvalConfig())
    assert needle in str(raised.value)


def test_servers_and_a_folder_that_they_see() -> None:
    served = parse_served("http://a:1/,http://b:2?model=smollm2&weight_dir=/shared")
    assert (served.urls, served.model, served.weight_dir) == (("http://a:1", "http://b:2"), "smollm2", "/shared")
    check_policy("vllm:http://a:1,http://b:2?model=smollm2", EvalConfig(chat={"codec": "json"}))
