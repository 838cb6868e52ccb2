"""The data types of agentgym, from a task to the credit of a turn.

Data flows through them in this order::

    Task -> Message -> Completion -> Turn -> Segment -> Trajectory -> TrajectoryGroup -> TurnCredit

All types are frozen dataclasses that hold tuples, so a stage can create new values but not change those of an earlier
stage. This package needs the standard library only.

Dimension suffixes of arrays: ``_G`` member of a group, ``_K`` turn, ``_T`` token, ``_B`` row of a batch.
"""

from agentgym.types.episodes import (
    EMPTY_COMPLETION,
    CancelledMember,
    Completion,
    CutReason,
    FinishReason,
    Latency,
    RewardPart,
    RewardRole,
    Segment,
    Status,
    Trajectory,
    TrajectoryGroup,
    Turn,
    TurnCredit,
    TurnKind,
    Usage,
)
from agentgym.types.messages import (
    Call,
    ImagePart,
    Json,
    JsonObject,
    JsonSchema,
    MalformedCall,
    Message,
    Observation,
    Role,
    Task,
    TextPart,
    ToolCall,
    ToolResult,
    ToolSpec,
)

__all__ = [
    "EMPTY_COMPLETION",
    "Call",
    "CancelledMember",
    "Completion",
    "CutReason",
    "FinishReason",
    "ImagePart",
    "Json",
    "JsonObject",
    "JsonSchema",
    "Latency",
    "MalformedCall",
    "Message",
    "Observation",
    "RewardPart",
    "RewardRole",
    "Role",
    "Segment",
    "Status",
    "Task",
    "TextPart",
    "ToolCall",
    "ToolResult",
    "ToolSpec",
    "Trajectory",
    "TrajectoryGroup",
    "Turn",
    "TurnCredit",
    "TurnKind",
    "Usage",
]  # fmt: skip
