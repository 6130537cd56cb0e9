"""The pipeline's proposal in Flower: shown with its figures, applied as it was read, or dismissed (NEW-7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery_poison.extensions.proposals.proposal import ProposedRule, sheet
from celery_poison.extensions.proposals.proposals import Proposals
from celery_poison.ledger import policies
from celery_poison.plugin import plugin_of
from celery_poison.rules.blocks import read_rules
from celery_poison.testing import wait_until
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper
from tests.flower.conftest import Serve
from tests.flower.served import ANN, FlowerServer
from tests.flower.test_browser import await_text, text, visit

TOKEN = {"Cookie": "_xsrf=0123456789abcdef", "X_XSRFToken": "0123456789abcdef"}
HOSTILE = "<img src=x onerror=alert(1)>"


def propose(fleet: Fleet, *numbers: int, policy: int = 0, hours: float = 1) -> int:
    """Publish a proposal as the pipeline does; return its version."""
    ledger = plugin_of(fleet.app).open_ledger()
    rules = [
        ProposedRule(
            fingerprint=f"{n:016x}", task=f"shop.{HOSTILE}", note="why", deaths=6, messages=3, caught=4
        )
        for n in numbers
    ]
    text, effect = sheet(rules, {"max_crashes": policy} if policy else {}, [f"because {HOSTILE}"])
    lasts_ms = round(hours * 3_600_000)
    return Proposals(ledger).publish(text, effect, lasts_ms=lasts_ms, actor="cron@host", journalled="rules")[
        1
    ]


def in_force(fleet: Fleet) -> dict[str, str]:
    ledger = plugin_of(fleet.app).open_ledger()
    _, raw, now = policies.read(ledger, ledger.keys.blocks)
    return {rule.name: rule.actor for rule in read_rules(raw, now)[0].values()}


def told(fleet: Fleet, event: str) -> list[tuple[str, str]]:
    entries = fleet.quarantine.queries.journal()
    return [(entry["actor"], entry["note"]) for entry in entries if entry["event"] == event]


def test_NEW_7_a_person_reads_it_and_applies_exactly_that(serve: Serve, fleet: Fleet, keeper: Keeper) -> None:
    version = propose(fleet, 1, 2, policy=1)
    flower = serve(user=ANN)
    page = page_with(flower, f"Proposal {version}")
    assert "What the pipeline proposes" in page and "cron@host" in page
    assert "<strong>8 messages</strong>, <strong>0 innocents</strong>" in page
    assert f"{1:016x}" in page and "6 deaths by 3 messages" in page and "max_crashes=1" in page
    assert HOSTILE not in page and "&lt;img" in page
    status = flower.get("/api/poison/status").json["proposal"]
    assert (status["version"], status["rules"], status["policy"]) == (version, 2, {"max_crashes": 1})
    assert [rule["caught"] for rule in flower.get("/api/poison/proposal").json["rules"]] == [4, 4]

    # While it is being read, the pipeline makes another one.
    newer = propose(fleet, 3)
    answer = flower.post("/poison/proposal/apply", {"version": version}, **TOKEN)
    assert answer.status == 303 and in_force(fleet) == {}
    page = page_with(flower, f"Proposal {newer}", answer.headers["Location"])
    assert "That proposal does not wait any more" in page

    answer = flower.post("/poison/proposal/apply", {"version": newer, "note": "seen"}, **TOKEN)
    assert in_force(fleet) == {f"{3:016x}": "ann (flower)"}
    assert told(fleet, "proposal_applied") == [("ann (flower)", f"{newer}: 1 rules, 0 options: seen")]
    assert "The proposal is in force" in flower.get(answer.headers["Location"]).text
    wait_until(lambda: "What the pipeline proposes" not in flower.get("/poison").text, what="it is decided")
    assert flower.post("/poison/proposal/apply", {"version": "x"}, **TOKEN).status == 400


def test_NEW_7_it_is_dismissed_and_programs_do_the_same(serve: Serve, fleet: Fleet, keeper: Keeper) -> None:
    version = propose(fleet, 1)
    flower = serve(user=ANN)
    answer = flower.post("/poison/proposal/dismiss", {"version": version, "note": "no"}, **TOKEN)
    assert (answer.status, in_force(fleet)) == (303, {})
    assert told(fleet, "proposal_dismissed") == [("ann (flower)", f"{version}: no")]
    wait_until(lambda: flower.get("/api/poison/proposal").json is None, what="nothing waits")
    again = flower.post_json("/api/poison/proposal/apply", {"version": version})
    assert (again.status, again.json["error"]) == (
        409,
        f"proposal {version} was dismissed by ann (flower)",
    )
    version = propose(fleet, 2, policy=1)
    done = flower.post_json("/api/poison/proposal/apply", {"version": version, "rules_only": True})
    assert done.json == {"version": version, "rules": 1, "options": 0}
    assert Proposals(plugin_of(fleet.app).open_ledger()).retract("ben") == (1, False)
    assert flower.post_json("/api/poison/proposal/dismiss", {}).status == 400


def test_who_may_not_act_reads_it_and_sees_no_button(serve: Serve, fleet: Fleet, keeper: Keeper) -> None:
    version = propose(fleet, 1)
    flower = serve()
    assert "/poison/proposal/" not in page_with(flower, f"Proposal {version}")
    assert flower.post("/poison/proposal/apply", {"version": version}, **TOKEN).status == 403
    assert in_force(fleet) == {}


def page_with(flower: FlowerServer, sentence: str, address: str = "/poison") -> str:
    """Return the page once it has the sentence: while Redis is slow, it shows what was known before."""
    pages: list[str] = []

    def has_it() -> bool:
        pages.append(flower.get(address).text)
        return sentence in pages[-1]

    wait_until(has_it, what=sentence)
    return pages[-1]


def apply(browser: Any) -> None:
    button = browser.find_element("css selector", "#poison-proposal button.btn-primary")
    browser.execute_script("arguments[0].scrollIntoView({behavior: 'instant', block: 'center'})", button)
    button.click()


def test_NEW_7_it_is_applied_by_a_click_and_does_not_change_while_it_is_read(
    browser: Any, serve: Serve, fleet: Fleet, keeper: Keeper, pictures: Path
) -> None:
    version = propose(fleet, *range(12), policy=1)
    served = serve(user=ANN)
    visit(browser, served, "/poison")
    await_text(browser, f"Proposal {version}", "#poison-proposal")
    newer = propose(fleet, 3)
    keeper.send_and_keep("fleet.kill_child")
    await_text(browser, "fleet.kill_child", "#poison-rows")  # the page was refreshed since
    assert f"Proposal {version}" in text(browser, "#poison-proposal")
    browser.save_screenshot(str(pictures / "proposal.png"))
    apply(browser)
    await_text(browser, "That proposal does not wait any more")
    assert in_force(fleet) == {}
    browser.find_element("id", "poison-proposal-note").send_keys("seen")
    apply(browser)
    await_text(browser, "The proposal is in force")
    assert told(fleet, "proposal_applied") == [("ann (flower)", f"{newer}: 1 rules, 0 options: seen")]
