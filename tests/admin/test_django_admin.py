"""The quarantine in Django's admin, by Django's test client, with a real ledger and broker."""

from __future__ import annotations

import base64
import html
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import StringIO
from threading import Barrier
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from celery import Celery

from celery_poison import GivenUp, Quarantine
from celery_poison.testing import RedisServer
from tests import PATIENCE
from tests.apps.harness import Fleet
from tests.cli.conftest import Console
from tests.desk.keeping import Keeper
from tests.django_once import configured

pytest.importorskip("django")

LIST = "/admin/celery_poison/poisonmessage/"
HOSTILE = "<script>alert('x')</script>\u202e{{ 7 }}"


class Site:
    """Visitors of the admin."""

    def visitor(self, name: str, *permissions: str, is_staff: bool = True, **options: Any) -> Any:
        from django.contrib.auth.models import Permission, User
        from django.test import Client

        User.objects.filter(username=name).delete()
        user = User.objects.create_user(name, is_staff=is_staff)
        wanted = Permission.objects.filter(codename__in=permissions)
        assert len(wanted) == len(permissions)
        user.user_permissions.set(wanted)
        client = Client(**options)
        client.force_login(user)
        return client

    def reader(self) -> Any:
        return self.visitor("rita", "view_poisonmessage")

    def ann(self, **options: Any) -> Any:
        return self.visitor("ann", "view_poisonmessage", "act_poisonmessage", **options)


@pytest.fixture(scope="module")
def tables() -> None:
    configured()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


@contextmanager
def served(fleet: Any) -> Iterator[Site]:
    """An admin site of this fleet's app, for a while."""
    from django.contrib import admin
    from django.test import override_settings
    from django.urls import path

    from celery_poison.contrib.django import admin as ours

    site, urls = admin.AdminSite(), ModuleType("urls")
    site.register(ours.PoisonMessage, ours.PoisonMessageAdmin)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ours, "_APP", fleet.app)
        urls.urlpatterns = [path("admin/", site.urls)]  # type: ignore[attr-defined]
    with override_settings(ROOT_URLCONF=urls):
        yield Site()


@pytest.fixture
def site(tables: None, fleet: Fleet) -> Iterator[Site]:
    with served(fleet) as made:
        yield made


