"""agentgym's own losses, corrections and regularisers: what each is, and where its function is."""

from __future__ import annotations

from functools import partial

from agentgym.trainers.losses import mask_options as masks
from agentgym.trainers.losses import options as of
from agentgym.trainers.losses.component import add

NO_CLIP: dict[str, None] = {"clip_low": None, "clip_high": None}
PPO = "agentgym.trainers.losses.policy:ppo_clip"
VERL = "volcengine/verl@b178a3c:verl/trainer/ppo/core_algos.py"
VERL_CORRECTION = "volcengine/verl@b178a3c:verl/trainer/ppo/rollout_corr_helper.py"
AREAL = "inclusionAI/AReaL@4aef98d:areal/utils/functional/functional.py"
MISMATCH_BLOG = "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"
ROLLOUT_CORRECTION = "verl: rollout_corr_helper.py"


def _test(name: str) -> str:
    return f"tests/trainers/test_losses.py::{name}"


loss, correction, regulariser = partial(add, "loss"), partial(add, "correction"), partial(add, "regulariser")
token_mask = partial(add, "token mask")

loss(
    "ppo_clip",
    PPO,
    paper="Proximal Policy Optimization Algorithms",
    parity=VERL,
    test=_test("test_ppo_clip"),
    may_dual_clip=True,
    takes_any_level=True,
)
loss(
    "dapo",
    PPO,
    paper="DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
    parity=VERL,
    test=_test("test_dual_clip"),
    dual_clip=3.0,
    may_dual_clip=True,
    takes_any_level=True,
)
loss(
    "gspo",
    PPO,
    paper="Group Sequence Policy Optimization",
    parity=VERL,
    test=_test("test_gspo"),
    clip_low=3e-4,
    clip_high=4e-4,
    ratio_level="turn",
    takes_any_level=True,
    aggregation="seq-mean-token-mean",
)
loss(
    "cispo",
    "agentgym.trainers.losses.policy:cispo",
    paper="MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention",
    parity=VERL,
    test=_test("test_cispo"),
    clip_low=1.0,
    takes_any_level=True,
)
loss(
    "sapo",
    "agentgym.trainers.losses.policy:sapo",
    paper="Soft Adaptive Policy Optimization",
    parity=VERL,
    test=_test("test_sapo"),
    options=of.SapoOptions,
    aggregation="seq-mean-token-mean",
    **NO_CLIP,
)
loss(
    "minpro",
    "agentgym.trainers.losses.policy:minpro",
    paper="A Step Back: Prefix Importance Ratio Stabilizes Policy Optimization",
    status="experimental",
    test=_test("test_minpro"),
    options=of.MinproOptions,
    may_dual_clip=True,
)
loss(
    "bapo",
    "agentgym.trainers.losses.policy:bapo",
    paper="BAPO: Stabilizing Off-Policy Reinforcement Learning for LLMs via Balanced Policy Optimization with Adaptive "
    "Clipping",
    parity="WooooDyy/BAPO@7287044:recipe/bapo/policy_loss.py",
    test=_test("test_bapo"),
    options=of.BapoOptions,
    dual_clip=3.0,
    may_dual_clip=True,
    needs_whole_update=True,
    **NO_CLIP,
)
loss(
    "aepo_clip",
    "agentgym.trainers.losses.policy:aepo_clip",
    paper="Agentic Entropy-Balanced Policy Optimization",
    parity="multi-agent-deep-research/ARPO@81e3a5d:AEPO/verl_aepo_entropy/verl/trainer/ppo/core_algos.py",
    test=_test("test_aepo_clip"),
    clip_high=0.2,
    dual_clip=3.0,
    may_dual_clip=True,
)
loss(
    "reinforce",
    "agentgym.trainers.losses.policy:reinforce",
    paper="Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning",
    parity=VERL,
    test=_test("test_reinforce"),
    options=of.ReinforceOptions,
    **NO_CLIP,
)
correction(
    "token_tis",
    "agentgym.trainers.losses.correction:token_tis",
    paper=MISMATCH_BLOG,
    parity=VERL_CORRECTION,
    test=_test("test_token_tis"),
    options=of.TokenTisOptions,
    weighs=True,
)
correction(
    "seq_tis",
    "agentgym.trainers.losses.correction:seq_tis",
    paper=ROLLOUT_CORRECTION,
    parity=VERL_CORRECTION,
    test=_test("test_sequence_corrections"),
    options=of.SequenceTisOptions,
    weighs=True,
)
correction(
    "icepop",
    "agentgym.trainers.losses.correction:icepop",
    paper="IcePop (blog beside the Ring-1T report)",
    parity=VERL_CORRECTION,
    test=_test("test_icepop"),
    options=of.IcepopOptions,
    weighs=True,
)
correction(
    "seq_mis",
    "agentgym.trainers.losses.correction:seq_mis",
    paper=ROLLOUT_CORRECTION,
    parity=VERL_CORRECTION,
    test=_test("test_sequence_corrections"),
    options=of.SequenceMisOptions,
    weighs=True,
)
correction(
    "geometric",
    "agentgym.trainers.losses.correction:geometric",
    paper=ROLLOUT_CORRECTION,
    parity=VERL_CORRECTION,
    test=_test("test_sequence_corrections"),
    options=of.GeometricOptions,
)
correction(
    "divergence_rejection",
    "agentgym.trainers.losses.correction:divergence_rejection",
    paper=ROLLOUT_CORRECTION,
    parity=VERL_CORRECTION,
    test=_test("test_divergence_rejection"),
    options=of.DivergenceRejectionOptions,
)
correction(
    "m2po",
    "agentgym.trainers.losses.correction:m2po",
    paper="Second-moment trust policy optimization (AReaL)",
    parity="inclusionAI/AReaL@4aef98d:areal/trainer/ppo/actor.py",
    test=_test("test_m2po"),
    options=of.M2poOptions,
    needs_whole_update=True,
)
correction(
    "decoupled",
    "agentgym.trainers.losses.correction:decoupled",
    paper="Batch size-invariance for policy optimization",
    parity=AREAL,
    test=_test("test_decoupled_ppo"),
    options=of.DecoupledOptions,
    weighs=True,
)
correction(
    "batch_normalise",
    "agentgym.trainers.losses.correction:batch_normalise",
    paper=ROLLOUT_CORRECTION,
    parity=VERL_CORRECTION,
    test=_test("test_batch_normalise"),
    options=of.BatchNormaliseOptions,
    needs_whole_update=True,
)
correction(
    "vcpo",
    "agentgym.trainers.losses.correction:vcpo",
    paper="Stable Asynchrony: Variance-Controlled Off-Policy RL for LLMs",
    parity="mit-han-lab/vcpo@c7f030f:recipe/fully_async_policy/staleness_utils.py",
    test=_test("test_vcpo"),
    options=of.VcpoOptions,
    needs_whole_update=True,
)
regulariser(
    "kl",
    "agentgym.trainers.losses.regularisers:kl",
    paper="Approximating KL Divergence (J. Schulman)",
    parity=VERL,
    test=_test("test_kl"),
    options=of.KlOptions,
)
regulariser(
    "distill",
    "agentgym.trainers.losses.regularisers:distill",
    paper="On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes",
    status="reproduced",
    test=_test("test_distill"),
    options=of.DistillOptions,
    metric="teacher_kl",
    limits="reverse KL of the sampled tokens alone",
)
regulariser(
    "entropy",
    "agentgym.trainers.losses.regularisers:entropy_bonus",
    paper="Asynchronous Methods for Deep Reinforcement Learning",
    parity=VERL,
    test=_test("test_entropy_bonus"),
    options=of.EntropyOptions,
    sign=-1.0,
    metric="entropy_bonus",
)
regulariser(
    "epo",
    "agentgym.trainers.losses.regularisers:epo",
    paper="EPO: Entropy-regularized Policy Optimization for LLM Agents Reinforcement Learning",
    parity="WujiangXu/EPO@5b6fa98:verl/workers/actor/dp_actor.py",
    test=_test("test_epo"),
    options=of.EpoOptions,
    is_scaled=True,
    needs_whole_update=True,
)
regulariser(
    "llds",
    "agentgym.trainers.losses.regularisers:llds",
    paper="On GRPO Collapse in Search-R1: The Lazy Likelihood-Displacement Death Spiral",
    parity="vengdeng/LLDS-On-Group-Relative-Policy-Optimization-Collapse-in-Search-R1@c19a094:"
    "verl/workers/actor/dp_actor.py",
    test=_test("test_llds"),
    options=of.LldsOptions,
    averages_over="tokens",
    needs_several_updates=True,
)
token_mask(
    "forking_tokens",
    "agentgym.trainers.losses.token_masks:forking_tokens",
    paper="Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement Learning for LLM "
    "Reasoning",
    parity="Shenzhi-Wang/Beyond-the-80-20-Rule-RLVR@6f5dda6:verl/trainer/ppo/core_algos.py",
    test="tests/trainers/test_token_masks.py::test_forking_tokens_alone_are_averaged",
    options=masks.ForkingTokensOptions,
)
token_mask(
    "clip_cov",
    "agentgym.trainers.losses.token_masks:clip_cov",
    paper="The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models",
    parity=VERL,
    test="tests/trainers/test_token_masks.py::test_clip_cov_leaves_out_tokens_of_high_covariance_by_its_seed",
    options=masks.ClipCovOptions,
)
token_mask(
    "kl_cov",
    "agentgym.trainers.losses.token_masks:kl_cov",
    paper="The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models",
    parity=VERL,
    test="tests/trainers/test_token_masks.py::test_kl_cov_penalises_the_change_of_its_tokens",
    options=masks.KlCovOptions,
    needs_several_updates=True,
)
