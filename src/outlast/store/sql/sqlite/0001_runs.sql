-- Instants are microseconds since the epoch. Every table that people name things in carries the app, so that two of them never meet.

create table outlast_runs (
    number integer primary key autoincrement,
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
    started integer not null,
    finished integer,
    unique (app, pipeline, run_key)
);
create index outlast_runs_newest on outlast_runs (app, started, number);

-- Who may write for a shard. Apart from its progress, which a long batch keeps locked: a heartbeat must not wait for it.
create table outlast_shards (
    run integer not null,
    shard integer not null,
    token integer not null default 0,
    owner text not null default '',
    until integer not null default 0,
    ttl real not null default 0,
    primary key (run, shard)
) without rowid;

-- The row that every batch locks, checks the token of and advances. By shard and not by run: shards do not wait for each other.
create table outlast_progress (
    run integer not null,
    shard integer not null,
    token integer not null default 0,
    passes integer not null default 0,
    read integer not null default 0,
    sink_offset integer,
    exhausted integer not null default 0,
    succeeded integer not null default 0,
    skipped integer not null default 0,
    dlq integer not null default 0,
    failed integer not null default 0,
    degraded integer not null default 0,
    spent text not null default '{}',
    primary key (run, shard)
) without rowid;

-- No index on the keys: it would cost more than all the rest of writing an item.
create table outlast_items (
    run integer not null,
    seq integer not null,
    key text not null,
    status text not null,
    stage integer not null,
    attempts integer not null,
    degraded integer not null,
    reason text,
    warnings text,
    spent text,
    output blob,
    started integer not null,
    took integer not null,
    primary key (run, seq)
) without rowid;

create table outlast_attempts (
    run integer not null,
    seq integer not null,
    stage integer not null,
    pass integer not null,
    number integer not null,
    outcome text not null,
    started integer not null,
    took integer not null,
    error_class text,
    error_type text,
    error text,
    delay integer,
    spent text,
    primary key (run, seq, stage, pass, number)
) without rowid;

create table outlast_checkpoints (
    run integer not null,
    seq integer not null,
    stage integer not null,
    key text not null,
    version text not null,
    output blob not null,
    primary key (run, seq, stage)
);

create table outlast_dead_letters (
    id text not null primary key,
    app text not null,
    run text,
    seq integer,
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
    first_failed integer not null,
    last_attempt integer not null,
    created integer not null,
    moved integer not null,
    replays integer not null,
    reason text,
    metadata text not null,
    payload blob not null,
    original blob
);
create index outlast_dead_letters_newest on outlast_dead_letters (app, status, created, id);
create index outlast_dead_letters_place on outlast_dead_letters (app, status, pipeline, stage, created, id);
create index outlast_dead_letters_group on outlast_dead_letters
    (app, status, fingerprint, pipeline, stage, created, id, first_failed, last_attempt);
create index outlast_dead_letters_run on outlast_dead_letters
    (app, run, status, fingerprint, pipeline, stage, created, id, first_failed, last_attempt);

create table outlast_events (
    number integer primary key autoincrement,
    id text not null unique,
    app text not null,
    run text,
    name text not null,
    at integer not null,
    data text not null
);
create index outlast_events_run on outlast_events (run, number);
create index outlast_events_at on outlast_events (at);

-- What processes share under a name: circuits, limits.
create table outlast_states (
    app text not null,
    kind text not null,
    name text not null,
    version integer not null,
    data text not null,
    changed integer not null,
    primary key (app, kind, name)
) without rowid;
