"""
Durable jobs: functions whose calls are kept in the store until a worker has done them.

    job           Job, the door: a function, its settings, its arguments as a payload and back
    transactions  enqueues in the caller's own transaction, on the store's own database
    handle        JobHandle: what is on record of one job; its attempts, its result, its errors
    queue         Jobs: what operators do with them
    onrecord      what the code of a job puts on record while it runs: steps, artifacts
    upkeep        the thread that sweeps; neighbours: other processes of this machine whose end lets it sweep early
    cron          when a schedule is due, and what follows (pure); schedules: the thread that does it
"""
