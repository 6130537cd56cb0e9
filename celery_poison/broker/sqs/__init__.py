"""Amazon SQS: the broker puts back by itself what was not deleted within the visibility timeout."""
