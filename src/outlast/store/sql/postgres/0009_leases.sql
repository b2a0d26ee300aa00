-- Who may work on what: leases of any kind. Those on the shards of runs stay in outlast_shards, where older programs look for them.
create table outlast_leases (
    app text not null,
    kind text not null,
    key text not null,
    token bigint not null default 0,
    owner text not null default '',
    until bigint not null default 0,
    ttl double precision not null default 0,
    primary key (app, kind, key)
);
