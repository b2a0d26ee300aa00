-- What undoes a job, should it fail for good: registered by its code, in the order of `place`, and undone in the reverse order. One that
-- is `closed` belongs to a round that is over: its job was requeued since.
create table outlast_compensations (
    app text not null,
    job bigint not null,
    place integer not null,
    state text not null,
    closed boolean not null default false,
    call text not null,
    arguments bytea not null,
    fingerprint text not null,
    step text,
    attempt integer not null,
    registered bigint not null,
    attempts integer not null default 0,
    crashes integer not null default 0,
    unknown integer not null default 0,
    due bigint,
    previous bigint,
    began bigint,
    ended bigint,
    error text,
    error_type text,
    error_class text,
    stop_reason text,
    letter text,
    primary key (job, place)
);
create index outlast_compensations_open on outlast_compensations (app, job) where state in ('registered', 'due', 'running');

-- Steps and what undoes them are counted together: a step with a higher place than something that was undone may have used it.
alter table outlast_steps add column place integer;
