-- Whose a dead letter is while it is replayed: the id of the replay's run. That run's lease says whether somebody works on it.
alter table outlast_dead_letters add column claimed_by text;
create index outlast_dead_letters_claims on outlast_dead_letters (app, coalesce(claimed_by, reason, '')) where status = 'replaying';

-- The dead letters of a replay in their order; `seq` is the number of the item that each becomes.
create table outlast_replays (
    run bigint not null,
    seq bigint not null,
    letter text not null,
    primary key (run, seq)
);

-- How the sink is opened again, and the replay that has opened it and not finished with it.
alter table outlast_runs add column sink_at text;
alter table outlast_runs add column replayed_by text;
