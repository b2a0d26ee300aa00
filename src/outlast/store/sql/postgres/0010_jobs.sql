-- Durable jobs. A job is owned by who has its id and its token; the token grows with every claim, rescue, cancellation and requeue.
create table outlast_jobs (
    id bigint generated always as identity primary key,
    app text not null,
    queue text not null,
    kind text not null,
    version integer not null,
    state text not null,
    priority integer not null,
    due bigint not null,
    payload bytea not null,
    unique_key text,
    enqueued bigint not null,
    token bigint not null default 0,
    worker text,
    claimed bigint,
    began bigint,
    attempts integer not null default 0,
    made integer not null default 0,
    crashes integer not null default 0,
    previous bigint,
    snoozed bigint,
    wanted text,
    error text,
    error_type text,
    error_class text,
    stop_reason text,
    result bytea,
    ended bigint,
    unique_until bigint,
    letter text
) with (
    fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0
);
-- The states are literals: with a parameter in its place no planner could use these indexes.
create index outlast_jobs_ready on outlast_jobs (app, queue, priority desc, id) where state = 'ready';
create index outlast_jobs_waiting on outlast_jobs (app, due) where state = 'waiting';
create index outlast_jobs_alone on outlast_jobs (app, queue, id) where state = 'alone';
create index outlast_jobs_owned on outlast_jobs (app, worker) where state in ('processing', 'held');
create unique index outlast_jobs_unique on outlast_jobs (app, kind, unique_key)
    where unique_key is not null and state in ('ready', 'waiting', 'alone', 'held', 'processing', 'succeeded');
create index outlast_jobs_ended on outlast_jobs (app, state, ended) where state in ('succeeded', 'failed', 'cancelled');

-- One row when an attempt has ended, never changed.
create table outlast_job_attempts (
    job bigint not null,
    number integer not null,
    token bigint not null,
    worker text,
    started bigint not null,
    took bigint not null,
    outcome text not null,
    error_class text,
    error_type text,
    error text,
    stop_reason text,
    next_run bigint,
    primary key (job, number)
);

create table outlast_queues (
    app text not null,
    queue text not null,
    paused boolean not null default false,
    primary key (app, queue)
);

-- By which a store is known, from whatever connection.
create table outlast_store (
    id text not null primary key
);
insert into outlast_store (id) values (md5(random()::text || clock_timestamp()::text) || md5(random()::text));
