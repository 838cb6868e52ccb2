"""A small world in AppWorld's own folder format, made through the installed apps' own models.

Run by a Python that has ``appworld``: ``python appworld_fixture.py FOLDER SEED`` writes ``FOLDER/data``. People, notes
and payments are drawn from the seed. None of AppWorld's real tasks or people is in it.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

NOW = "2023-05-18T12:00:00"
FIRST = ("Ada", "Boris", "Clara", "Dmitri", "Elif", "Femi")
LAST = ("Marsh", "Novak", "Okoye", "Perez", "Quist", "Rossi")
TAGS = ("garden", "recipes", "travel")
SCENARIOS = {"train": "f1c0de1", "dev": "f1c0de2", "test_normal": "f1c0de3", "test_challenge": "f1c0de4"}
"""One scenario of three tasks a dataset; the first and third count notes, the others pay a friend."""

COUNT = """
def solution(apis, requester):
    passwords = {one["account_name"]: one["password"] for one in apis.supervisor.show_account_passwords()}
    email = apis.supervisor.show_profile()["email"]
    token = apis.simple_note.login(username=email, password=passwords["simple_note"])["access_token"]
    notes, page = [], 0
    while found := apis.simple_note.search_notes(access_token=token, tags=[TAG], page_index=page):
        notes, page = notes + found, page + 1
    apis.supervisor.complete_task(answer=len(notes))
"""
PAY = """
def solution(apis, requester):
    passwords = {one["account_name"]: one["password"] for one in apis.supervisor.show_account_passwords()}
    email = apis.supervisor.show_profile()["email"]
    token = apis.venmo.login(username=email, password=passwords["venmo"])["access_token"]
    apis.venmo.create_transaction(access_token=token, receiver_email=RECEIVER, amount=AMOUNT, description=WORDS)
    apis.supervisor.complete_task()
"""
COUNT_TESTS = """
with test("assert answers match."):
    test.answer(json.loads(models.end.supervisor.Task.all()[0].answer), ground_truth_answer)
with test("assert no model changes, but logins."):
    test.case(models.changed_model_names(ignore=["simple_note.User"]), "==", set())
"""
PAY_TESTS = """
changed = models.changed_model_names()
with test("assert model changes match venmo.User, venmo.Transaction and venmo.Notification."):
    test.case(changed, "==", {"venmo.User", "venmo.Transaction", "venmo.Notification"})
added, _, _ = models.changed_records("venmo.Transaction")
with test("assert exactly one transaction is added."):
    test.case(len(added), "==", 1)
with test("assert it has the receiver, amount and description that are asked for."):
    (one,) = added
    test.case(one.receiver.email, "==", private_data.receiver)
    test.case(one.amount, "==", private_data.amount)
    test.case(one.description, "==", private_data.words)
with test("assert the task is complete and has no answer."):
    test.case(models.end.supervisor.Task.all()[0].status, "==", "success")
    test.answer(json.loads(models.end.supervisor.Task.all()[0].answer), None)
with test("assert no account is closed."):
    test.case(len(models.changed_records("venmo.User")[2]), "==", 0)
"""
EVALUATION = '''"""Tests of a made task."""
import json


def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
'''


def people(rng: random.Random) -> list[dict[str, Any]]:
    """Six people with an address, a telephone number and a password for each app."""
    lasts = rng.sample(LAST, len(LAST))
    return [
        {
            "first_name": first,
            "last_name": last,
            "email": f"{first.lower()}.{last.lower()}@example.com",
            "phone_number": str(rng.randrange(10**9, 10**10)),
            "passwords": {app: f"{rng.randrange(16**8):08x}" for app in ("simple_note", "venmo")},
        }
        for first, last in zip(FIRST, lasts, strict=True)
    ]


def fill_base(models: Any, known: list[dict[str, Any]], rng: random.Random, docs: Any) -> None:
    """Give every person accounts, money and notes, and the apps their documentation."""
    for person in known:
        name = {key: person[key] for key in ("first_name", "last_name")}
        main = models.admin.MainUser(
            **name, email=person["email"], phone_number=person["phone_number"], birthday="1990-01-01", sex="female"
        )
        main.save()
        for app, password in person["passwords"].items():
            models.admin.AccountPassword(main_user_id=main.id, account_name=app, password=password).save()
        account = {**name, "email": person["email"], "verified": True}
        user = models.simple_note.User(**account, password=person["passwords"]["simple_note"])
        user.save()
        for number in range(rng.randint(6, 9)):
            tags = rng.sample(TAGS, rng.randint(1, 2))
            models.simple_note.Note(user_id=user.id, title=f"Note {number}", content="...", tags=tags).save()
        models.venmo.User(**account, password=person["passwords"]["venmo"], venmo_balance=500.0).save()
    for app, by_name in docs.items():
        for name, doc in by_name.items():
            kept = {key: doc[key] for key in ("path", "method", "description", "parameters", "response_schemas")}
            models.api_docs.ApiDoc(app_name_=app, api_name=name, **kept).save()


def drawn_task(
    number: int, known: list[dict[str, Any]], rng: random.Random, models: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return who asks, and what: instruction, answer, data of the tests, code of solution and tests."""
    asks, friend = rng.sample(known, 2)
    if number != 2:
        tag = rng.choice(TAGS)
        user = models.simple_note.User.find_one(email=asks["email"])
        answer = len([note for note in models.simple_note.Note.find_all(user_id=user.id) if tag in note.tags])
        said = f"How many notes in my Simple Note account are tagged '{tag}'?"
        return asks, {"said": said, "answer": answer, "private": {"tag": tag}, "code": f"TAG = {tag!r}\n{COUNT}",
                      "tests": COUNT_TESTS, "apps": ["simple_note"]}  # fmt: skip
    amount, words = float(rng.randint(5, 80)), rng.choice(("Lunch", "Tickets", "Rent"))
    said = f"Send ${amount:.2f} from my Venmo balance to {friend['email']}, with the note '{words}'."
    code = f"RECEIVER, AMOUNT, WORDS = {friend['email']!r}, {amount}, {words!r}\n{PAY}"
    private = {"receiver": friend["email"], "amount": amount, "words": words}
    return asks, {"said": said, "answer": None, "private": private, "code": code, "tests": PAY_TESTS, "apps": ["venmo"]}


