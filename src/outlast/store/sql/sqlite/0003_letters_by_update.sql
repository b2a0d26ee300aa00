-- Dead letters in the order of their last change. The indexes by creation stay: that order is stable while somebody reads all of them.

create index outlast_dead_letters_updated on outlast_dead_letters (app, status, moved, id);
create index outlast_dead_letters_place_updated on outlast_dead_letters (app, status, pipeline, stage, moved, id);
create index outlast_dead_letters_group_updated on outlast_dead_letters (app, status, fingerprint, moved, id);
create index outlast_dead_letters_run_updated on outlast_dead_letters (app, run, status, moved, id);
