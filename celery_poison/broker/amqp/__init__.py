"""RabbitMQ, and what else speaks AMQP 0.9.1: the broker puts back by itself what a lost connection held."""
