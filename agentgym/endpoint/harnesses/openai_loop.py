"""The reference harness: a loop of chat completions and environment steps, like most tool-using agents."""

from __future__ import annotations

from agentgym.endpoint.harness import AgentEpisode, harness
from agentgym.endpoint.wire.openai_chat import as_wire
from agentgym.http_limits import limited_async_client


@harness("openai_loop")
async def openai_loop(episode: AgentEpisode) -> None:
    """Request a completion, step the environment with it and append the reply, until the episode is over.

    With the same engine and seed, its episodes equal those of ``run_episode``.
    """
    messages = as_wire(episode.observation)
    body = {"model": episode.model, "tools": [tool.as_function() for tool in episode.tools]}
    headers = {"Authorization": f"Bearer {episode.api_key}"}
    async with limited_async_client(headers=headers, timeout=None, trust_env=False) as client:
        while not episode.is_over:
            answer = await client.post(f"{episode.base_url}/chat/completions", json={**body, "messages": messages})
            if answer.is_error:
                return  # the endpoint has recorded the reason
            said = answer.json()["choices"][0]["message"]
            messages += [said, *await episode.act(said)]
