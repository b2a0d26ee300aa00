-- What operators have done to jobs: when, who and why. A job that is no longer kept has none of these either.
create table outlast_job_changes (
    id integer primary key autoincrement,
    job integer not null,
    at integer not null,
    change text not null,
    by_whom text not null,
    reason text not null
);
create index outlast_job_changes_job on outlast_job_changes (job, id);