def write_ground_truth(folder: Path, drawn: dict[str, Any], is_full: bool) -> None:
    """Write the files that AppWorld's ``GroundTruth.load`` reads; the solution only in the mode ``full``."""
    folder.mkdir(parents=True)
    requirements = [line.split('"')[1] for line in drawn["tests"].splitlines() if line.startswith("with test")]
    kept = ("no account", "no model changes")
    tests = [
        {"requirement": one, "label": "no_op_pass" if any(word in one for word in kept) else "no_op_fail"}
        for one in requirements
    ]
    facts = {"mode": "full" if is_full else "minimal", "difficulty": 1, "num_apps": 1, "num_apis": 4}
    files: dict[str, object] = {
        "public_data.json": {},
        "private_data.json": drawn["private"],
        "answer.json": drawn["answer"],
        "test_data.json": tests,
        "metadata.json": {**facts, "num_api_calls": 4, "num_solution_code_lines": 8},
    }
    if is_full:
        files |= {"required_apps.json": drawn["apps"], "api_calls.json": []}
        for name in ("solution.py", "compiled_solution.py"):
            (folder / name).write_text(drawn["code"])
        (folder / "generator.py").write_text("")
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "evaluation.py").write_text(EVALUATION + indent(dedent(drawn["tests"]), "    "))


def main(root: Path, seed: int) -> None:
    """Write ``root/data``."""
    os.environ["APPWORLD_ROOT"] = str(root)
    from appworld.apps import get_all_apps
    from appworld.collections.api_docs import ApiDocCollection
    from appworld.collections.models import ModelCollection
    from appworld.common.constants import DB_VERSION
    from appworld.common.datetime import DateTime
    from appworld.common.utils import freeze_time

    rng, data, apps = random.Random(seed), root / "data", get_all_apps()
    base = data / "base_dbs"
    for folder in (base, data / "api_docs" / "standard", data / "datasets"):
        folder.mkdir(parents=True)
    docs = ApiDocCollection.build(load_apps=tuple(get_all_apps(skip_admin=True)))
    for app, by_name in docs.items():
        written = {name: {**doc, "canary_string": "none"} for name, doc in by_name.items()}
        (data / "api_docs" / "standard" / f"{app}.json").write_text(json.dumps(written))
    with freeze_time(DateTime.fromisoformat(NOW)):
        known = people(rng)
        models = ModelCollection.load(
            to_db_home_path=":memory:base", from_db_home_path=":memory:base", load_apps=apps, create_db=True
        )
        fill_base(models, known, rng, docs)
        models.save(db_home_path=str(base), delete_if_exists=True)
        for dataset, scenario in SCENARIOS.items():
            names = [f"{scenario}_{number}" for number in (1, 2, 3)]
            (data / "datasets" / f"{dataset}.txt").write_text("\n".join(names) + "\n")
            for number, name in enumerate(names, 1):
                models.reset_db_home_path()
                asks, drawn = drawn_task(number, known, rng, models)
                folder = data / "tasks" / name
                world = ModelCollection.load(
                    to_db_home_path=f":memory:task_input-{name}", from_db_home_path=str(base), load_apps=apps
                )
                shown = {key: asks[key] for key in ("first_name", "last_name", "email", "phone_number")}
                chief = world.supervisor.Supervisor(**shown, birthday="1990-01-01", sex="female")
                chief.save()
                for app, password in asks["passwords"].items():
                    world.supervisor.AccountPassword(supervisor_id=chief.id, account_name=app, password=password).save()
                world.supervisor.Task(supervisor_id=chief.id, instruction=drawn["said"]).save()
                world.save(db_home_path=str(folder / "dbs"), format="changes")
                world.close()
                specs = {"instruction": drawn["said"], "supervisor": shown, "datetime": NOW, "db_version": DB_VERSION}
                (folder / "specs.json").write_text(json.dumps(specs))
                write_ground_truth(folder / "ground_truth", drawn, is_full=dataset in ("train", "dev"))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]))
