"""What is wrong with a ledger's URL is said, and nothing of its password is."""

from __future__ import annotations

import pytest

from celery_poison.errors import ConfigurationError
from celery_poison.ledger.connection import open_redis


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cr/et@host:6379/0",
        "redis://ann:s3cr#et@host:6379/0",
        "redis://:s3cr?et@host/0",
        "redis://[s3cr/et@host/0",
        "sentinel://one:26379/0;sentinel://:s3cr/et@two:26379",
        "redis://one:6379;:s3cr/et@two:6379?cluster=true",
    ],
)
def test_a_password_that_is_not_escaped_is_not_shown(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_redis(url, {"master_name": "m"})
    assert "s3cr" not in str(refused.value) and "%2F" in str(refused.value)
