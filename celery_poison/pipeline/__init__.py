"""The data pipeline on Spark (requirement NEW-7): from the journal to knowledge, and back into the workers.

In reading order::

    schema      what a row of the lake is
    source      Redis Streams as a Spark data source, batch and stream
    ingest      journal -> lake, exactly once
    lake        which parts of the lake count, and reading them
    session     one quiet Spark session, here or on a cluster

Needs the extra ``celery-poison[spark]`` and Java 17 or newer.
"""
