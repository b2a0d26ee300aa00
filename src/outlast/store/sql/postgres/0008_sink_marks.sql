-- By what the sink is known again, beside how far it counts: another file of the same size is not taken for it.
alter table outlast_progress add column sink_mark text;
