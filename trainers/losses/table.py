"""The losses, corrections and regularisers by name: what ``agentgym list --credit`` says about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentgym.trainers.losses.config import LossConfig

Family = Literal["loss", "correction", "regulariser"]
TESTS = "tests/trainers/test_losses.py"


@dataclass(frozen=True, slots=True)
class LossEntry:
    """One row of the table."""

    name: str
    family: Family
    source: str
    """Title of the paper, or where it was first described."""
    test: str
    """Test that holds it against the worked example."""
    is_experimental: bool = False
    """Reconstructed from an abstract or notes, not from the authors' code."""

    @property
    def status(self) -> Literal["verified", "experimental"]:
        """``experimental`` for a reconstruction."""
        return "experimental" if self.is_experimental else "verified"


MISMATCH_BLOG = "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"
ROLLOUT_CORRECTION = "verl: rollout_corr_helper.py"
DECOUPLED = "Batch size-invariance for policy optimization"
VCPO = "Stable Asynchrony: Variance-Controlled Off-Policy RL for LLMs"

ENTRIES: tuple[LossEntry, ...] = (
    LossEntry("ppo_clip", "loss", "Proximal Policy Optimization Algorithms", "test_ppo_clip"),
    LossEntry("dapo", "loss", "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", "test_dual_clip"),
    LossEntry("gspo", "loss", "Group Sequence Policy Optimization", "test_gspo"),
    LossEntry(
        "cispo", "loss", "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention", "test_cispo"
    ),
    LossEntry("sapo", "loss", "Soft Adaptive Policy Optimization", "test_sapo"),
    LossEntry(
        "minpro",
        "loss",
        "A Step Back: Prefix Importance Ratio Stabilizes Policy Optimization",
        "test_minpro",
        is_experimental=True,
    ),
    LossEntry(
        "bapo",
        "loss",
        "BAPO: Stabilizing Off-Policy Reinforcement Learning for LLMs via Balanced Policy Optimization "
        "with Adaptive Clipping",
        "test_bapo",
    ),
    LossEntry(
        "aepo_clip", "loss", "Agentic Entropy-Balanced Policy Optimization", "test_aepo_clip", is_experimental=True
    ),
    LossEntry(
        "reinforce",
        "loss",
        "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning",
        "test_reinforce",
    ),
    LossEntry("token_tis", "correction", MISMATCH_BLOG, "test_token_tis"),
    LossEntry("seq_tis", "correction", ROLLOUT_CORRECTION, "test_sequence_corrections"),
    LossEntry("icepop", "correction", "IcePop (blog beside the Ring-1T report)", "test_icepop"),
    LossEntry("seq_mis", "correction", ROLLOUT_CORRECTION, "test_sequence_corrections"),
    LossEntry("geometric", "correction", ROLLOUT_CORRECTION, "test_sequence_corrections"),
    LossEntry("divergence_rejection", "correction", ROLLOUT_CORRECTION, "test_divergence_rejection"),
    LossEntry("m2po", "correction", "Second-moment trust policy optimization (AReaL)", "test_m2po"),
    LossEntry("decoupled", "correction", DECOUPLED, "test_decoupled_ppo"),
    LossEntry("batch_normalise", "correction", ROLLOUT_CORRECTION, "test_batch_normalise"),
    LossEntry("vcpo", "correction", VCPO, "test_vcpo"),
    LossEntry("kl", "regulariser", "Approximating KL Divergence (J. Schulman)", "test_kl"),
    LossEntry("entropy", "regulariser", "Asynchronous Methods for Deep Reinforcement Learning", "test_entropy_bonus"),
    LossEntry(
        "epo",
        "regulariser",
        "EPO: Entropy-regularized Policy Optimization for LLM Agents Reinforcement Learning",
        "test_epo",
    ),
    LossEntry(
        "llds",
        "regulariser",
        "On GRPO Collapse in Search-R1: The Lazy Likelihood-Displacement Death Spiral",
        "test_llds",
    ),
)


def loss_table() -> tuple[tuple[str, str, str, str, str], ...]:
    """Rows (name, class, source, status, golden test), after those of :func:`agentgym.credit.stages.credit_table`.

    Example:
        >>> [row[0] for row in loss_table() if row[3] == "experimental"]
        ['minpro', 'aepo_clip']
    """
    return tuple((e.name, e.family, e.source, e.status, f"{TESTS}::{e.test}") for e in ENTRIES)


def experimental_notes(config: LossConfig) -> tuple[str, ...]:
    """A line for each part of a loss that is a reconstruction."""
    named = {config.kind, *config.correction_kinds, *(part.kind for part in config.regularisers)}
    return tuple(
        f'{entry.name} is experimental: reconstructed from what is public about "{entry.source}", not from its code'
        for entry in ENTRIES
        if entry.is_experimental and entry.name in named
    )
