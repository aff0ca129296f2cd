"""The line as stages of Ray Data, on the machines of a cluster.

    read -> render -> answer -> write        tasks, actors on CPUs, actors with an engine each, tasks

A run on Ray is a run of many shards (see `gemma4cli.shards`), each with a ledger of its own, so that nobody holds the
keys of all rows: the driver knows the shards alone. Rows pass from stage to stage through Ray's object store; Ray
schedules, holds back what is too fast, and does again what was lost with a machine.
"""
