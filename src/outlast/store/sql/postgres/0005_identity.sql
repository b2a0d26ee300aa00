-- What makes a run itself (sink, item key, code of its stages), as JSON: another one at a resume is refused or told.

alter table outlast_runs add column identity text;
