"""
Durable jobs: functions whose calls are kept in the store until a worker has done them.

    job           Job, the door: a function, its settings, its arguments as a payload and back; places: where a function is
    transactions  enqueues in the caller's own transaction, on the store's own database
    handle        JobHandle: what is on record of one job; its attempts, its result, its errors
    queue         Jobs: what operators do with them
    doors         how a worker is made and driven; worker: it claims, runs, records, gives back
    tenure        one registration of a worker: its lease, its turns at the store; waking: how it hears of new jobs
    running       one attempt of a job; inside: threads beside it; outcome: what follows it (pure); telling: its events
    onrecord      what the code of a job puts on record while it runs: steps, what undoes them, artifacts
    undoing       what a worker does for jobs that have failed for good and have something to undo
    upkeep        the thread that sweeps; neighbours: other processes of this machine whose end lets it sweep early
    hanging       a worker whose event loop hangs
    cron          when a schedule is due, and what follows (pure); schedules: the thread that does it
    own           jobs of Outlast's own; inline: jobs in tests
"""
