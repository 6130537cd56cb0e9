"""The simulation behind docs/blame.md: its statistics, its counts, and that it can tell rules apart."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from tests.docs.pages import text
from tests.docs.verdict_table import counts
from tests.unit.simulation.figures import Figures, figures, upper_bound
from tests.unit.simulation.fleet import Simulation
from tests.unit.simulation.rules import CountTo, DeliveryLimit, Ours, Past, Rule, died
from tests.unit.simulation.script import WORLDS, Send, World, script

QUIET = World("quiet", workers=1, slots=4)


def _play(world: World, rule: Rule, seconds: float, seed: int = 1) -> Figures:
    fleet = Simulation(world, rule, seed)
    fleet.play(itertools.takewhile(lambda event: event.at < seconds, script(world, seed)))
    return figures(fleet.fortunes.values(), fleet.deaths)


def _fleet_of(rule: Rule, *events: Any) -> Simulation:
    fleet = Simulation(QUIET, rule, 1)
    fleet.play(events)
    return fleet


@pytest.mark.parametrize(
    ("hits", "trials", "bound"),
    [(0, 300, 0.00994), (0, 1, 0.95), (1, 10, 0.39416), (5, 100, 0.10225), (7, 7, 1.0)],
)
def test_the_upper_bound_is_that_of_clopper_and_pearson(hits: int, trials: int, bound: float) -> None:
    assert upper_bound(hits, trials) == pytest.approx(bound, abs=1e-5)


def test_the_rules_count_a_death_as_the_docs_tell() -> None:
    past = Past()
    died(past, alone=False)
    row = counts()["its whole worker died while it ran, or while it was received"]
    told = row.add(Past().history)
    assert (past.history.crashes, past.history.strikes) == (told.crashes, told.strikes)


def test_a_script_is_the_same_for_everybody_who_plays_it() -> None:
    first, second = (list(itertools.islice(script(WORLDS[0], 7), 500)) for _ in range(2))
    assert first == second
    assert [event.at for event in first] == sorted(event.at for event in first)


def test_NEW_1_ours_convicts_no_innocent_where_the_counting_rules_do() -> None:
    ours = _play(WORLDS[0], Ours(), 400)
    assert (ours.convicted, ours.unfinished, ours.caught, ours.worst) == (0, 0, ours.poisons, 2)
    assert ours.exposed > 20
    for rule in (CountTo(2), CountTo(3), DeliveryLimit(2)):
        assert _play(WORLDS[0], rule, 400).convicted > 0, rule.name


def test_NEW_1_a_poison_takes_one_worker_and_a_cell_and_its_neighbours_are_done() -> None:
    neighbours = [Send(0.0, f"n{n}", "innocent", 2.0) for n in range(3)]
    fleet = _fleet_of(Ours(), *neighbours, Send(0.1, "p", "poison", 0.5))
    poison = fleet.fortunes["p"]
    assert (poison.convicted, poison.kills, poison.workers_killed) == (True, 2, 1)
    assert all(fleet.fortunes[n.id].done and fleet.fortunes[n.id].worker_deaths == 1 for n in neighbours)
    assert (fleet.deaths, fleet.trials) == (1, 4)


def test_NEW_1_no_innocent_of_a_spot_fleet_is_convicted_however_often_its_workers_are_killed() -> None:
    fleet = Simulation(WORLDS[-1], Ours(), 1)
    fleet.play(itertools.takewhile(lambda event: event.at < 3000, script(WORLDS[-1], 1)))
    found = figures(fleet.fortunes.values(), fleet.deaths)
    assert (found.convicted, found.unfinished, found.caught, found.worst) == (0, 0, found.poisons, 2)
    hits = [fortune.worker_deaths for fortune in fleet.fortunes.values() if fortune.kind == "innocent"]
    assert max(hits) >= 5, "some were hit again and again"


def test_a_rule_that_counts_convicts_at_its_bound() -> None:
    for bound in (2, 3, 5):
        fleet = _fleet_of(CountTo(bound), Send(0.0, "p", "poison", 0.5))
        assert (fleet.fortunes["p"].kills, fleet.deaths) == (bound, bound)
    fleet = _fleet_of(DeliveryLimit(4), Send(0.0, "p", "poison", 0.5))
    assert fleet.fortunes["p"].kills == 5, "as RabbitMQ does it: a limit of 4 is 5 runs"


def test_the_page_tells_of_enough_deaths() -> None:
    page = text("blame.md")
    assert "## Real workers" in page and "## Simulated fleets" in page
    row = next(line for line in page.splitlines() if line.startswith("| **ours**"))
    assert int(row.split("|")[2].replace(",", "")) >= 300
    assert row.split("|")[6].strip() == "0"


def test_an_empty_world_has_no_figures_and_does_not_fail() -> None:
    world = replace(QUIET, poison_every=0.0, sometimes_every=0.0, kill_every=0.0, deploy_every=0.0)
    found = _play(world, Ours(), 20)
    assert (found.deaths, found.poisons, found.exposed, found.unfinished) == (0, 0, 0, 0)
