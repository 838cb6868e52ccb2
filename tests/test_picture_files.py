"""Pictures of data sets: every way in which rows hold them, and all that is refused."""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from testkit.picture_questions import write_picture_questions

from agentgym.errors import AgentGymError, CorruptDataError
from agentgym.tools.picture_files import read_picture_rows
from agentgym.tools.pictures import MOST_BYTES, png_bytes, png_of, png_size

Image = pytest.importorskip("PIL.Image")
PNG = png_of(np.full((30, 50, 3), 200, np.uint8))


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(side: int) -> bytes:
    """Return a small PNG whose header promises a huge picture."""
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return PNG[:8] + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def written(folder: Path, *rows: Any) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_rows_hold_pictures_in_every_usual_way(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.png").write_bytes(PNG)
    jpeg = io.BytesIO()
    Image.new("RGB", (300, 100), "red").save(jpeg, "JPEG")
    coded = base64.b64encode(jpeg.getvalue()).decode()
    path = written(
        tmp_path,
        {"question": "q", "image": "sub/a.png"},
        {"image": coded},
        {"images": [f"data:image/jpeg;base64,{coded}", {"path": "sub/a.png", "bytes": None}]},
    )
    rows = list(read_picture_rows(path))
    assert rows[0][0] == {"question": "q"}
    sizes = [[png_size(png_bytes(part)) for part in parts] for _, parts in rows]
    assert sizes == [[(224, 224)], [(448, 224)], [(448, 224), (224, 224)]]
    scaled = next(iter(read_picture_rows(written(tmp_path, {"image": coded}), (56, 56))))[1]
    assert png_size(png_bytes(scaled[0])) == (56, 56)


def test_parquet_as_datasets_stores_it(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"answer": ["7"], "image": [{"bytes": PNG, "path": "gone.png"}]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    ((row, parts),) = read_picture_rows(tmp_path / "rows.parquet")
    assert row == {"answer": "7"} and png_size(png_bytes(parts[0])) == (224, 224)
    (tmp_path / "bad.parquet").write_bytes(b"nothing")
    with pytest.raises(CorruptDataError, match=r"bad.parquet is no Parquet file"):
        list(read_picture_rows(tmp_path / "bad.parquet"))


def coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ("../secret.png", "outside the folder of its file"),
        ("/etc/hostname.png", "outside the folder of its file"),
        ("link.png", "outside the folder of its file"),
        ("missing.png", "missing: there is no file 'missing.png'"),
        ("not base64!", "neither a file nor base64"),
        (coded(PNG[:60]), "is broken"),
        (coded(b"GIF89a no picture"), "is broken or of another format"),
        (coded(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "is broken or of another format"),
        (coded(bomb(40_000)), "pixels allowed|more than the 16,000,000 allowed"),
        (coded(bomb(5_000)), "5000 x 5000 pixels .25,000,000., more than the 16,000,000 allowed"),
        (coded(bomb(100)), "is broken"),
        (coded(b""), "expected a path"),
        (7, "is int, expected a path, base64 or bytes"),
        ({"bytes": None, "path": None}, "is NoneType, expected"),
        (None, "no picture in image or images; it has image"),
        ([], "no picture in image or images"),
    ],
)
def test_pictures_that_are_refused_are_named(tmp_path: Path, image: Any, said: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (tmp_path / "secret.png").write_bytes(PNG)
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    path = written(folder, {"image": coded(PNG)}, {"image": image})
    with pytest.raises(CorruptDataError, match=said) as refused:
        list(read_picture_rows(path))
    assert "row 2" in str(refused.value) and "\n" not in str(refused.value)


def test_large_and_foreign_files_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(CorruptDataError, match="has 20,971,521 bytes, more than the 20,971,520 allowed"):
        list(read_picture_rows(written(tmp_path, {"image": "large.png"})))
    (tmp_path / "rows.jsonl").write_text('{"image": \n')
    for name, said in (("rows.csv", "neither of .jsonl"), ("none.jsonl", "is no file"), ("rows.jsonl", "not JSON")):
        with pytest.raises(AgentGymError, match=said):
            list(read_picture_rows(tmp_path / name))


def test_questions_about_pictures_pass_the_kit(tmp_path: Path) -> None:
    from agentgym import make
    from agentgym.check.conformance import check_env

    path = write_picture_questions(tmp_path / "questions")
    report = check_env("agentgym/PictureQuestions-v0", arguments={"questions": str(path)}, num_episodes=2)
    assert [f"{check.name}: {check.detail}" for check in report.failures] == []
    env = make("agentgym/PictureQuestions-v0", questions=str(path), coordinates="normalised")
    sizes = {split: len(env.tasks(split)) for split in ("train", "valid", "test")}
    assert sum(sizes.values()) == 60 and min(sizes.values()) > 4
    env.reset(options={"task": env.tasks("test")[0]})
    (crop,) = env.step("zoom: 1, 0, 0, 200, 200")[0]
    assert crop.text.startswith("Picture 2") and env.step(env.oracle())[1] == 1.0
    with pytest.raises(CorruptDataError, match="row 1: expected a text in question"):
        make("agentgym/PictureQuestions-v0", questions=str(written(tmp_path, {"image": coded(PNG)})))
