-- When a job was due for the first time, or again after a requeue by hand: what it was asked to wait is no part of its time to success.
alter table outlast_jobs add column first_due integer;
