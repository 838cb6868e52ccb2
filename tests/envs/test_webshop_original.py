"""WebShop's own files, read from small ones in their format, and refused in words where they are not right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from testkit.webshop_data import WEBSHOP, needs_webshop_data

from agentgym.envs.webshop.env import WebShopEnv
from agentgym.envs.webshop.original import load_original
from agentgym.errors import UsageError
from agentgym.types import Task


def record(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "asin": f"B00000000{number}",
        "name": f"Brand Mug Number{number} Blue Kitchen Cup",
        "category": "garden",
        "query": "Mugs & Cups ",
        "product_category": "Home & Kitchen › Dining › Mugs",
        "full_description": "A mug for coffee.",
        "small_description": ["Dishwasher safe.", "Holds tea"],
        "pricing": f"${number + 5}.99",
        "customization_options": {"Color": [{"value": "Blue/Red", "image": None}, {"value": " Green "}], "Size": None},
        "images": ["https://example.com/mug.jpg"],
        **fields,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    records = [record(number) for number in range(6)]
    records += [record(3), record(6, asin="nan"), record(7, pricing="$1,010.00$1,020.00"), record(8, pricing="")]
    annotations = {
        f"B00000000{number}": {
            "attributes": ["dishwasher safe", "bpa free"],
            "instruction": "Find me bpa free mugs & cups",
            "instruction_attributes": ["bpa free"],
        }
        for number in (0, 1, 2, 3, 4, 5, 7)
    }
    write(tmp_path, "items_shuffle_1000.json", records)
    write(tmp_path, "items_ins_v2_1000.json", {**annotations, "B000000008": {"attributes": []}})
    return tmp_path


def write(folder: Path, name: str, content: object) -> None:
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def test_products_are_read_as_webshop_reads_them(folder: Path) -> None:
    products = {product.asin: product for product in load_original(folder).catalogue.products}
    assert sorted(products) == [f"B00000000{number}" for number in (0, 1, 2, 3, 4, 5, 7, 8)]
    mug = products["B000000002"]
    assert mug.options == {"color": ("blue | red", "green")}
    assert (mug.query, mug.price_tag, mug.price) == ("mugs & cups", "$7.99", 7.99)
    assert mug.attributes == ("dishwasher safe", "bpa free")
    assert products["B000000007"].price_tag == "$1010.0 to $1020.0"
    assert 1010.0 <= products["B000000007"].price <= 1020.0
    assert (products["B000000008"].price_tag, products["B000000008"].price) == ("$100.0", 100.0)


def test_synthetic_goals_are_one_for_every_combination_of_options(folder: Path) -> None:
    goals = load_original(folder).goals
    assert len(goals) == 7 * 2
    cheap = next(goal for goal in goals if goal.asin == "B000000000" and goal.options == ("green",))
    assert cheap.instruction.startswith("Find me bpa free mugs & cups with color: green, and price lower than ")
    dear = next(goal for goal in goals if goal.asin == "B000000007")
    assert "price" not in dear.instruction


def test_human_goals_are_taken_where_they_are(folder: Path) -> None:
    wish = {
        "instruction": "i want a green mug that is bpa free.",
        "instruction_attributes": ["bpa free"],
        "instruction_options": ["green"],
    }
    write(folder, "items_human_ins.json", {"B000000001": [wish, {**wish, "instruction_attributes": []}], "B0": [wish]})
    (goal,) = load_original(folder).goals
    assert goal.instruction.startswith("i want a green mug that is bpa free, and price lower than ")
    assert (goal.asin, goal.options, goal.attributes) == ("B000000001", ("green",), ("bpa free",))


def test_the_gold_policy_gets_everything_there_too(folder: Path) -> None:
    env = WebShopEnv(data_dir=folder)
    seen = set()
    for split in ("train", "valid", "test"):
        for task in env.tasks(split):
            seen.add(task.id)
            env.reset(options={"task": task})
            terminated = False
            while not terminated:
                _, reward, terminated, truncated, _ = env.step(env.oracle())
                assert not truncated
            assert reward == pytest.approx(1.0)
    assert len(seen) == 14


def test_splits_of_few_goals_are_fifths(folder: Path) -> None:
    shop = load_original(folder)
    assert [len(shop.goal_range(split)) for split in ("train", "valid", "test")] == [10, 2, 2]
    with pytest.raises(UsageError, match="unknown split 'dev'"):
        shop.goal_range("dev")


def test_snapshots_come_back(folder: Path) -> None:
    env, other = WebShopEnv(data_dir=folder), WebShopEnv(data_dir=folder)
    env.reset(options={"task": 0})
    env.step("search[mug]")
    other.restore(env.snapshot())
    assert other.visit.text() == env.visit.text()


def test_tasks_of_other_data_are_refused(folder: Path) -> None:
    env = WebShopEnv(data_dir=folder)
    with pytest.raises(UsageError, match="its data holds the number of a goal, 0 to 13"):
        env.reset(options={"task": Task(id="train-1", split="train", seed=1, data={"num_products": 200})})


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("items_shuffle_1000.json", None, "has no items_shuffle_1000.json or items_shuffle.json"),
        ("items_ins_v2_1000.json", None, "has no items_ins_v2_1000.json or items_ins_v2.json"),
        ("items_shuffle_1000.json", "version https://git-lfs", "is not JSON (a pointer to the real file, or cut off?)"),
        ("items_shuffle_1000.json", "{}", "holds a dict, expected a list of products"),
        ("items_shuffle_1000.json", '[{"asin": "B0"}]', "product 0 is not as WebShop has it"),
        ("items_shuffle_1000.json", "[{}]", "product 0 is not as WebShop has it: 'asin' is missing"),
        ("items_ins_v2_1000.json", "{}", "none of the 8 products has an instruction"),
        ("items_human_ins.json", '{"B000000001": [{"instruction": "a mug"}]}', "'instruction_attributes' is missing"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_in_words(folder: Path, name: str, content: str | None, words: str) -> None:
    path = folder / name
    if content is None:
        path.unlink()
    else:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        load_original(folder)
    assert words in str(caught.value)


@needs_webshop_data
def test_the_real_annotations_are_read(folder: Path) -> None:
    """The real products are not to be had here: annotations are real, products are made up for their ASINs."""
    (folder / "items_ins_v2_1000.json").write_bytes((WEBSHOP / "items_ins_v2_1000.json").read_bytes())
    annotations = json.loads((WEBSHOP / "items_ins_v2_1000.json").read_text(encoding="utf-8"))
    write(folder, "items_shuffle_1000.json", [record(0, asin=asin) for asin in annotations])
    shop = load_original(folder)
    assert len(shop.catalogue.products) == 1_000
    assert len(shop.goals) == 2 * 415
    asked = {goal.asin: goal for goal in shop.goals}
    for asin, annotation in annotations.items():
        if "instruction" in annotation:
            assert asked[asin].attributes == tuple(annotation["instruction_attributes"])
            assert asked[asin].instruction.startswith(annotation["instruction"])
