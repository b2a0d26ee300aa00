-- Where a failed attempt was when it failed: the newest frames, redacted and bounded. None of attempts of older programs.
alter table outlast_job_attempts add column traceback text;
