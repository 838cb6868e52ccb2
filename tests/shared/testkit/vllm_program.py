"""A program that stands for a Python with vLLM: it reports a version, and serves a model as ``SamplingVllm`` does.

While there is a file ``die`` beside the program, a server removes it when it is first
asked with trained weights, and dies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM

from agentgym.trainers.engines.facts import model_facts
from testkit import TESTKIT
from testkit.sampling_vllm import SamplingVllm

VERSIONS = json.dumps({"vllm": "0.32.0", "torch": "2.11.0"})


def write_program(path: Path, warm_python: str) -> Path:
    """Write the program, which ``AGENTGYM_VLLM_PYTHON`` can name, and return its path.

    Args:
        warm_python: the address of a :mod:`testkit.warm_python`, from which servers fork.
    """
    client = f"'{sys.executable}' -S -E '{TESTKIT}/warm_python.py' run '{warm_python}'"
    path.write_text(
        f"#!/bin/sh\n[ \"$1\" = -c ] && echo '{VERSIONS}' && exit\n"
        f"DIE='{path.parent}/die' PYTHONPATH='{os.pathsep.join(sys.path)}' exec {client} '{__file__}' \"$@\"\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


class MortalVllm(SamplingVllm):
    async def _complete(self, body: Any) -> tuple[int, Any]:
        if int(str(self.held["version"])) > 0 and os.path.exists(os.environ["DIE"]):
            os.remove(os.environ["DIE"])
            os._exit(1)
        return await super()._complete(body)


async def serve(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    for name in ("model", "served-model-name", "host", "port"):
        parser.add_argument(f"--{name}", required=True)
    given, _ = parser.parse_known_args(arguments)
    facts = model_facts(AutoModelForCausalLM.from_pretrained(given.model))
    server = MortalVllm(**{name: getattr(facts, name) for name in facts.__dataclass_fields__})
    server.host, server.port, server.fixed_name = given.host, int(given.port), given.served_model_name
    await server.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[3:]))
