"""TensorBoard's event files of a run: their writer, and the removal of rows that a resumed run writes again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_EVENTS = "events.out.tfevents.*"


def tensorboard_writer(folder: Path) -> SummaryWriter | None:
    """Return a writer into a folder, or None if TensorBoard is not installed: the JSON lines hold the same numbers."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))


def forget_events(folder: Path, stays: Callable[[str, int], bool]) -> None:
    """Rewrite a folder's event files without the scalars of rows that do not stay; other events stay as they are.

    ``purge_step``, TensorBoard's own means, forgets the later steps of every tag, and a run counts the steps of each
    phase from 0.

    Args:
        stays: says of a phase, the first part of a tag, and a step whether their scalars stay.
    """
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event
    from torch.utils.tensorboard import SummaryWriter

    old = sorted(folder.glob(_EVENTS))
    if not old:
        return
    partial = folder / "partial"
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed here
    with SummaryWriter(str(partial)) as writer:
        for path in old:
            for raw in RawEventFileLoader(str(path)).Load():
                event = Event.FromString(raw)
                tags = [value.tag for value in event.summary.value]
                if tags and all(stays(tag.partition("/")[0], event.step) for tag in tags):
                    writer.file_writer.add_event(event, event.step, event.wall_time)
    (made,) = partial.glob(_EVENTS)
    made.replace(old[0])  # readers take the files in the order of their names
    for path in old[1:]:
        path.unlink()
    shutil.rmtree(partial)
