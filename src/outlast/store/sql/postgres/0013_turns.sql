-- A worker's turn in one statement, for the usual case that whatever has ended has succeeded. The server keeps its plans,
-- in each session for itself, so that a pooler of connections needs to know nothing of them: what is done here is what
-- store/turns.py does step by step. The first row has the number of ends that were written as its token, and no id; there
-- is none if the lease is not the newest. The others are the jobs that were claimed.
-- A turn that changed nothing does not wait for the disk: an idle worker looks every second and after each job, and could be
-- told of no other one meanwhile. The lock on the lease's row, of which nothing is left after the commit, is all that it writes.
create function outlast_turn(
    of_app text, of_worker text, of_lease bigint, label text, patience text, ahead bigint,
    ids bigint[], tokens bigint[], numbers integer[], starts bigint[], tooks bigint[], results bytea[], uniques bigint[],
    queues text[], rooms integer[], after_priority integer[], after_id bigint[], most integer,
    kinds text[], versions integer[]
) returns table (
    id bigint, kind text, version integer, queue text, priority integer, payload bytea, token bigint,
    attempts integer, made integer, crashes integer, previous bigint, snoozed bigint,
    enqueued bigint, began bigint, claimed bigint, error text, error_type text, error_class text
) language plpgsql as $$
#variable_conflict use_column
declare
    instant bigint;
    written bigint := 0;
    lettered bigint[];
    letters text[];
    room integer;
    picked tid[];
    came integer;
    changed boolean := cardinality(ids) > 0;
begin
    perform set_config('application_name', label, true), set_config('lock_timeout', patience, true),
        -- The plans look rows up by their keys, whatever a table's figures were when they were made.
        set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
        set_config('enable_bitmapscan', 'off', true), set_config('enable_hashjoin', 'off', true),
        set_config('enable_mergejoin', 'off', true), set_config('enable_sort', 'off', true);
    perform 1 from outlast_leases lease
        where lease.app = of_app and lease.kind = 'worker' and lease.key = of_worker and lease.token = of_lease
        for key share;
    if not found then
        return;
    end if;
    instant := (extract(epoch from clock_timestamp()) * 1000000)::bigint + ahead;
    if cardinality(ids) > 0 then
        with done as (
            update outlast_jobs job
            set state = 'succeeded', ended = instant, result = given.result, unique_until = instant + given.unique_for,
                worker = null, wanted = null, error = null, error_type = null, error_class = null, stop_reason = null
            from unnest(ids, tokens, numbers, starts, tooks, results, uniques)
                as given(id, token, number, started, took, result, unique_for)
            where job.id = given.id and job.token = given.token
                and job.app || '' = of_app and job.state || '' = 'processing'
            returning job.id, job.token, given.number, given.started, given.took, job.letter
        ), kept as (
            insert into outlast_job_attempts (job, number, token, worker, started, took, outcome)
            select done.id, done.number, done.token, of_worker, done.started, done.took, 'succeeded' from done
        )
        select count(*), array_agg(done.id) filter (where done.letter is not null),
            array_agg(done.letter) filter (where done.letter is not null)
        into written, lettered, letters from done;
        if letters is not null then
            update outlast_dead_letters letter
            set status = 'resolved', moved = instant, replays = letter.replays + 1, last_attempt = instant
            from unnest(lettered, letters) as given(job, id)
            where letter.app = of_app and letter.id = given.id
                and (letter.status = 'replaying' and letter.claimed_by = 'job ' || given.job or letter.status = 'open');
        end if;
    end if;
    if exists (select 1 from outlast_jobs job where job.app = of_app and job.state = 'waiting' and job.due <= instant) then
        with due as materialized (
            select job.id as number from outlast_jobs job
            where job.app = of_app and job.state = 'waiting' and job.due <= instant
            order by job.due limit 1000 for update skip locked
        )
        update outlast_jobs job set state = case when job.crashes >= 2 then 'alone' else 'ready' end
        from due where job.id = due.number and job.state || '' = 'waiting';
        changed := true;
    end if;
    token := written;
    return next;
    for nth in 1 .. cardinality(queues) loop
        room := least(rooms[nth], most);
        continue when room <= 0 or exists (
            select 1 from outlast_queues paused
            where paused.app = of_app and paused.queue = queues[nth] and paused.paused
        );
        if after_id[nth] is null then
            picked := array(
                select job.ctid from outlast_jobs job
                where job.app = of_app and job.queue = queues[nth] and job.state = 'ready'
                    and job.version <= versions[array_position(kinds, job.kind)]
                order by job.priority desc, job.id limit room for update skip locked
            );
        else
            picked := array(
                select job.ctid from outlast_jobs job
                where job.app = of_app and job.queue = queues[nth] and job.state = 'ready'
                    and job.priority = after_priority[nth] and job.id > after_id[nth]
                    and job.version <= versions[array_position(kinds, job.kind)]
                order by job.priority desc, job.id limit room for update skip locked
            );
        end if;
        return query update outlast_jobs job
            set state = 'processing', token = job.token + 1, worker = of_worker, claimed = instant,
                began = coalesce(job.began, instant), attempts = job.attempts + 1, made = job.made + 1
            from unnest(picked) as given(place) where job.ctid = given.place and job.state || '' = 'ready'
            returning job.id, job.kind, job.version, job.queue, job.priority, job.payload, job.token,
                job.attempts, job.made, job.crashes, job.previous, job.snoozed,
                job.enqueued, job.began, job.claimed, job.error, job.error_type, job.error_class;
        get diagnostics came = row_count;
        most := most - came;
        changed := changed or came > 0;
    end loop;
    if not changed then
        perform set_config('synchronous_commit', 'off', true);
    end if;
end
$$;
