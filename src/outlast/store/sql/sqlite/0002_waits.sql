-- What an item waited for, in microseconds by reason: before an attempt, and after the last one on record.

alter table outlast_attempts add column waits text;
alter table outlast_items add column waits text;
