"""celery #2979: 'unknown message' when --queues is specified with a custom step

RabbitMQ. A custom step consumes a queue that `--queues` names, too. The queue gets four messages
that are no tasks.
"""

from celery import bootsteps
from kombu import Consumer, Exchange, Queue

from examples.issues.stage import mark

FEED = Queue("feed", Exchange("feed"), "feed")


def receive(body, message):
    mark("received")
    message.ack()


class Feed(bootsteps.ConsumerStep):
    def get_consumers(self, channel):
        return [Consumer(channel, queues=[FEED], callbacks=[receive], accept=["json"])]


BROKER = "rabbitmq"
STEPS = [Feed]
STATE = "open"
PLAIN = "2 of 4 reach the step, 2 are deleted"
GUARDED = "2 of 4 reach the step, 2 are in quarantine"


def tasks(task):
    pass


def play(stage):
    end = "in quarantine" if stage.guarded else "deleted"
    with stage.worker(queues=["celery", "feed"]) as worker, stage.app.producer_pool.acquire() as producer:

        def others():
            return stage.kept() if stage.guarded else worker.log_text().count("deleted unknown message")

        for number in range(4):
            producer.publish({"n": number}, exchange=FEED.exchange, routing_key="feed", declare=[FEED])
            stage.wait(lambda number=number: stage.count("received") + others() > number)
        return f"{stage.count('received')} of 4 reach the step, {others()} are {end}"
