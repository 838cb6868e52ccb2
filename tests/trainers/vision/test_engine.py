"""The embedded engine with images: kept caches, positions, prefixes, placeholders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit.seeing import FAMILIES, picture, said, shown
from testkit.tiny_models import tiny_model
from transformers import AutoModelForImageTextToText

from agentgym.engine import SamplingParams
from agentgym.errors import EngineError
from agentgym.media import has_media
from agentgym.render.chat import ChatRenderer
from agentgym.render.config import ChatConfig
from agentgym.rollout.session import Session
from agentgym.trainers.engines.torch.any_model import RowByRow
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.engines.torch.forward import Chunk
from agentgym.trainers.models.head import frozen, head_of, trunk_of
from agentgym.trainers.models.model import load_model
from agentgym.trainers.models.vision import Vision, vision_of
from agentgym.trainers.models.vocabulary import renderer_for

TOLERANCE = 1e-5


class Player:
    """A model, its renderer, and an engine."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.model, tokenizer = load_model(folder, say=lambda line: None)
        self.renderer: ChatRenderer = renderer_for(folder, tokenizer, ChatConfig())
        self.engine = TorchEngine(self.model, **{"num_slots": 4, "max_context_tokens": 512, **options})
        vision = vision_of(self.model)
        assert vision is not None
        self.vision: Vision = vision

    async def say(self, session: Session, session_id: str, seed: int) -> tuple[tuple[int, ...], Any]:
        prompt = session.prompt_ids
        made = await self.engine.generate(prompt, SamplingParams(max_new_tokens=6, seed=seed), session_id=session_id)
        session.add_completion(made)
        return prompt, made

    def forward(self, ids: Sequence[int]) -> torch.Tensor:
        """Return the trainer's log-probabilities ``[T, V]`` after each token."""
        with frozen(self.model):
            states = trunk_of(self.model)(input_ids=torch.tensor([list(ids)]), use_cache=False).last_hidden_state
            return head_of(self.model)(states)[0].log_softmax(-1)

    def gap(self, prompt: Sequence[int], made: Any) -> float:
        """Return the largest difference between the engine's log-probabilities and the trainer's."""
        logprobs = self.forward([*prompt, *made.token_ids])[len(prompt) - 1 : -1]
        own = logprobs.gather(1, torch.tensor(made.token_ids)[:, None])[:, 0]
        return float((own - torch.tensor(made.logprobs)).abs().max())


@pytest.fixture(params=FAMILIES)
def player(request: pytest.FixtureRequest, folder_of: Callable[[str], Path]) -> Player:
    return Player(folder_of(request.param))


async def _two_turns(player: Player, seed: int) -> list[tuple[Sequence[int], Any]]:
    session = Session(player.renderer, (), (shown("look ", picture(10 * seed, 112, 56), "?"),))
    turns = [await player.say(session, f"s{seed}", seed)]
    session.add_replies((shown("now ", picture(10 * seed + 1, 56, 84), "!"),))
    return [*turns, await player.say(session, f"s{seed}", seed + 50)]


@pytest.mark.parametrize("num_sessions", [3, 5])  # fewer than slots, and more
def test_logprobs_equal_the_trainers_over_turns_with_kept_caches(player: Player, num_sessions: int) -> None:
    async def play() -> list[list[tuple[Sequence[int], Any]]]:
        return await asyncio.gather(*(_two_turns(player, seed) for seed in range(num_sessions)))

    for turns in asyncio.run(play()):
        assert all(player.gap(*turn) < TOLERANCE for turn in turns)
    assert (player.engine.stats.num_reused_tokens > 0) == (num_sessions == 3)


