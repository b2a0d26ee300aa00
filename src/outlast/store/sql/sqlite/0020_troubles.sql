-- Attempts that did not succeed, by when they ended: alerts and metrics ask for those of the last hour. What succeeds is in none of these.
create index outlast_attempts_troubled on outlast_attempts (run, (started + took)) where outcome <> 'success';
create index outlast_job_attempts_troubled on outlast_job_attempts ((started + took)) where outcome in ('failed', 'timeout', 'crashed');
