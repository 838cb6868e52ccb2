"""Images in prompts: ids by content, and a store that writes each image once."""

import base64
import gzip
from pathlib import Path

import pytest
from testkit.seeing import image_part, picture

from agentgym.errors import CorruptDataError
from agentgym.media import FOLDER, MEDIA, MediaStore, digest_in, digest_of, has_media, id_of, spans_in
from agentgym.rollout.record import GroupRecord, read_records, record_path, write_records
from agentgym.types import Message, Status, Task, TextPart, Trajectory, TrajectoryGroup


def test_ids_follow_from_bytes_and_are_no_tokens() -> None:
    one, other = picture(1), picture(2)
    assert id_of(digest_of(one)) != id_of(digest_of(other))
    assert -(2**52) <= id_of(digest_of(one)) < 0
    assert digest_in(id_of("0" * 13)) == "0" * 13
    assert has_media((1, -5, 2)) and not has_media((0, 7)) and not has_media(())
    assert [span.length for span in spans_in((4, -2, -2, -3, 9))] == [2, 1]


def test_a_folder_holds_each_image_once_and_other_processes_read_it(tmp_path: Path) -> None:
    store = MediaStore()
    digest = store.put(picture(3))
    store.write_to(tmp_path)
    assert not (tmp_path / FOLDER).exists(), "images of an earlier run stay out"
    store.put(picture(3))
    assert [file.name for file in (tmp_path / FOLDER).iterdir()] == [f"{digest}.png"]
    store.put(picture(3))
    store.put(picture(4))
    assert len(list((tmp_path / FOLDER).iterdir())) == 2
    other = MediaStore()
    other.read_from(tmp_path / FOLDER)
    assert other.get(digest) == picture(3)


def test_a_missing_or_changed_image_is_named(tmp_path: Path) -> None:
    store = MediaStore()
    with pytest.raises(
        CorruptDataError, match="0123 of a prompt is missing; looked in memory alone, as the run has no"
    ):
        store.get("0123")
    store.write_to(tmp_path)
    digest = store.put(picture(5))
    (tmp_path / FOLDER / f"{digest}.png").write_bytes(b"other")
    other = MediaStore()
    other.read_from(tmp_path / FOLDER)
    with pytest.raises(CorruptDataError, match="was changed"):
        other.get(digest)


def _group(*messages: Message) -> TrajectoryGroup:
    task = Task(id="t", split="train", seed=0)
    one = Trajectory(task=task, status=Status.COMPLETED, segments=(), seed=0, env_id="E-v0", observation=messages)
    return TrajectoryGroup(ordinal=0, task=task, trajectories=(one,))


def test_a_record_names_images_and_reads_back_equal(tmp_path: Path) -> None:
    png = picture(6)
    shown = Message("user", (TextPart('quoted: "png_base64":"AAAA"'), image_part(png), image_part(png)))
    record, path = GroupRecord(group=_group(shown)), record_path(tmp_path, 0)
    before = list(MEDIA._folders)
    try:
        MEDIA.write_to(tmp_path)
        write_records(path, [record])
    finally:
        MEDIA.write_to(None)
    text = gzip.decompress(path.read_bytes()).decode()
    assert base64.b64encode(png).decode() not in text and text.count("media:") == 2
    assert len(list((tmp_path / FOLDER).iterdir())) == 1
    assert read_records(path) == (record,)
    MEDIA._folders[:] = before
    assert read_records(path) == (record,), "found beside the record"


def test_a_record_without_a_runs_folder_holds_its_images(tmp_path: Path) -> None:
    record = GroupRecord(group=_group(Message("user", (image_part(picture(7)),))))
    write_records(tmp_path / "rollouts.jsonl.gz", [record])
    assert "media:" not in gzip.decompress((tmp_path / "rollouts.jsonl.gz").read_bytes()).decode()
    assert read_records(tmp_path / "rollouts.jsonl.gz") == (record,)


def test_a_record_whose_image_is_gone_is_one_clear_error(tmp_path: Path) -> None:
    png = picture(8)
    try:
        MEDIA.write_to(tmp_path)
        write_records(record_path(tmp_path, 0), [GroupRecord(group=_group(Message("user", (image_part(png),))))])
    finally:
        MEDIA.write_to(None)
    digest = digest_of(png)
    (tmp_path / FOLDER / f"{digest}.png").unlink()
    MEDIA._held.pop(digest)
    with pytest.raises(CorruptDataError, match=f"the image {digest} of a prompt is missing"):
        read_records(record_path(tmp_path, 0))
