"""Weights from a seed, in several threads."""

from __future__ import annotations

import threading

import torch

from agentgym.trainers.models.seeding import seeded_weights


def first_weights() -> list[float]:
    return torch.nn.Linear(3, 1).weight.flatten().tolist()


def test_weights_of_two_threads_are_those_of_one() -> None:
    """Runs in threads drew from each other's seed."""
    with seeded_weights(0):
        want = first_weights()
    is_inside, may_leave = threading.Event(), threading.Event()

    def other() -> None:
        with seeded_weights(1):
            is_inside.set()
            may_leave.wait()

    thread = threading.Thread(target=other)
    with seeded_weights(0):
        thread.start()
        assert not is_inside.wait(0.3), "threads take turns"
        got = first_weights()
    may_leave.set()
    thread.join()
    assert got == want


def test_the_callers_generator_is_left_as_it_was() -> None:
    torch.manual_seed(7)
    want = torch.rand(2).tolist()
    torch.manual_seed(7)
    with seeded_weights(0):
        first_weights()
    assert torch.rand(2).tolist() == want
