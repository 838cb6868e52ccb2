"""The scripted customer: tells what it is asked, agrees to what it wants, and is as predictable as its seed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.envs.domains.users import STOP, is_end, is_yes
from agentgym.envs.retail.customer import Customer, Mind
from agentgym.envs.retail.env import RetailEnv, next_message
from agentgym.envs.retail.generator import Difficulty, case_of_seed


def request(**fields: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {"kind": "return", "wish": "I want to return the kettle.", "actions": []}
    facts = {"order": "The order number is #W1234567.", "payment": "To my gift card, please."}
    consents = [[["return"], ["#W1234567", "W1234567"], ["kettle"], ["gift card", "gift_card_7"]]]
    ids = ["#W1234567", "gift_card_7"]
    return {**plain, "facts": facts, "consents": consents, "ids": ids, "proposal": "...", **fields}


def customer(*requests: dict[str, Any], seed: int = 0, **persona: str) -> Customer:
    who = {"first_name": "Mia", "last_name": "Li", "zip": "80211", **persona}
    return Customer({"persona": who, "tells_all": False, "requests": list(requests) or [request()]}, seed)


def talk(user: Customer, *messages: str) -> tuple[Mind, list[str]]:
    state, _ = user.begin()
    said = []
    for message in messages:
        state, answer = user.reply(state, message)
        said.append(answer)
    return state, said


def test_a_whole_talk_with_a_polite_agent() -> None:
    _, said = talk(
        customer(),
        "Hello! I'd be happy to help. Could you please provide your email address so I can verify your account?",
        "Thank you, Mia. I've located your account. Could you tell me the order number?",
        "Which payment method should the refund go to?",
        "This is what I will do:\n- Order: #W1234567\n- Return: Kettle\n- Refund: gift card\n\nShould I proceed?",
        "Thank you! I'll process it now.",
        "Your return has been requested. Is there anything else I can help you with? Let me know which items.",
    )
    assert said[0].endswith("I am Mia Li, zip code 80211.") and "email" in said[0]
    assert said[1:3] == ["The order number is #W1234567.", "To my gift card, please."]
    assert is_yes(said[3]) and not is_end(said[4]) and said[5].endswith(STOP)


@pytest.mark.parametrize(
    "proposal",
    [
        "I will return the kettle of order #W7654321 to your gift card. Do you confirm (yes/no)?",
        "I will return the kettle of order #W1234567 to your paypal account. Do you confirm (yes/no)?",
        "I will return the lamp of order #W1234567 to your gift card. Do you confirm (yes/no)?",
        "I will cancel order #W1234567 with the kettle, to your gift card. Do you confirm (yes/no)?",
        "I will return the kettle of #W1234567 to your gift card gift_card_7, and cancel #W7654321. Shall I go ahead?",
        "I will return the kettle of order #W1234567 to gift card gift_card_8. Is that correct?",
        "Do you confirm (yes/no)?",
    ],
)
def test_another_proposal_is_refused(proposal: str) -> None:
    state, said = talk(customer(), proposal)
    assert not is_yes(said[0]) and not state.has_agreed and "kettle" in said[0]


def test_what_is_wanted_is_agreed_to_by_name_or_id() -> None:
    for method in ("gift card", "gift_card_7"):
        _, said = talk(customer(), f"I will return the Kettle of W1234567 to {method}. Yes/no?")
        assert is_yes(said[0])


def test_a_name_is_no_proposal_and_what_is_not_known_is_said() -> None:
    _, said = talk(customer(email="mia@x.com"), "Please confirm your email.", "What colour is it, and why?")
    assert said[0] == "My email is mia@x.com."
    assert not is_yes(said[1]) and "kettle" not in said[1]


def test_a_wrong_refusal_is_met_once_and_then_taken() -> None:
    _, said = talk(customer(), "I am sorry, that is not possible.", "I am sorry, that is not possible.")
    assert "kettle" in said[0] and said[1].endswith(STOP)


def test_a_right_refusal_is_taken_when_its_reason_is_given() -> None:
    late = request(kind="cancel too late", consents=[], proposal="", denial="...", answers=["delivered"])
    _, said = talk(customer(late), "I am sorry, that cannot be done.", "It is delivered already, so I can't cancel it.")
    assert said[0].endswith("?") and said[1].endswith(STOP)


def test_a_second_wish_follows_a_refusal() -> None:
    two = request(after_denial="Then to my gift card.", denial="...")
    _, said = talk(
        customer(two),
        "Unfortunately a refund cannot go there. Which payment method would you like?",
        "I will return the kettle of #W1234567 to your gift card. OK? Please say yes.",
    )
    assert said[0] == "Then to my gift card." and is_yes(said[1])


def test_a_question_is_settled_by_its_answer_alone() -> None:
    asked = request(kind="question", wish="How much is on my card?", consents=[], answers=["1041.37"], proposal="...")
    _, said = talk(customer(asked), "It is a gift card. Is there anything else?", "Your gift card holds $1,041.37.")
    assert "How much is on my card?" in said[0] and said[1].endswith(STOP)


def test_the_next_request_comes_when_one_is_settled() -> None:
    other = request(wish="I also have this.", kind="cancel")
    done = ("I will return the kettle of #W1234567 to your gift card. Shall I?", "It has been returned.")
    _, said = talk(customer(request(), other), "x", *done)
    assert not is_end(said[0]) and "Shall I" in done[0] and not is_yes(said[0])


def test_the_seed_chooses_words_and_nothing_else() -> None:
    def words(seed: int) -> tuple[Mind, list[str]]:
        return talk(
            customer(seed=seed), "Hm.", "I will return the kettle of #W1234567 to your gift card (yes/no)?", "Done!"
        )

    assert words(3) == words(3)
    states, talks = zip(*(words(seed) for seed in range(12)), strict=True)
    assert len(set(states)) == 1 and len({tuple(said) for said in talks}) > 3


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 40), st.lists(st.text(max_size=200), max_size=4))
def test_any_words_are_answered_and_agree_to_nothing(seed: int, messages: list[str]) -> None:
    user = Customer(case_of_seed(seed, Difficulty()).task.script, seed)
    state, _ = user.begin()
    for message in messages:
        if state.request < len(user.requests):
            state, said = user.reply(state, message)
            assert said and not state.has_agreed


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 500))
def test_a_proposal_for_another_order_is_never_agreed_to(number: int) -> None:
    env = RetailEnv()
    env.reset(options={"task": number, "split": "train"})
    for _ in range(env.max_turns or 0):
        assert isinstance(env._user, Customer)
        action = next_message(env, env._user)
        if action.text.endswith("(yes/no)?") and "#W" in action.text:
            before = env.conversation.user
            wrong = action.text.replace("#W", "#W9")[:-1] + " for #W0000001?"
            assert not is_yes(env._user.reply(before, wrong)[1])
        if env.step(action)[2]:
            break
