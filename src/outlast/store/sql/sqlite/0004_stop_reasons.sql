-- Why there was no further attempt, and which problem an item without a dead letter has. Rows from before have neither. The names are none
-- that an older program could mean by a column of attempts.

alter table outlast_attempts add column stop_reason text;
alter table outlast_items add column stop_reason text;
alter table outlast_items add column fingerprint text;
alter table outlast_items add column failure_class text;
alter table outlast_items add column failure_type text;
alter table outlast_dead_letters add column stop_reason text;
