-- How far the newest attempt of a job says it is, as JSON: done, total and a note. It counts as long as the job has this token.
create table outlast_job_progress (
    job bigint primary key,
    token bigint not null,
    value text not null
);
