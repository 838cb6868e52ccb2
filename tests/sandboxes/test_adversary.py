"""The adversary: every rung holds what it promises against it, and it finds a sandbox that promises too much."""

import os
from collections.abc import Callable

import pytest

from agentgym.check.sandbox.adversary import ALWAYS, attack_sandbox, attempts
from agentgym.sandbox import GUARANTEES, Capabilities, Guarantee, Limits, Sandbox
from agentgym.sandboxes import namespaces
from agentgym.sandboxes.docker import DockerSandbox
from agentgym.sandboxes.namespaces import NamespaceSandbox
from agentgym.sandboxes.process import ProcessSandbox

NO_NAMESPACES = namespaces.why_not() or ("needs root for all promises" if os.getuid() else "")


def test_every_promise_is_gone_for() -> None:
    assert {*attempts()} == {*GUARANTEES, *ALWAYS, "traces", "prelude", "voids"} - {"afterwards"}
    programs = [name for promise, found in attempts().items() if promise not in ("prelude", "voids") for name in found]
    assert len(programs) >= 60


@pytest.mark.parametrize(
    "factory",
    [
        pytest.param(ProcessSandbox, id="process", marks=pytest.mark.slow),
        pytest.param(
            NamespaceSandbox,
            id="namespaces",
            marks=[pytest.mark.slow, pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES)],
        ),
        pytest.param(
            lambda limits: DockerSandbox(limits=limits), id="docker", marks=[pytest.mark.slow, pytest.mark.docker]
        ),
    ],
)
def test_what_is_promised_holds(factory: Callable[[Limits], Sandbox]) -> None:
    promises = attack_sandbox(factory)
    assert [str(promise) for promise in promises if not promise.holds] == []
    tried = {promise.name for promise in promises if promise.num_attempts}
    assert {promise.name for promise in promises if promise.is_promised} <= tried
    if os.getuid() == 0:
        assert promises[-1].num_attempts >= 60  # all of them, in the row "afterwards"


def test_the_cheap_promises_of_process_hold() -> None:
    promises = attack_sandbox(ProcessSandbox, only=lambda name: name in ("signals", "user", "answers", "reset"))
    assert [str(promise) for promise in promises if not promise.holds] == []
    assert promises[-1].num_attempts >= 8


class Boastful(ProcessSandbox):
    """Claims what a plain process cannot give, and resets nothing."""

    def capabilities(self) -> Capabilities:
        claims = tuple(Guarantee(name=name, in_force=True, how="believe me") for name in GUARANTEES)
        return Capabilities(backend="boastful", guarantees=claims)

    def reset(self) -> None:
        pass


def test_a_sandbox_that_promises_too_much_is_found_out() -> None:
    tried = ("filesystem", "network", "reset", "traces")
    found = {promise.name: promise for promise in attack_sandbox(Boastful, only=lambda name: name in tried)}
    assert not any(found[name].holds for name in tried)
    broken = {name: {line.partition(":")[0] for line in found[name].broken} for name in tried}
    assert {"host secret", "host secret by a link", "host secret by dots"} <= broken["filesystem"]
    assert {"the host by loop-back", "abstract sockets"} <= broken["network"]
    assert {"temporary files", "times and modes"} <= broken["reset"]
    assert {"keys of the user", "persistent keys"} <= broken["traces"]