def test_SAP_7_only_staff_reads_by_a_permission_and_only_another_permission_acts(
    site: Site, fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    message, acts = f"{LIST}message/?id={mid}", [f"{LIST}edit/?id={mid}", f"{LIST}act/release/"]
    everyone = site.visitor("zoe", "view_poisonmessage", "act_poisonmessage", is_staff=False)
    assert {everyone.get(page).status_code for page in (LIST, message, *acts)} == {302}, "to the login"
    staff = site.visitor("sam")
    assert {staff.get(page).status_code for page in (LIST, message, f"{LIST}groups/", *acts)} == {403}
    assert "Poison messages" not in staff.get("/admin/").content.decode()
    reader = site.reader()
    assert "Poison messages" in reader.get("/admin/").content.decode()
    for page in (LIST, message):
        shown = reader.get(page).content.decode()
        assert "fleet.healthy" in shown and "SIGKILL" in shown and "Release" not in shown, shown
    assert {reader.get(page).status_code for page in acts} == {403}
    assert reader.post(f"{LIST}act/release/", {"mid": mid, "sure": 1}).status_code == 403
    assert reader.post(f"{LIST}edit/?id={mid}", {"args": "[2]", "kwargs": "{}"}).status_code == 403
    # A page of another site cannot have it done, not even without the middleware against that.
    forged = site.ann(enforce_csrf_checks=True)
    for act in ("act/release/", f"edit/?id={mid}"):
        assert forged.post(LIST + act, {"mid": mid, "sure": 1}).status_code == 403
    assert site.ann().get(f"{LIST}act/release/?mid={mid}&sure=1").status_code == 302, "GET does nothing"
    assert [record.mid for record in fleet.quarantine.list()] == [mid]


def test_SAP_7_what_is_ticked_is_released_failed_and_edited_by_the_visitor_with_the_reason(
    site: Site, fleet: Fleet, keeper: Keeper
) -> None:
    released, failed, edited = (keeper.send_and_keep("fleet.healthy", number) for number in (1, 2, 3))
    ann, given_up = site.ann(), fleet.quarantine.get(failed).id

    def act(verb: str, mid: str) -> str:
        asked = ann.post(f"{LIST}act/{verb}/", {"mid": [mid]}).content.decode()
        assert f"{verb.capitalize()} 1 message?" in asked and fleet.quarantine.get(mid).id in asked
        assert fleet.quarantine.get(mid).state == "NDLV", "asked first"
        form = {"mid": [mid], "sure": 1, "note": "INC-7: repaired"}
        answer: str = ann.post(f"{LIST}act/{verb}/", form, follow=True).content.decode()
        return answer

    assert "1 message released." in act("release", released)
    assert "1 message failed." in act("fail", failed)
    with pytest.raises(GivenUp):
        fleet.app.AsyncResult(given_up).get(timeout=PATIENCE)
    refused = ann.post(f"{LIST}act/fail/", {"mid": [failed], "sure": 1}, follow=True).content.decode()
    assert "not failed: " in refused

    form = ann.get(f"{LIST}edit/?id={edited}").content.decode()
    assert "[\n  3\n]" in form
    wrong = ann.post(f"{LIST}edit/?id={edited}", {"args": "[3", "kwargs": "{}", "queue": "celery"})
    assert "args: this is no JSON" in wrong.content.decode() and "[3" in wrong.content.decode()
    typed = {"args": "[30]", "kwargs": "{}", "queue": "celery", "note": "INC-7: repaired"}
    assert "is released" in ann.post(f"{LIST}edit/?id={edited}", typed, follow=True).content.decode()

    sent = [json.loads(base64.b64decode(raw["body"]))[0] for raw in keeper.raw_on_redis()]
    assert [1] in sent and [30] in sent, sent
    decided = fleet.events("released", "failed", "edited")
    assert {entry["actor"] for entry in decided} == {"ann (django)"}
    assert {entry["note"] for entry in decided if entry["mid"] != edited} >= {"INC-7: repaired"}
    assert failed not in ann.get(LIST).content.decode()
    assert failed in ann.get(f"{LIST}?state=FAIL").content.decode().replace("&amp;", "&")


def test_SAP_7_a_group_is_decided_as_one_and_nothing_of_a_message_runs_in_the_page(
    assemble: Callable[..., Fleet], redis_url: str, tables: None
) -> None:
    fleet = assemble(Fleet, redis_url, poison_redact=["password"])
    keeper = Keeper(fleet.app)
    fleet.app.send_task("fleet.healthy", (HOSTILE,), {"password": "hunter2"})
    hostile = keeper.keep(keeper.receive())
    others = [keeper.send_and_keep("fleet.healthy", n, cause="signal:11") for n in range(3)]
    keeper.close()
    with served(fleet) as site:
        ann = site.ann()
        groups = ann.get(f"{LIST}groups/").content.decode()
        (row,) = (row for row in groups.split("<tr>") if "SIGSEGV" in row)
        link = row.partition('href="')[2].partition('"')[0]
        listed = ann.get(link).content.decode()
        assert all(quote(mid) in listed for mid in others) and hostile not in listed
        chosen = {"q": f"group={link.partition('group%3D')[2]}", "everything": 1}
        assert "Discard 3 messages?" in ann.post(f"{LIST}act/discard/", chosen).content.decode()
        done = ann.post(f"{LIST}act/discard/", {**chosen, "sure": 1, "everything": 1}, follow=True)
        assert "3 messages discarded." in done.content.decode()
        pages = [LIST, f"{LIST}message/?id={hostile}", f"{LIST}groups/", f"{LIST}edit/?id={hostile}"]
        pages += [f"{LIST}?q={quote(HOSTILE)}", f"{LIST}message/?id={quote(HOSTILE)}", f"{LIST}?q=state%3E1"]
        shown = [ann.get(page) for page in pages]
        shown.append(ann.post(f"{LIST}act/release/", {"mid": [hostile, HOSTILE]}))
        shown.append(ann.post(f"{LIST}act/release/", {"mid": [HOSTILE], "sure": 1}, follow=True))
    texts = [answer.content.decode() for answer in shown]
    assert not [text for text in texts if "<script>alert" in text]
    assert not [text for text in texts[:7] if "\u202e" in text], "forms alone have an id as it is"
    assert [answer.status_code for answer in shown] == [200, 200, 200, 200, 200, 404, 400, 200, 200]
    assert "hunter2" not in texts[0] + texts[1]
    assert "alert(" in texts[0] and "alert(" in texts[1], "escaped, not left out"


def test_NEW_6_a_second_person_agrees_in_django_to_what_another_asked_for_there_or_at_a_terminal(
    assemble: Callable[..., Fleet], redis_url: str, tables: None
) -> None:
    links = {"Logs": "https://logs.example.com/?q={task_id}"}
    fleet = assemble(Fleet, redis_url, poison_second_person=2, poison_links=links)
    keeper, console = Keeper(fleet.app), Console(fleet.app)
    everything = {"everything": "1", "q": ""}

    def asked(client: Any, form: dict[str, Any]) -> str:
        """Press Release, and then the button of the page that asks whether that is meant."""
        page = client.post(f"{LIST}act/release/", form).content.decode()
        sure = {"sure": "1", "mid": re.findall(r'name="mid" value="(.*?)"', page)}
        sure |= {name: form[name] for name in everything if f'name="{name}"' in page}
        answer: str = client.post(f"{LIST}act/release/", sure, follow=True).content.decode()
        return answer

    def two_kept() -> list[str]:
        keeper.empty()
        return [keeper.send_and_keep("fleet.healthy", number) for number in range(2)]

    with served(fleet) as site:
        ann, bob = site.ann(), site.visitor("bob", "view_poisonmessage", "act_poisonmessage")
        two_kept()
        assert "othing is done yet" in asked(ann, everything)
        assert "ann (django) has asked" in asked(ann, everything), "the same person"
        seen = html.unescape(bob.get(LIST).content.decode())
        assert "ann (django) asked for release --all (2 messages)" in seen
        assert "by the same words: celery poison release --all --actor NAME; or here: the same act" in seen
        assert len(fleet.quarantine.list()) == 2
        assert "2 messages released." in asked(bob, everything)
        assert {entry["actor"] for entry in fleet.events("released")} == {"bob (django)"}
        assert "asked for" not in bob.get(LIST).content.decode()

        two_kept()
        console.run("release", "--filter", "task=fleet.*", "--yes", "--actor", "bob@desk", status=1)
        assert "2 messages released." in asked(ann, {**everything, "q": "task=fleet.*"})

        mids = two_kept()
        assert "othing is done yet" in asked(ann, {"mid": mids})
        assert "othing is done yet" in asked(bob, everything), "not the same"
        assert "2 messages released." in asked(bob, {"mid": [*reversed(mids)]})

        two_kept()
        others = [keeper.send_and_keep("fleet.kill_child") for _ in range(2)]
        harmless = {"everything": "1", "q": "task=fleet.healthy"}
        assert "othing is done yet" in asked(ann, harmless)
        bob.post(f"{LIST}act/release/", {**harmless, "sure": "1", "mid": others})
        left = {record.mid for record in fleet.quarantine.list()}
        assert left >= {*others}, "what was agreed to is the search, not what a form names beside it"

        keeper.empty()
        kept = keeper.send_and_keep("fleet.healthy", 3)
        page = ann.get(f"{LIST}message/?id={kept}").content.decode()
        assert f'href="https://logs.example.com/?q={fleet.quarantine.get(kept).id}"' in page
        assert "1 message released." in asked(bob, {"mid": [kept]}), "one is no large act"
    keeper.close()


def test_SAP_7_while_redis_is_away_the_page_says_so_and_the_rest_of_the_admin_goes_on(
    assemble: Callable[..., Fleet], tables: None
) -> None:
    with RedisServer() as server, served(assemble(Fleet, server.url(0), backend_url=server.url(1))) as site:
        reader = site.reader()
        assert "No message in quarantine." in reader.get(LIST).content.decode()
        server.stop()
        away = reader.get(LIST)
        assert away.status_code == 503 and "Redis is not reachable" in away.content.decode()
        assert reader.get("/admin/").status_code == 200
    with served(SimpleNamespace(app=Celery("default", set_as_current=False))) as site:
        assert "Django has loaded no Celery app" in site.reader().get(LIST).content.decode()


def test_SAP_7_a_visitor_waits_for_his_own_answer_of_redis_alone(fleet: Fleet) -> None:
    configured()
    from celery_poison.contrib.django.pages import Pages

    pages, both = Pages(None, fleet.app), Barrier(2, timeout=PATIENCE)
    with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(2) as visitors:
        patched.setattr(Quarantine, "check_owner", lambda self: both.wait() >= 0)
        opened = [*visitors.map(lambda _: pages._open(), range(2))]
    assert opened[0] is opened[1]


def test_SAP_7_dumpdata_meets_no_table_that_is_not_there(tables: None) -> None:
    from django.core.management import call_command

    for everything in (False, True):  # by each model's default manager, and by its base manager
        dumped = StringIO()
        call_command("dumpdata", use_base_manager=everything, stdout=dumped)
        models = {row["model"] for row in json.loads(dumped.getvalue())}
        assert "auth.permission" in models and "celery_poison.poisonmessage" not in models


_THREAD = """
import threading
from celery import Celery
from tests.django_once import configured
app = Celery("shop", broker="redis://127.0.0.1:1/0")
configured()
from django.core.management import call_command
from django.contrib import admin
call_command("makemigrations", check=True, dry_run=True, verbosity=0)
model = next(model for model in admin.site._registry if model.__name__ == "PoisonMessage")
from django.db import connection
assert not [name for name in connection.introspection.table_names() if "poisonmessage" in name]
import celery_poison.contrib.django.admin as ours
threading.Thread(target=lambda: print(ours._APP.main)).start()
"""


def test_SAP_7_the_admin_takes_the_app_of_the_thread_that_loads_django() -> None:
    told = subprocess.run([sys.executable, "-c", _THREAD], capture_output=True, text=True)
    assert told.stdout.split() == ["shop"], told.stderr
