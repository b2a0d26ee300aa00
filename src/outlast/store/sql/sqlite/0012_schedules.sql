-- Schedules of kinds of jobs, as they were declared last. The newest tick is on record with the job that was enqueued for
-- it, in one transaction: no tick has two.
create table outlast_schedules (
    app text not null,
    kind text not null,
    expression text not null,
    timezone text not null,
    missed text not null,
    declared integer not null,
    since integer not null,
    seen integer not null,
    tick integer,
    job integer,
    next integer,
    primary key (app, kind)
) without rowid;

-- What each worker serves: queues (none: all) and kinds with their versions, as JSON. Its key is that of its lease.
create table outlast_workers (
    app text not null,
    key text not null,
    queues text,
    kinds text not null,
    primary key (app, key)
) without rowid;
