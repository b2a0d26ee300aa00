-- How many items a replay has brought into another sink than the run's own, by the name of that sink, as JSON.
alter table outlast_runs add column elsewhere text;