def test_the_way_row_by_row_gives_the_same_logits(player: Player) -> None:
    ids = list(Session(player.renderer, (), (shown("a", picture(1), "b", picture(2)),)).prompt_ids)
    cut = next(at for at in range(len(ids) // 2, len(ids)) if ids[at] >= 0 and ids[at - 1] >= 0)
    with frozen(player.model), torch.inference_mode():
        way = RowByRow(player.model)
        way.logits([Chunk(1, 0, ids[:cut])])
        (made,) = way.logits([Chunk(1, cut, ids[cut:])])
    assert (made[-1].log_softmax(-1) - player.forward(ids)[-1]).abs().max() < TOLERANCE


def test_tokens_equal_transformers_generate_for_two_images_in_two_turns(player: Player, tmp_path: Path) -> None:
    session = Session(player.renderer, (), (shown("look ", picture(7)),))
    session.add_completion(said(player.renderer, "hm"))
    session.add_replies((shown("and ", picture(8, square=3), "?"),))
    ids, vision = session.prompt_ids, player.vision
    greedy = asyncio.run(player.engine.generate(ids, SamplingParams(max_new_tokens=8, temperature=0)))
    given = dict(vision.family.joined([vision._seen(digest)[0] for _, digest, _ in vision.images_in(ids)]))
    plain = torch.tensor([[vision.pad_id if one < 0 else one for one in ids]])
    if vision.family.positions == "mrope":
        given["mm_token_type_ids"] = (plain == vision.pad_id).long()
    if vision.family.sees_both_ways:
        given["token_type_ids"] = (plain == vision.pad_id).long()
    player.model.save_pretrained(tmp_path)
    own: Any = AutoModelForImageTextToText.from_pretrained(tmp_path)
    made = own.generate(
        input_ids=plain,
        attention_mask=torch.ones_like(plain),
        max_new_tokens=8,
        do_sample=False,
        suppress_tokens=list(vision.suppressed),
        eos_token_id=-1,
        output_logits=True,
        return_dict_in_generate=True,
        **given,
    )
    assert list(greedy.token_ids) == made.sequences[0, len(ids) :].tolist()
    logits = torch.cat(made.logits)
    logits[:, list(vision.suppressed)] = -torch.inf
    expected = logits.log_softmax(-1).gather(1, torch.tensor(greedy.token_ids)[:, None])[:, 0]
    assert (expected - torch.tensor(greedy.logprobs)).abs().max() < TOLERANCE


def test_a_row_of_another_session_leaves_no_positions_behind(player: Player) -> None:
    async def play() -> list[Any]:
        session = Session(player.renderer, (), (shown("look ", picture(1, 112, 112)),))
        first = await player.say(session, "a", 1)
        other = Session(player.renderer, (), (shown("x ", picture(2, 28, 28)),))
        between = await player.say(other, "b", 2)
        player.forward(player.renderer.prompt_ids([shown(picture(3, 112, 28))], ()))  # of the trainer
        session.add_replies((shown("more"),))
        return [first, between, await player.say(session, "a", 3)]

    assert all(player.gap(*turn) < TOLERANCE for turn in asyncio.run(play()))


def test_a_short_prefill_never_cuts_an_image(folder_of: Callable[[str], Path]) -> None:
    for family in FAMILIES:
        player = Player(folder_of(family), max_prefill_tokens=3)
        turns = asyncio.run(_two_turns(player, 3))
        assert all(player.gap(*turn) < TOLERANCE for turn in turns)


def test_equal_pictures_share_a_prefix_and_different_ones_do_not(player: Player) -> None:
    async def reused(*pictures: bytes) -> int:
        engine = TorchEngine(player.model, num_slots=4, max_context_tokens=512)
        for number, png in enumerate(pictures):
            ids = player.renderer.prompt_ids([shown("the same long beginning ", png, " and the same long end")], ())
            await engine.generate(ids, SamplingParams(max_new_tokens=1, seed=1), session_id=str(number))
        return engine.stats.num_reused_tokens

    same, other = asyncio.run(reused(picture(1), picture(1))), asyncio.run(reused(picture(1), picture(2)))
    beginning = next(at for at, one in enumerate(player.renderer.prompt_ids([shown("", picture(1))], ())) if one < 0)
    assert same > other
    assert other <= beginning + len("the same long beginning ")


def test_merging_trap_two_screenshots_give_different_logprobs(player: Player) -> None:
    rows = [player.renderer.prompt_ids([shown("same ", picture(square=n))], ()) for n in (0, 1)]
    assert len(rows[0]) == len(rows[1])
    sampled = said(player.renderer, "ok").token_ids
    made = [asyncio.run(player.engine.score(row, sampled)) for row in rows]
    assert max(abs(a - b) for a, b in zip(*made, strict=True)) > 1e-3


def test_scores_equal_the_trainers(player: Player) -> None:
    prompt = player.renderer.prompt_ids([shown("a ", picture(1), " b ", picture(2))], ())
    sampled = said(player.renderer, "words").token_ids
    made = asyncio.run(player.engine.score(prompt, sampled))
    expected = player.forward([*prompt, *sampled])[len(prompt) - 1 : -1].gather(1, torch.tensor(sampled)[:, None])[:, 0]
    assert (expected - torch.tensor(made)).abs().max() < TOLERANCE
    with pytest.raises(EngineError, match="an image in a continuation"):
        asyncio.run(player.engine.score(prompt[:3], prompt[3:]))


def test_placeholders_are_never_sampled_and_have_no_probability(player: Player) -> None:
    prompt = player.renderer.prompt_ids([shown("a ", picture(1))], ())
    with torch.no_grad():  # the most likely token would be a placeholder
        states = trunk_of(player.model)(input_ids=torch.tensor([prompt]), use_cache=False).last_hidden_state[0, -1]
        head: Any = player.model.get_output_embeddings()
        head.weight[player.vision.pad_id] += 50 * states / states.norm()
    asyncio.run(player.engine.update_weights(1))
    greedy = SamplingParams(max_new_tokens=4, temperature=0)
    made = asyncio.run(player.engine.generate(prompt, greedy))
    assert not set(made.token_ids) & set(player.vision.suppressed)
    assert player.gap(prompt, made) < TOLERANCE
    logprobs = player.forward(prompt)[-1]
    assert logprobs[list(player.vision.suppressed)].exp().max() == 0
    assert float(logprobs.exp().sum()) == pytest.approx(1)
    entropy = -(logprobs.exp() * logprobs).sum()
    assert entropy.isfinite()


def test_an_engine_that_reads_text_refuses_images_by_name() -> None:
    engine = TorchEngine(tiny_model("qwen3"), num_slots=1, max_context_tokens=64)
    with pytest.raises(EngineError, match="negative ids are images, and this model reads text alone"):
        asyncio.run(engine.generate([5, -7, 3], SamplingParams()))


def test_text_alone_is_as_without_eyes(player: Player, tmp_path: Path) -> None:
    ids = player.renderer.prompt_ids([shown("only words")], ())
    assert not has_media(ids)
    player.model.save_pretrained(tmp_path)
    own: Any = AutoModelForImageTextToText.from_pretrained(tmp_path)
    with torch.no_grad():
        logits = own(input_ids=torch.tensor([list(ids)])).logits[0, -1]
    logits[list(player.vision.suppressed)] = -torch.inf
    assert (logits.log_softmax(-1) - player.forward(ids)[-1])[torch.isfinite(logits)].abs().max() < TOLERANCE
