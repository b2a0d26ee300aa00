-- What one owner (a job, by its id; a run, by its number) has done and need not do again: the result of each step.
create table outlast_steps (
    kind text not null,
    owner bigint not null,
    name text not null,
    arguments text not null,
    payload text not null,
    result bytea not null,
    token bigint not null,
    attempt integer not null,
    ended bigint not null,
    unique (kind, owner, name)
);

-- What code has kept for people to look at, such as the raw answer of a model.
create table outlast_artifacts (
    kind text not null,
    owner bigint not null,
    attempt integer not null,
    name text not null,
    data bytea not null,
    size bigint not null,
    cut boolean not null,
    kept bigint not null,
    unique (kind, owner, attempt, name)
);

-- Work that is done once for a key, whoever asks: begun by a holder under a lease, or done, with what came of it.
create table outlast_idempotency (
    app text not null,
    scope text not null,
    key text not null,
    config text not null,
    state text not null,
    holder text not null,
    lease_kind text not null,
    lease_key text not null,
    lease_token bigint not null,
    token bigint not null,
    attempts integer not null,
    outputs bytea,
    changed bigint not null,
    expires bigint,
    primary key (app, scope, key)
);
create index outlast_idempotency_expires on outlast_idempotency (app, expires) where expires is not null;

-- Unique keys of jobs that have succeeded, and are to be held when the job itself is no longer kept.
create table outlast_unique_keys (
    app text not null,
    kind text not null,
    unique_key text not null,
    job bigint not null,
    ended bigint not null,
    until bigint not null,
    made bigint not null,
    primary key (app, kind, unique_key)
);
create index outlast_unique_keys_job on outlast_unique_keys (app, job);
