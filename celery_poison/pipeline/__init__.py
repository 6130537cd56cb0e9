"""The data pipeline on Spark (requirement NEW-7): from the journal to knowledge, and back into the workers.

In reading order::

    schema      what a row of the lake is
    session     one quiet Spark session, here or on a cluster
    sink        Spark's tasks write files, and what they tell of them
    lake        Delta tables: whose, how far, which version
    ingest      journal -> lake, each entry once
    tables      pure functions from DataFrame to DataFrame
    derived     the tables of a lake, kept up to date by what is new
    maintain    compaction, vacuum, forgetting, going back
    blame       who is guilty, who is suspected
    model       one regression of deaths over all dimensions
    backtest    what other policies would have cost; replay: one history under one of them
    report      a page of it all
    publish     block rules, proposed to a person; what the commands print is in ``cli``

Needs the extra ``celery-poison[spark]`` and Java 17 or newer.
"""
