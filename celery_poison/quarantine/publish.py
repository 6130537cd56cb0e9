"""Publishing what quarantine keeps: the original under the number of its release."""

from __future__ import annotations

from celery_poison.broker.publish import NoAnswer, NotPublished, Publisher
from celery_poison.errors import PoisonError
from celery_poison.headers import MARK, PARK, RELEASE, TRIAL
from celery_poison.model import Parcel


class PublishRefused(PoisonError):
    """The broker did not take the message; it stays in quarantine."""


def publish_release(publisher: Publisher, parcel: Parcel, queue: str, release: int) -> None:
    """Publish the original with the headers of others as they were, and the number of its release.

    Raises:
        PublishRefused: the queue does not exist, or the broker is away or refuses.
    """
    foreign = {name: value for name, value in parcel.headers.items() if name not in (MARK, PARK, TRIAL)}
    try:
        publisher.publish(parcel, queue, {**foreign, RELEASE: release})
    except NoAnswer as error:
        raise PublishRefused(
            f"{error}. If it has the message all the same, the first worker that receives it completes this"
            " release"
        ) from error
    except NotPublished as error:
        raise PublishRefused(str(error)) from error
