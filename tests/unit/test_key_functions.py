"""What a function of the user's that makes an idempotency key is given, and what is said where it fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_poison.extensions.once.per_key import once_per_key
from celery_poison.extensions.once.settings import OnceSettings


def test_a_key_function_that_takes_a_models_dict_for_the_model_fails_with_a_note_of_what_it_gets() -> None:
    never: Any = None  # neither the ledger nor the body is asked
    task: Any = SimpleNamespace(name="shop.charge")
    options = OnceSettings(idempotency_key=lambda order: order.order_id)
    with pytest.raises(AttributeError, match="order_id") as failed:
        once_per_key(never, task, options, "mid", never, never, ([{"order_id": 1}], {}))
    (note,) = failed.value.__notes__
    assert "idempotency_key of shop.charge" in note and "a pydantic model that is its dict" in note
