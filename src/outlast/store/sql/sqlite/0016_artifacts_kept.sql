-- What was kept of late is counted.
create index outlast_artifacts_kept on outlast_artifacts (kept) where kind = 'job';
