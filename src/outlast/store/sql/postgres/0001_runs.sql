-- Instants are microseconds since the epoch. Every table that people name things in carries the app, so that two of them never meet.

create table outlast_runs (
    number bigint generated always as identity primary key,
    id text not null unique,
    app text not null,
    pipeline text not null,
    run_key text not null,
    kind text not null,
    status text not null,
    reason text,
    why text not null,
    stages text not null,
    wanted text,
    sink text,
    started bigint not null,
    finished bigint,
    unique (app, pipeline, run_key)
);
create index outlast_runs_newest on outlast_runs (app, started, number);

-- Who may write for a shard. Apart from its progress, which a long batch keeps locked: a heartbeat must not wait for it.
create table outlast_shards (
    run bigint not null,
    shard integer not null,
    token bigint not null default 0,
    owner text not null default '',
    until bigint not null default 0,
    ttl double precision not null default 0,
    primary key (run, shard)
);

-- The row that every batch locks, checks the token of and advances. By shard and not by run: shards do not wait for each other.
create table outlast_progress (
    run bigint not null,
    shard integer not null,
    token bigint not null default 0,
    passes integer not null default 0,
    read bigint not null default 0,
    sink_offset bigint,
    exhausted boolean not null default false,
    succeeded bigint not null default 0,
    skipped bigint not null default 0,
    dlq bigint not null default 0,
    failed bigint not null default 0,
    degraded bigint not null default 0,
    spent text not null default '{}',
    primary key (run, shard)
);

-- No index on the keys: it would cost more than all the rest of writing an item.
create table outlast_items (
    run bigint not null,
    seq bigint not null,
    key text not null,
    status text not null,
    stage smallint not null,
    attempts integer not null,
    degraded boolean not null,
    reason text,
    warnings text,
    spent text,
    output bytea,
    started bigint not null,
    took bigint not null,
    primary key (run, seq)
);

create table outlast_attempts (
    run bigint not null,
    seq bigint not null,
    stage smallint not null,
    pass integer not null,
    number integer not null,
    outcome text not null,
    started bigint not null,
    took bigint not null,
    error_class text,
    error_type text,
    error text,
    delay bigint,
    spent text,
    primary key (run, seq, stage, pass, number)
);

create table outlast_checkpoints (
    run bigint not null,
    seq bigint not null,
    stage smallint not null,
    key text not null,
    version text not null,
    output bytea not null,
    primary key (run, seq, stage)
);

create table outlast_dead_letters (
    id text not null primary key,
    app text not null,
    run text,
    seq bigint,
    pipeline text not null,
    stage text not null,
    item_key text not null,
    kind text not null,
    status text not null,
    fingerprint text not null,
    error text not null,
    error_type text not null,
    error_class text not null,
    tier text not null,
    attempts integer not null,
    first_failed bigint not null,
    last_attempt bigint not null,
    created bigint not null,
    moved bigint not null,
    replays integer not null,
    reason text,
    metadata text not null,
    payload bytea not null,
    original bytea
);
create index outlast_dead_letters_newest on outlast_dead_letters (app, status, created, id);
create index outlast_dead_letters_place on outlast_dead_letters (app, status, pipeline, stage, created, id);
create index outlast_dead_letters_group on outlast_dead_letters
    (app, status, fingerprint, pipeline, stage, created, id, first_failed, last_attempt);
create index outlast_dead_letters_run on outlast_dead_letters
    (app, run, status, fingerprint, pipeline, stage, created, id, first_failed, last_attempt);

create table outlast_events (
    number bigint generated always as identity primary key,
    id text not null unique,
    app text not null,
    run text,
    name text not null,
    at bigint not null,
    data text not null
);
create index outlast_events_run on outlast_events (run, number);
create index outlast_events_at on outlast_events (at);

-- What processes share under a name: circuits, limits.
create table outlast_states (
    app text not null,
    kind text not null,
    name text not null,
    version bigint not null,
    data text not null,
    changed bigint not null,
    primary key (app, kind, name)
);
