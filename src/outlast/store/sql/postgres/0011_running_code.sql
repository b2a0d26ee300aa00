-- Jobs that have ended while their code still runs: they keep their worker until that code has ended.
create index outlast_jobs_lingering on outlast_jobs (app, worker) where worker is not null and state in ('failed', 'cancelled');
