CREATE FUNCTION public.outlast_turn(of_app text, of_worker text, of_lease bigint, label text, patience text, ahead bigint, ids bigint[], tokens bigint[], numbers integer[], starts bigint[], tooks bigint[], results bytea[], uniques bigint[], queues text[], rooms integer[], after_priority integer[], after_id bigint[], most integer, kinds text[], versions integer[]) RETURNS TABLE(id bigint, kind text, version integer, queue text, priority integer, payload bytea, token bigint, attempts integer, made integer, crashes integer, previous bigint, snoozed bigint, enqueued bigint, began bigint, claimed bigint, error text, error_type text, error_class text)
    LANGUAGE plpgsql
    AS $$
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
CREATE TABLE public.outlast_artifacts (
    kind text NOT NULL,
    owner bigint NOT NULL,
    attempt integer NOT NULL,
    name text NOT NULL,
    data bytea NOT NULL,
    size bigint NOT NULL,
    cut boolean NOT NULL,
    kept bigint NOT NULL
);
CREATE TABLE public.outlast_attempts (
    run bigint NOT NULL,
    seq bigint NOT NULL,
    stage smallint NOT NULL,
    pass integer NOT NULL,
    number integer NOT NULL,
    outcome text NOT NULL,
    started bigint NOT NULL,
    took bigint NOT NULL,
    error_class text,
    error_type text,
    error text,
    delay bigint,
    spent text,
    waits text,
    stop_reason text
);
CREATE TABLE public.outlast_checkpoints (
    run bigint NOT NULL,
    seq bigint NOT NULL,
    stage smallint NOT NULL,
    key text NOT NULL,
    version text NOT NULL,
    output bytea NOT NULL
);
CREATE TABLE public.outlast_dead_letters (
    id text NOT NULL,
    app text NOT NULL,
    run text,
    seq bigint,
    pipeline text NOT NULL,
    stage text NOT NULL,
    item_key text NOT NULL,
    kind text NOT NULL,
    status text NOT NULL,
    fingerprint text NOT NULL,
    error text NOT NULL,
    error_type text NOT NULL,
    error_class text NOT NULL,
    tier text NOT NULL,
    attempts integer NOT NULL,
    first_failed bigint NOT NULL,
    last_attempt bigint NOT NULL,
    created bigint NOT NULL,
    moved bigint NOT NULL,
    replays integer NOT NULL,
    reason text,
    metadata text NOT NULL,
    payload bytea NOT NULL,
    original bytea,
    stop_reason text,
    claimed_by text
);
CREATE TABLE public.outlast_events (
    number bigint NOT NULL,
    id text NOT NULL,
    app text NOT NULL,
    run text,
    name text NOT NULL,
    at bigint NOT NULL,
    data text NOT NULL
);
ALTER TABLE public.outlast_events ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.outlast_events_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.outlast_idempotency (
    app text NOT NULL,
    scope text NOT NULL,
    key text NOT NULL,
    config text NOT NULL,
    state text NOT NULL,
    holder text NOT NULL,
    lease_kind text NOT NULL,
    lease_key text NOT NULL,
    lease_token bigint NOT NULL,
    token bigint NOT NULL,
    attempts integer NOT NULL,
    outputs bytea,
    changed bigint NOT NULL,
    expires bigint
);
CREATE TABLE public.outlast_items (
    run bigint NOT NULL,
    seq bigint NOT NULL,
    key text NOT NULL,
    status text NOT NULL,
    stage smallint NOT NULL,
    attempts integer NOT NULL,
    degraded boolean NOT NULL,
    reason text,
    warnings text,
    spent text,
    output bytea,
    started bigint NOT NULL,
    took bigint NOT NULL,
    waits text,
    stop_reason text,
    fingerprint text,
    failure_class text,
    failure_type text
);
CREATE TABLE public.outlast_job_attempts (
    job bigint NOT NULL,
    number integer NOT NULL,
    token bigint NOT NULL,
    worker text,
    started bigint NOT NULL,
    took bigint NOT NULL,
    outcome text NOT NULL,
    error_class text,
    error_type text,
    error text,
    stop_reason text,
    next_run bigint,
    traceback text
);
CREATE TABLE public.outlast_job_changes (
    id bigint NOT NULL,
    job bigint NOT NULL,
    at bigint NOT NULL,
    change text NOT NULL,
    by_whom text NOT NULL,
    reason text NOT NULL
);
ALTER TABLE public.outlast_job_changes ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.outlast_job_changes_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.outlast_jobs (
    id bigint NOT NULL,
    app text NOT NULL,
    queue text NOT NULL,
    kind text NOT NULL,
    version integer NOT NULL,
    state text NOT NULL,
    priority integer NOT NULL,
    due bigint NOT NULL,
    payload bytea NOT NULL,
    unique_key text,
    enqueued bigint NOT NULL,
    token bigint DEFAULT 0 NOT NULL,
    worker text,
    claimed bigint,
    began bigint,
    attempts integer DEFAULT 0 NOT NULL,
    made integer DEFAULT 0 NOT NULL,
    crashes integer DEFAULT 0 NOT NULL,
    previous bigint,
    snoozed bigint,
    wanted text,
    error text,
    error_type text,
    error_class text,
    stop_reason text,
    result bytea,
    ended bigint,
    unique_until bigint,
    letter text
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='1000', autovacuum_analyze_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');
ALTER TABLE public.outlast_jobs ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.outlast_jobs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.outlast_leases (
    app text NOT NULL,
    kind text NOT NULL,
    key text NOT NULL,
    token bigint DEFAULT 0 NOT NULL,
    owner text DEFAULT ''::text NOT NULL,
    until bigint DEFAULT 0 NOT NULL,
    ttl double precision DEFAULT 0 NOT NULL
);
CREATE TABLE public.outlast_progress (
    run bigint NOT NULL,
    shard integer NOT NULL,
    token bigint DEFAULT 0 NOT NULL,
    passes integer DEFAULT 0 NOT NULL,
    read bigint DEFAULT 0 NOT NULL,
    sink_offset bigint,
    exhausted boolean DEFAULT false NOT NULL,
    succeeded bigint DEFAULT 0 NOT NULL,
    skipped bigint DEFAULT 0 NOT NULL,
    dlq bigint DEFAULT 0 NOT NULL,
    failed bigint DEFAULT 0 NOT NULL,
    degraded bigint DEFAULT 0 NOT NULL,
    spent text DEFAULT '{}'::text NOT NULL,
    sink_mark text
);
CREATE TABLE public.outlast_queues (
    app text NOT NULL,
    queue text NOT NULL,
    paused boolean DEFAULT false NOT NULL
);
CREATE TABLE public.outlast_replays (
    run bigint NOT NULL,
    seq bigint NOT NULL,
    letter text NOT NULL
);
CREATE TABLE public.outlast_runs (
    number bigint NOT NULL,
    id text NOT NULL,
    app text NOT NULL,
    pipeline text NOT NULL,
    run_key text NOT NULL,
    kind text NOT NULL,
    status text NOT NULL,
    reason text,
    why text NOT NULL,
    stages text NOT NULL,
    wanted text,
    sink text,
    started bigint NOT NULL,
    finished bigint,
    identity text,
    sink_at text,
    replayed_by text,
    elsewhere text
);
ALTER TABLE public.outlast_runs ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.outlast_runs_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.outlast_schedules (
    app text NOT NULL,
    kind text NOT NULL,
    expression text NOT NULL,
    timezone text NOT NULL,
    missed text NOT NULL,
    declared bigint NOT NULL,
    since bigint NOT NULL,
    seen bigint NOT NULL,
    tick bigint,
    job bigint,
    next bigint
);
CREATE TABLE public.outlast_schema (
    version integer NOT NULL
);
CREATE TABLE public.outlast_shards (
    run bigint NOT NULL,
    shard integer NOT NULL,
    token bigint DEFAULT 0 NOT NULL,
    owner text DEFAULT ''::text NOT NULL,
    until bigint DEFAULT 0 NOT NULL,
    ttl double precision DEFAULT 0 NOT NULL
);
CREATE TABLE public.outlast_states (
    app text NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    version bigint NOT NULL,
    data text NOT NULL,
    changed bigint NOT NULL
);
CREATE TABLE public.outlast_steps (
    kind text NOT NULL,
    owner bigint NOT NULL,
    name text NOT NULL,
    arguments text NOT NULL,
    payload text NOT NULL,
    result bytea NOT NULL,
    token bigint NOT NULL,
    attempt integer NOT NULL,
    ended bigint NOT NULL
);
CREATE TABLE public.outlast_store (
    id text NOT NULL
);
CREATE TABLE public.outlast_unique_keys (
    app text NOT NULL,
    kind text NOT NULL,
    unique_key text NOT NULL,
    job bigint NOT NULL,
    ended bigint NOT NULL,
    until bigint NOT NULL,
    made bigint NOT NULL
);
CREATE TABLE public.outlast_workers (
    app text NOT NULL,
    key text NOT NULL,
    queues text,
    kinds text NOT NULL
);
INSERT INTO public.outlast_attempts VALUES (1, 0, 0, 1, 1, 'success', 1794891692696075, 11, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (1, 1, 0, 1, 1, 'success', 1794891692696125, 3, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (1, 2, 0, 1, 1, 'success', 1794891692696138, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (1, 0, 1, 1, 1, 'success', 1794891692716462, 16, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":20118}', NULL);
INSERT INTO public.outlast_attempts VALUES (1, 1, 1, 1, 1, 'success', 1794891692716594, 7, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":20053}', NULL);
INSERT INTO public.outlast_attempts VALUES (1, 2, 1, 1, 1, 'success', 1794891692716625, 3, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":20039}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 0, 0, 1, 1, 'success', 1794891694350059, 12, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 1, 0, 1, 1, 'success', 1794891694350105, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 2, 0, 1, 1, 'success', 1794891694350114, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 3, 0, 1, 1, 'success', 1794891694350121, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 4, 0, 1, 1, 'success', 1794891694350127, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 5, 0, 1, 1, 'success', 1794891694350133, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 6, 0, 1, 1, 'success', 1794891694350139, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 0, 1, 1, 1, 'success', 1794891694369326, 13, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":18972}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 1, 1, 1, 1, 'retrying', 1794891694369494, 23, 'connection_reset', 'ConnectionResetError', 'no label for 4', 10000, NULL, '{"checkpoint":18909}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 1, 1, 1, 2, 'failed', 1794891694383886, 31, 'connection_reset', 'ConnectionResetError', 'no label for 4', NULL, NULL, '{"retry":10648}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (2, 3, 1, 1, 1, 'retrying', 1794891694373649, 8, 'connection_reset', 'ConnectionResetError', 'no label for 6', 10000, NULL, '{"checkpoint":18891}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 3, 1, 1, 2, 'failed', 1794891694389081, 29, 'connection_reset', 'ConnectionResetError', 'no label for 6', NULL, NULL, '{"retry":11608}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (2, 2, 1, 1, 1, 'retrying', 1794891694373343, 19, 'connection_reset', 'ConnectionResetError', 'no label for 5', 10000, NULL, '{"checkpoint":18898}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 2, 1, 1, 2, 'failed', 1794891694389752, 7, 'connection_reset', 'ConnectionResetError', 'no label for 5', NULL, NULL, '{"retry":10193}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (2, 4, 1, 1, 1, 'retrying', 1794891694373726, 5, 'connection_reset', 'ConnectionResetError', 'no label for 7', 10000, NULL, '{"checkpoint":18886}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 4, 1, 1, 2, 'failed', 1794891694390093, 6, 'connection_reset', 'ConnectionResetError', 'no label for 7', NULL, NULL, '{"retry":11605}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (2, 5, 1, 1, 1, 'retrying', 1794891694373775, 4, 'connection_reset', 'ConnectionResetError', 'no label for 8', 10000, NULL, '{"checkpoint":18881}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 5, 1, 1, 2, 'failed', 1794891694390404, 6, 'connection_reset', 'ConnectionResetError', 'no label for 8', NULL, NULL, '{"retry":11603}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (2, 6, 1, 1, 1, 'retrying', 1794891694373817, 4, 'connection_reset', 'ConnectionResetError', 'no label for 9', 10000, NULL, '{"checkpoint":18876}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 6, 1, 1, 2, 'failed', 1794891694390798, 7, 'connection_reset', 'ConnectionResetError', 'no label for 9', NULL, NULL, '{"retry":11602}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (3, 0, 1, 1, 1, 'success', 1794891694543099, 17, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (4, 0, 0, 1, 1, 'success', 1794891696809425, 18, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (4, 0, 1, 1, 1, 'failed', 1794891696809458, 25, 'data_error', 'ValueError', 'the model refuses', NULL, NULL, NULL, 'permanent');
INSERT INTO public.outlast_attempts VALUES (5, 0, 0, 1, 1, 'failed', 1794891698637271, 38, 'data_error', 'ValueError', 'too heavy', NULL, NULL, NULL, 'permanent');
INSERT INTO public.outlast_attempts VALUES (7, 0, 0, 1, 1, 'success', 1794891700920192, 6, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 1, 0, 1, 1, 'success', 1794891700920221, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 2, 0, 1, 1, 'success', 1794891700920233, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 3, 0, 1, 1, 'success', 1794891700920239, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 4, 0, 1, 1, 'success', 1794891700920245, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 5, 0, 1, 1, 'success', 1794891700920251, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 6, 0, 1, 1, 'success', 1794891700920257, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 7, 0, 1, 1, 'success', 1794891700920270, 4, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 8, 0, 1, 1, 'success', 1794891700920282, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 9, 0, 1, 1, 'success', 1794891700920290, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 10, 0, 1, 1, 'success', 1794891700920295, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 11, 0, 1, 1, 'success', 1794891700920299, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 0, 1, 1, 1, 'success', 1794891700923670, 7, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":3214}', NULL);
INSERT INTO public.outlast_attempts VALUES (7, 1, 1, 1, 1, 'success', 1794891700923714, 2, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":3170}', NULL);
INSERT INTO public.outlast_attempts VALUES (7, 2, 1, 1, 1, 'failed', 1794891700923726, 20, 'data_error', 'ValueError', 'no label for 2', NULL, NULL, '{"checkpoint":3160}', 'permanent');
INSERT INTO public.outlast_attempts VALUES (7, 3, 1, 1, 1, 'success', 1794891700924493, 3, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":3153}', NULL);
INSERT INTO public.outlast_attempts VALUES (7, 4, 1, 1, 1, 'success', 1794891700924589, 3, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":3148}', NULL);
INSERT INTO public.outlast_attempts VALUES (7, 5, 1, 1, 1, 'success', 1794891700924650, 2, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":3143}', NULL);
INSERT INTO public.outlast_attempts VALUES (7, 6, 1, 1, 1, 'success', 1794891700924697, 1, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":3138}', NULL);
INSERT INTO public.outlast_checkpoints VALUES (1, 0, 0, '0', '1', '\x7b2276223a312c2264223a7b226964223a302c22776f726473223a5b22726576696577222c2230225d7d7d');
INSERT INTO public.outlast_checkpoints VALUES (1, 1, 0, '1', '1', '\x7b2276223a312c2264223a7b226964223a312c22776f726473223a5b22726576696577222c2231225d7d7d');
INSERT INTO public.outlast_checkpoints VALUES (1, 2, 0, '2', '1', '\x7b2276223a312c2264223a7b226964223a322c22776f726473223a5b22726576696577222c2232225d7d7d');
INSERT INTO public.outlast_checkpoints VALUES (2, 0, 0, '3', '1', '\x7b2276223a312c2264223a7b226964223a332c22776f726473223a5b22726576696577222c2233225d7d7d');
INSERT INTO public.outlast_checkpoints VALUES (2, 1, 0, '4', '1', '\x7b2276223a312c2264223a7b226964223a342c22776f726473223a5b22726576696577222c2234225d7d7d');
INSERT INTO public.outlast_checkpoints VALUES (2, 2, 0, '5', '1', '\x7b2276223a312c2264223a7b226964223a352c22776f726473223a5b22726576696577222c2235225d7d7d');
INSERT INTO public.outlast_checkpoints VALUES (2, 3, 0, '6', '1', '\x7b2276223a312c2264223a7b226964223a362c22776f726473223a5b22726576696577222c2236225d7d7d');
INSERT INTO public.outlast_checkpoints VALUES (2, 4, 0, '7', '1', '\x7b2276223a312c2264223a7b226964223a372c22776f726473223a5b22726576696577222c2237225d7d7d');
INSERT INTO public.outlast_checkpoints VALUES (2, 5, 0, '8', '1', '\x7b2276223a312c2264223a7b226964223a382c22776f726473223a5b22726576696577222c2238225d7d7d');
INSERT INTO public.outlast_checkpoints VALUES (2, 6, 0, '9', '1', '\x7b2276223a312c2264223a7b226964223a392c22776f726473223a5b22726576696577222c2239225d7d7d');
INSERT INTO public.outlast_checkpoints VALUES (7, 0, 0, '0', '1', '\x7b2276223a312c2264223a7b226964223a302c22776f726473223a5b22726576696577222c2230225d7d7d');
INSERT INTO public.outlast_checkpoints VALUES (7, 1, 0, '1', '1', '\x7b2276223a312c2264223a7b226964223a312c22776f726473223a5b22726576696577222c2231225d7d7d');
INSERT INTO public.outlast_checkpoints VALUES (7, 2, 0, '2', '1', '\x7b2276223a312c2264223a7b226964223a322c22776f726473223a5b22726576696577222c2232225d7d7d');
INSERT INTO public.outlast_checkpoints VALUES (7, 3, 0, '3', '1', '\x7b2276223a312c2264223a7b226964223a332c22776f726473223a5b22726576696577222c2233225d7d7d');
INSERT INTO public.outlast_checkpoints VALUES (7, 4, 0, '4', '1', '\x7b2276223a312c2264223a7b226964223a342c22776f726473223a5b22726576696577222c2234225d7d7d');
INSERT INTO public.outlast_checkpoints VALUES (7, 5, 0, '5', '1', '\x7b2276223a312c2264223a7b226964223a352c22776f726473223a5b22726576696577222c2235225d7d7d');
INSERT INTO public.outlast_checkpoints VALUES (7, 6, 0, '6', '1', '\x7b2276223a312c2264223a7b226964223a362c22776f726473223a5b22726576696577222c2236225d7d7d');
INSERT INTO public.outlast_checkpoints VALUES (7, 7, 0, '7', '1', '\x7b2276223a312c2264223a7b226964223a372c22776f726473223a5b22726576696577222c2237225d7d7d');
INSERT INTO public.outlast_checkpoints VALUES (7, 8, 0, '8', '1', '\x7b2276223a312c2264223a7b226964223a382c22776f726473223a5b22726576696577222c2238225d7d7d');
INSERT INTO public.outlast_checkpoints VALUES (7, 9, 0, '9', '1', '\x7b2276223a312c2264223a7b226964223a392c22776f726473223a5b22726576696577222c2239225d7d7d');
INSERT INTO public.outlast_checkpoints VALUES (7, 10, 0, '10', '1', '\x7b2276223a312c2264223a7b226964223a31302c22776f726473223a5b22726576696577222c223130225d7d7d');
INSERT INTO public.outlast_checkpoints VALUES (7, 11, 0, '11', '1', '\x7b2276223a312c2264223a7b226964223a31312c22776f726473223a5b22726576696577222c223131225d7d7d');
INSERT INTO public.outlast_dead_letters VALUES ('401a9d2b1616ed8e2a46196fefb56c67', 'shop', '22ba9bcd0ab0ad981064302045cce7c1', 4, 'nightly', 'label', '7', 'item', 'open', '27a3100c86472090', 'no label for 7', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794891694373731, 1794891694390355, 1794891694390355, 1794891694390355, 0, NULL, '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo3LCJ0ZXh0IjoicmV2aWV3IDcifX0="}', '\x7b2276223a312c2264223a7b226964223a372c22776f726473223a5b22726576696577222c2237225d7d7d', NULL, 'exhausted', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('c05ab12633e25975f49ad9e8364da57d', 'shop', '22ba9bcd0ab0ad981064302045cce7c1', 5, 'nightly', 'label', '8', 'item', 'open', '27a3100c86472090', 'no label for 8', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794891694373779, 1794891694390745, 1794891694390745, 1794891694390745, 0, NULL, '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo4LCJ0ZXh0IjoicmV2aWV3IDgifX0="}', '\x7b2276223a312c2264223a7b226964223a382c22776f726473223a5b22726576696577222c2238225d7d7d', NULL, 'exhausted', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('8cb5cc9bb80817bcf81c52a36797b56b', 'shop', '22ba9bcd0ab0ad981064302045cce7c1', 6, 'nightly', 'label', '9', 'item', 'open', '27a3100c86472090', 'no label for 9', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794891694373822, 1794891694391069, 1794891694391069, 1794891694391069, 0, NULL, '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo5LCJ0ZXh0IjoicmV2aWV3IDkifX0="}', '\x7b2276223a312c2264223a7b226964223a392c22776f726473223a5b22726576696577222c2239225d7d7d', NULL, 'exhausted', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('aa8b23838b74f2262cf5ad77f1195c8c', 'shop', '22ba9bcd0ab0ad981064302045cce7c1', 1, 'nightly', 'label', '4', 'item', 'archived', '27a3100c86472090', 'no label for 4', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794891694369518, 1794891694385365, 1794891694385365, 1794891694438128, 0, 'not ours', '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo0LCJ0ZXh0IjoicmV2aWV3IDQifX0="}', '\x7b2276223a312c2264223a7b226964223a342c22776f726473223a5b22726576696577222c2234225d7d7d', NULL, 'exhausted', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('aed91f232bbc8273f864194d84d9615e', 'shop', '22ba9bcd0ab0ad981064302045cce7c1', 2, 'nightly', 'label', '5', 'item', 'resolved', '27a3100c86472090', 'no label for 5', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794891694373362, 1794891694563066, 1794891694390040, 1794891694563066, 1, 'replayed by replay-f4c6f99f97e5', '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo1LCJ0ZXh0IjoicmV2aWV3IDUifX0="}', '\x7b2276223a312c2264223a7b226964223a352c22776f726473223a5b22726576696577222c2235225d7d7d', NULL, 'exhausted', '21ead0654aa351abcb8fc268ab0103a0');
INSERT INTO public.outlast_dead_letters VALUES ('a12ff3ca63463fc5c9def7bcf8a4af47', 'shop', 'f716bece1a1b4459518922b5ea595676', 0, 'pictures', 'measure', '1', 'item', 'open', '80eb484c8f680978', 'the model refuses', 'ValueError', 'data_error', 'data', 1, 1794891696809484, 1794891696810442, 1794891696810442, 1794891696810442, 0, NULL, '{"source": "eyJ2IjoxLCJkIjoxfQ==", "unstored": "it is a value of type Picture", "begins": "load", "warnings": ["the input of measure is not stored: it is a value of type Picture; a replay begins at load"]}', '\x7b2276223a312c2264223a317d', NULL, 'permanent', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('38df73ae13edc57aecc541fe5d7880e4', 'shop', 'a8cb843ab79b09ce97822994a4387b48', 0, 'things', 'weigh', 'a', 'item', 'open', '0e7039d5a3e23989', 'too heavy', 'ValueError', 'data_error', 'data', 1, 1794891698637310, 1794891698638363, 1794891698638363, 1794891698638363, 0, NULL, '{"unstored": "it is a value of type Picture", "begins": null, "warnings": ["the input of weigh is not stored: it is a value of type Picture; its dead letters cannot be replayed"]}', '\x7b2276223a312c2264223a6e756c6c7d', NULL, 'permanent', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('ad48d48fe507b4010fc65a45bf031e95', 'shop', '22ba9bcd0ab0ad981064302045cce7c1', 3, 'nightly', 'label', '6', 'item', 'replaying', '27a3100c86472090', 'no label for 6', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794891694373657, 1794891694389655, 1794891694389656, 1794891699961916, 0, 'replayed by replay-0534175f0e24', '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo2LCJ0ZXh0IjoicmV2aWV3IDYifX0="}', '\x7b2276223a312c2264223a7b226964223a362c22776f726473223a5b22726576696577222c2236225d7d7d', NULL, 'exhausted', '25009cfa1e9ddd7e49045ada7ee809f3');
INSERT INTO public.outlast_dead_letters VALUES ('e17a674f11edd7b3fc43cb0ddd036397', 'shop', 'f04111b98c5b66542980a8f45792cd0f', 2, 'nightly', 'label', '2', 'item', 'open', '51996ef35a3686e7', 'no label for 2', 'ValueError', 'data_error', 'data', 1, 1794891700923747, 1794891700924440, 1794891700924441, 1794891700924441, 0, NULL, '{"source": "eyJ2IjoxLCJkIjp7ImlkIjoyLCJ0ZXh0IjoicmV2aWV3IDIifX0="}', '\x7b2276223a312c2264223a7b226964223a322c22776f726473223a5b22726576696577222c2232225d7d7d', NULL, 'permanent', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('4567067cca28308ebc1a5f15282a2cac', 'shop', NULL, NULL, 'refuse', 'refuse', '2', 'job', 'open', '602699d8455b0b2e', 'nobody knows 2', 'ValueError', 'data_error', 'data', 1, 1794891703580441, 1794891703581538, 1794891703581671, 1794891703581671, 0, NULL, '{"queue": "default", "version": 1}', '\x7b2276223a312c2264223a7b226e223a327d7d', NULL, 'permanent', NULL);
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (1, 'ed6056a05003dda93cbee8d2fc819046', 'shop', 'd15e1d655ef29492845e09949217d006', 'run_started', 1794891692695053, '{"event": "run_started", "ts": "2026-11-17T05:01:32.695053+00:00", "seq": 1, "run_id": "d15e1d655ef29492845e09949217d006", "pipeline": "nightly", "run_key": "first", "finished": 0, "target": null}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (2, 'b239afbe104d4cb1e64993bcf8e99ca0', 'shop', 'd15e1d655ef29492845e09949217d006', 'run_finished', 1794891692721352, '{"event": "run_finished", "ts": "2026-11-17T05:01:32.721352+00:00", "seq": 2, "run_id": "d15e1d655ef29492845e09949217d006", "pipeline": "nightly", "run_key": "first", "status": "completed", "outcome": "success", "reason": null, "why": "3 of 3 items succeeded", "total": 3, "succeeded": 3, "skipped": 0, "dlq": 0, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (3, 'ec9a4bd201cb5b6f6987cdbfe8c623b3', 'shop', '22ba9bcd0ab0ad981064302045cce7c1', 'run_started', 1794891694343929, '{"event": "run_started", "ts": "2026-11-17T05:01:34.343929+00:00", "seq": 1, "run_id": "22ba9bcd0ab0ad981064302045cce7c1", "pipeline": "nightly", "run_key": "second", "finished": 0, "target": null}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (4, 'aca22a5b6cfac906461b3bb5ff0ad63b', 'shop', '22ba9bcd0ab0ad981064302045cce7c1', 'run_finished', 1794891694416236, '{"event": "run_finished", "ts": "2026-11-17T05:01:34.416236+00:00", "seq": 2, "run_id": "22ba9bcd0ab0ad981064302045cce7c1", "pipeline": "nightly", "run_key": "second", "status": "completed", "outcome": "partial", "reason": null, "why": "1 of 7 items succeeded, 6 became dead letters; they are open", "total": 7, "succeeded": 1, "skipped": 0, "dlq": 6, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (5, '8ec6b5db96c9f5dffcff6ecfe4f1d3b2', 'shop', '21ead0654aa351abcb8fc268ab0103a0', 'run_started', 1794891694509588, '{"event": "run_started", "ts": "2026-11-17T05:01:34.509588+00:00", "seq": 3, "run_id": "21ead0654aa351abcb8fc268ab0103a0", "pipeline": "nightly", "run_key": "replay-f4c6f99f97e5", "finished": 0, "target": null}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (6, '46e767233d20168597c7ae698f8897fe', 'shop', '21ead0654aa351abcb8fc268ab0103a0', 'run_finished', 1794891694600773, '{"event": "run_finished", "ts": "2026-11-17T05:01:34.600773+00:00", "seq": 4, "run_id": "21ead0654aa351abcb8fc268ab0103a0", "pipeline": "nightly", "run_key": "replay-f4c6f99f97e5", "status": "completed", "outcome": "success", "reason": null, "why": "1 of 1 item succeeded", "total": 1, "succeeded": 1, "skipped": 0, "dlq": 0, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (7, '23a74cd4eb31acb6c1cce75b89a2b81d', 'shop', 'f716bece1a1b4459518922b5ea595676', 'run_started', 1794891696808550, '{"event": "run_started", "ts": "2026-11-17T05:01:36.808550+00:00", "seq": 1, "run_id": "f716bece1a1b4459518922b5ea595676", "pipeline": "pictures", "run_key": "one", "finished": 0, "target": null}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (8, '2048b3d989e45710c68548789218501a', 'shop', 'f716bece1a1b4459518922b5ea595676', 'run_finished', 1794891696833097, '{"event": "run_finished", "ts": "2026-11-17T05:01:36.833097+00:00", "seq": 2, "run_id": "f716bece1a1b4459518922b5ea595676", "pipeline": "pictures", "run_key": "one", "status": "completed", "outcome": "failure", "reason": null, "why": "0 of 1 item succeeded, 1 became a dead letter; it is open", "total": 1, "succeeded": 0, "skipped": 0, "dlq": 1, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (9, 'a2b50a47366ad879ef17798c618108b5', 'shop', 'a8cb843ab79b09ce97822994a4387b48', 'run_started', 1794891698622117, '{"event": "run_started", "ts": "2026-11-17T05:01:38.622117+00:00", "seq": 1, "run_id": "a8cb843ab79b09ce97822994a4387b48", "pipeline": "things", "run_key": "one", "finished": 0, "target": null}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (10, '8ab46055244218c72362eca4452381ef', 'shop', 'a8cb843ab79b09ce97822994a4387b48', 'run_finished', 1794891698654775, '{"event": "run_finished", "ts": "2026-11-17T05:01:38.654775+00:00", "seq": 2, "run_id": "a8cb843ab79b09ce97822994a4387b48", "pipeline": "things", "run_key": "one", "status": "completed", "outcome": "failure", "reason": null, "why": "0 of 1 item succeeded, 1 became a dead letter; it is open", "total": 1, "succeeded": 0, "skipped": 0, "dlq": 1, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (11, '6cecc153359e5cd1a0f81e4c53a865cd', 'shop', 'f04111b98c5b66542980a8f45792cd0f', 'run_started', 1794891700919535, '{"event": "run_started", "ts": "2026-11-17T05:01:40.919535+00:00", "seq": 1, "run_id": "f04111b98c5b66542980a8f45792cd0f", "pipeline": "nightly", "run_key": "third", "finished": 0, "target": null}');
INSERT INTO public.outlast_items VALUES (1, 0, '0', 'succeeded', 1, 2, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a302c226c6162656c223a327d7d', 1794891692696075, 20668, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (1, 1, '1', 'succeeded', 1, 2, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a312c226c6162656c223a327d7d', 1794891692696125, 20674, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (1, 2, '2', 'succeeded', 1, 2, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a322c226c6162656c223a327d7d', 1794891692696138, 20674, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (2, 0, '3', 'succeeded', 1, 2, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a332c226c6162656c223a327d7d', 1794891694350059, 19371, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (2, 1, '4', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 4', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722034222c6e756c6c5d5d2c226c6574746572223a226161386232333833386237346632323632636635616437376631313935633863227d7d', 1794891694350105, 35216, NULL, 'exhausted', '27a3100c86472090', 'connection_reset', 'ConnectionResetError');
INSERT INTO public.outlast_items VALUES (2, 3, '6', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 6', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722036222c6e756c6c5d5d2c226c6574746572223a226164343864343866653530376234303130666336356134356266303331653935227d7d', 1794891694350121, 39499, NULL, 'exhausted', '27a3100c86472090', 'connection_reset', 'ConnectionResetError');
INSERT INTO public.outlast_items VALUES (2, 4, '7', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 7', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722037222c6e756c6c5d5d2c226c6574746572223a223430316139643262313631366564386532613436313936666566623536633637227d7d', 1794891694350127, 40206, NULL, 'exhausted', '27a3100c86472090', 'connection_reset', 'ConnectionResetError');
INSERT INTO public.outlast_items VALUES (2, 5, '8', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 8', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722038222c6e756c6c5d5d2c226c6574746572223a226330356162313236333365323539373566343961643965383336346461353764227d7d', 1794891694350133, 40581, NULL, 'exhausted', '27a3100c86472090', 'connection_reset', 'ConnectionResetError');
INSERT INTO public.outlast_items VALUES (2, 6, '9', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 9', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722039222c6e756c6c5d5d2c226c6574746572223a223863623563633962623830383137626366383163353261333637393762353662227d7d', 1794891694350139, 40907, NULL, 'exhausted', '27a3100c86472090', 'connection_reset', 'ConnectionResetError');
INSERT INTO public.outlast_items VALUES (3, 0, '5', 'succeeded', 1, 1, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a352c226c6162656c223a327d7d', 1794891694543099, 210, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (2, 2, '5', 'succeeded', 1, 3, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a352c226c6162656c223a327d7d', 1794891694350114, 39900, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (4, 0, '1', 'dlq', 1, 2, false, 'measure: ValueError: the model refuses', '["the input of measure is not stored: it is a value of type Picture; a replay begins at load"]', NULL, '\x7b2276223a312c2264223a7b227374616765223a226d656173757265222c226572726f7273223a5b5b6e756c6c2c22646174615f6572726f72222c22746865206d6f64656c2072656675736573222c6e756c6c5d5d2c226c6574746572223a226131326666336361363334363366633563396465663762636638613461663437227d7d', 1794891696809425, 978, NULL, 'permanent', '80eb484c8f680978', 'data_error', 'ValueError');
INSERT INTO public.outlast_items VALUES (5, 0, 'a', 'dlq', 0, 1, false, 'weigh: ValueError: too heavy', '["the input of weigh is not stored: it is a value of type Picture; its dead letters cannot be replayed"]', NULL, '\x7b2276223a312c2264223a7b227374616765223a227765696768222c226572726f7273223a5b5b6e756c6c2c22646174615f6572726f72222c22746f6f206865617679222c6e756c6c5d5d2c226c6574746572223a223338646637336165313365646335376165636335343166653564373838306534227d7d', 1794891698637271, 1057, NULL, 'permanent', '0e7039d5a3e23989', 'data_error', 'ValueError');
INSERT INTO public.outlast_items VALUES (7, 0, '0', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794891700920192, 4035, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 1, '1', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794891700920221, 4044, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 3, '3', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794891700920239, 4298, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 4, '4', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794891700920245, 4380, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 5, '5', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794891700920251, 4426, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 6, '6', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794891700920257, 4465, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 2, '2', 'dlq', 1, 2, false, 'label: ValueError: no label for 2', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22646174615f6572726f72222c226e6f206c6162656c20666f722032222c6e756c6c5d5d2c226c6574746572223a226531376136373466313165646437623366633433636230646464303336333937227d7d', 1794891700920233, 4175, NULL, 'permanent', '51996ef35a3686e7', 'data_error', 'ValueError');
INSERT INTO public.outlast_job_attempts VALUES (1, 1, 1, 'ea5ff3cf8e451b0f301cd8f9ccbe72d8', 1794891703580839, 275, 'succeeded', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_job_attempts VALUES (2, 1, 1, 'ea5ff3cf8e451b0f301cd8f9ccbe72d8', 1794891703581538, 133, 'failed', 'data_error', 'ValueError', 'nobody knows 2', 'permanent', NULL, 'Traceback (most recent call last):
  File "/where/it/was/durable.py", line 32, in refuse
    raise ValueError(f"nobody knows {n}")
ValueError: nobody knows 2
');
INSERT INTO public.outlast_job_attempts VALUES (3, 1, 1, 'ea5ff3cf8e451b0f301cd8f9ccbe72d8', 1794891703583074, 170, 'failed', 'connection_reset', 'ConnectionResetError', 'once more', NULL, 1794891803597786, 'Traceback (most recent call last):
  File "/where/it/was/durable.py", line 39, in hesitate
    raise ConnectionResetError("once more")
ConnectionResetError: once more
');
INSERT INTO public.outlast_job_attempts VALUES (7, 1, 1, 'cebff3c7b0f6c99fcb8c3d1ea4495f8a', 1794891705699901, 98241, 'timeout', 'timeout', 'AttemptTimeoutError', 'the attempt took longer than 0.1 s', NULL, 1794891805822375, 'Traceback (most recent call last):
  File "/where/it/was/durable.py", line 55, in linger
    threading.Event().wait()
outlast.errors.AttemptTimeoutError: the attempt took longer than 0.1 s
');
INSERT INTO public.outlast_jobs OVERRIDING SYSTEM VALUE VALUES (4, 'shop', 'mail', 'write', 1, 'ready', 0, 1794891703468544, '\x7b2276223a312c2264223a7b226e223a347d7d', NULL, 1794891703468544, 0, NULL, NULL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_jobs OVERRIDING SYSTEM VALUE VALUES (1, 'shop', 'default', 'send', 1, 'succeeded', 0, 1794891703454919, '\x7b2276223a312c2264223a7b226e223a317d7d', 'done', 1794891703454919, 1, NULL, 1794891703580441, 1794891703580441, 1, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b2276616c7565223a327d7d', 1794891703593392, NULL, NULL);
INSERT INTO public.outlast_jobs OVERRIDING SYSTEM VALUE VALUES (3, 'shop', 'default', 'hesitate', 1, 'waiting', 0, 1794891803597786, '\x7b2276223a312c2264223a7b226e223a337d7d', NULL, 1794891703461214, 1, NULL, 1794891703580441, 1794891703580441, 1, 1, 0, 100000000, NULL, NULL, 'once more', 'ConnectionResetError', 'connection_reset', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_jobs OVERRIDING SYSTEM VALUE VALUES (2, 'shop', 'default', 'refuse', 1, 'failed', 0, 1794891703457956, '\x7b2276223a312c2264223a7b226e223a327d7d', NULL, 1794891703457956, 1, NULL, 1794891703580441, 1794891703580441, 1, 1, 0, NULL, NULL, NULL, 'nobody knows 2', 'ValueError', 'data_error', 'permanent', NULL, 1794891703597786, NULL, '4567067cca28308ebc1a5f15282a2cac');
INSERT INTO public.outlast_jobs OVERRIDING SYSTEM VALUE VALUES (5, 'shop', 'default', 'send', 1, 'ready', 0, 1794891703631789, '\x7b2276223a312c2264223a7b226e223a357d7d', 'due', 1794891703631789, 0, NULL, NULL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_jobs OVERRIDING SYSTEM VALUE VALUES (6, 'shop', 'last', 'stay', 1, 'processing', 0, 1794891705531276, '\x7b2276223a312c2264223a7b226e223a367d7d', NULL, 1794891705531276, 1, 'cebff3c7b0f6c99fcb8c3d1ea4495f8a', 1794891705696851, 1794891705696851, 1, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_jobs OVERRIDING SYSTEM VALUE VALUES (7, 'shop', 'last', 'linger', 1, 'held', 0, 1794891805822375, '\x7b2276223a312c2264223a7b226e223a377d7d', NULL, 1794891705532129, 1, 'cebff3c7b0f6c99fcb8c3d1ea4495f8a', 1794891705696851, 1794891705696851, 1, 1, 0, 100000000, NULL, NULL, 'the attempt took longer than 0.1 s', 'AttemptTimeoutError', 'timeout', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_leases VALUES ('shop', 'worker', 'cebff3c7b0f6c99fcb8c3d1ea4495f8a', 1, 'gone.example/4026531836:4711:123456:1', 1, 20);
INSERT INTO public.outlast_progress VALUES (1, 0, 2, 1, 3, NULL, true, 3, 0, 0, 0, 0, '{}', NULL);
INSERT INTO public.outlast_progress VALUES (3, 0, 2, 1, 1, NULL, true, 1, 0, 0, 0, 0, '{}', NULL);
INSERT INTO public.outlast_progress VALUES (4, 0, 2, 1, 1, NULL, true, 0, 0, 1, 0, 0, '{}', NULL);
INSERT INTO public.outlast_progress VALUES (5, 0, 2, 1, 1, NULL, true, 0, 0, 1, 0, 0, '{}', NULL);
INSERT INTO public.outlast_progress VALUES (6, 0, 1, 1, 0, NULL, false, 0, 0, 0, 0, 0, '{}', NULL);
INSERT INTO public.outlast_progress VALUES (2, 0, 5, 1, 7, NULL, true, 2, 0, 5, 0, 0, '{}', NULL);
INSERT INTO public.outlast_progress VALUES (7, 0, 1, 1, 12, 114, true, 6, 0, 1, 0, 0, '{}', '114 9e20ec44c1013ab15d66e203cbdb7149');
INSERT INTO public.outlast_queues VALUES ('shop', 'mail', true);
INSERT INTO public.outlast_replays VALUES (3, 0, 'aed91f232bbc8273f864194d84d9615e');
INSERT INTO public.outlast_replays VALUES (6, 0, 'ad48d48fe507b4010fc65a45bf031e95');
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (1, 'd15e1d655ef29492845e09949217d006', 'shop', 'nightly', 'first', 'run', 'completed', NULL, '3 of 3 items succeeded', '[["parse", "1", true], ["label", "1", false]]', NULL, NULL, 1794891692665536, 1794891692721654, '{"sink": "the store", "key": ["field", "id"], "code": {"parse": "ea504f06a93d522a561bcea1", "label": "10236c02d08a299448135cd0"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (2, '22ba9bcd0ab0ad981064302045cce7c1', 'shop', 'nightly', 'second', 'run', 'completed', NULL, '2 of 7 items succeeded, 5 became dead letters; they are open', '[["parse", "1", true], ["label", "1", false]]', NULL, NULL, 1794891694301722, 1794891694416473, '{"sink": "the store", "key": ["field", "id"], "code": {"parse": "ea504f06a93d522a561bcea1", "label": "10236c02d08a299448135cd0"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (3, '21ead0654aa351abcb8fc268ab0103a0', 'shop', 'nightly', 'replay-f4c6f99f97e5', 'replay', 'completed', NULL, '1 of 1 item succeeded', '[["parse", "1", true], ["label", "1", false]]', NULL, NULL, 1794891694469811, 1794891694601064, '{"sink": "the store", "key": ["content", ""], "code": {"parse": "ea504f06a93d522a561bcea1", "label": "10236c02d08a299448135cd0"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (4, 'f716bece1a1b4459518922b5ea595676', 'shop', 'pictures', 'one', 'run', 'completed', NULL, '0 of 1 item succeeded, 1 became a dead letter; it is open', '[["load", "1", false], ["measure", "1", false]]', NULL, NULL, 1794891696738479, 1794891696833391, '{"sink": "the store", "key": ["function", ""], "code": {"load": "d3ed093c67099b32843d86ca", "measure": "8e8252f956480d6468c08de3"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (6, '25009cfa1e9ddd7e49045ada7ee809f3', 'shop', 'nightly', 'replay-0534175f0e24', 'replay', 'running', NULL, '', '[["parse", "1", true], ["label", "1", false]]', NULL, NULL, 1794891699935715, NULL, '{"sink": "the store", "key": ["content", ""], "code": {"parse": "ea504f06a93d522a561bcea1", "label": "10236c02d08a299448135cd0"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (5, 'a8cb843ab79b09ce97822994a4387b48', 'shop', 'things', 'one', 'run', 'completed', NULL, '0 of 1 item succeeded, 1 became a dead letter; it is open', '[["weigh", "1", false]]', NULL, NULL, 1794891698597286, 1794891698655020, '{"sink": "the store", "key": ["function", "46aa745773f90d191bbc14c5"], "code": {"weigh": "f4a55f41444f66085d243e74"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (7, 'f04111b98c5b66542980a8f45792cd0f', 'shop', 'nightly', 'third', 'run', 'running', NULL, '', '[["parse", "1", true], ["label", "1", false]]', NULL, 'out.jsonl', 1794891700877400, NULL, '{"sink": "out.jsonl", "key": ["field", "id"], "code": {"parse": "ea504f06a93d522a561bcea1", "label": "10236c02d08a299448135cd0"}}', '{"file": "/where/it/was/out.jsonl"}', NULL, NULL);
INSERT INTO public.outlast_schema VALUES (17);
INSERT INTO public.outlast_shards VALUES (1, 0, 2, '', 0, 20);
INSERT INTO public.outlast_shards VALUES (3, 0, 2, '', 0, 20);
INSERT INTO public.outlast_shards VALUES (4, 0, 2, '', 0, 20);
INSERT INTO public.outlast_shards VALUES (5, 0, 2, '', 0, 20);
INSERT INTO public.outlast_shards VALUES (2, 0, 5, 'gone.example/4026531836:4711:123456:1', 1, 20);
INSERT INTO public.outlast_shards VALUES (6, 0, 1, 'gone.example/4026531836:4711:123456:1', 1, 20);
INSERT INTO public.outlast_shards VALUES (7, 0, 1, 'gone.example/4026531836:4711:123456:1', 1, 20);
INSERT INTO public.outlast_store VALUES ('09f4a590130a965e33b21e764639084ddf10b3bdd4621ccfea8e5a74a6342d1b');
INSERT INTO public.outlast_workers VALUES ('shop', 'ea5ff3cf8e451b0f301cd8f9ccbe72d8', NULL, '{"send": 1, "write": 1, "refuse": 1, "hesitate": 1, "stay": 1, "linger": 1}');
INSERT INTO public.outlast_workers VALUES ('shop', 'cebff3c7b0f6c99fcb8c3d1ea4495f8a', '["last"]', '{"send": 1, "write": 1, "refuse": 1, "hesitate": 1, "stay": 1, "linger": 1}');
SELECT pg_catalog.setval('public.outlast_events_number_seq', 11, true);
SELECT pg_catalog.setval('public.outlast_job_changes_id_seq', 1, false);
SELECT pg_catalog.setval('public.outlast_jobs_id_seq', 7, true);
SELECT pg_catalog.setval('public.outlast_runs_number_seq', 7, true);
ALTER TABLE ONLY public.outlast_artifacts
    ADD CONSTRAINT outlast_artifacts_kind_owner_attempt_name_key UNIQUE (kind, owner, attempt, name);
ALTER TABLE ONLY public.outlast_attempts
    ADD CONSTRAINT outlast_attempts_pkey PRIMARY KEY (run, seq, stage, pass, number);
ALTER TABLE ONLY public.outlast_checkpoints
    ADD CONSTRAINT outlast_checkpoints_pkey PRIMARY KEY (run, seq, stage);
ALTER TABLE ONLY public.outlast_dead_letters
    ADD CONSTRAINT outlast_dead_letters_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.outlast_events
    ADD CONSTRAINT outlast_events_id_key UNIQUE (id);
ALTER TABLE ONLY public.outlast_events
    ADD CONSTRAINT outlast_events_pkey PRIMARY KEY (number);
ALTER TABLE ONLY public.outlast_idempotency
    ADD CONSTRAINT outlast_idempotency_pkey PRIMARY KEY (app, scope, key);
ALTER TABLE ONLY public.outlast_items
    ADD CONSTRAINT outlast_items_pkey PRIMARY KEY (run, seq);
ALTER TABLE ONLY public.outlast_job_attempts
    ADD CONSTRAINT outlast_job_attempts_pkey PRIMARY KEY (job, number);
ALTER TABLE ONLY public.outlast_job_changes
    ADD CONSTRAINT outlast_job_changes_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.outlast_jobs
    ADD CONSTRAINT outlast_jobs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.outlast_leases
    ADD CONSTRAINT outlast_leases_pkey PRIMARY KEY (app, kind, key);
ALTER TABLE ONLY public.outlast_progress
    ADD CONSTRAINT outlast_progress_pkey PRIMARY KEY (run, shard);
ALTER TABLE ONLY public.outlast_queues
    ADD CONSTRAINT outlast_queues_pkey PRIMARY KEY (app, queue);
ALTER TABLE ONLY public.outlast_replays
    ADD CONSTRAINT outlast_replays_pkey PRIMARY KEY (run, seq);
ALTER TABLE ONLY public.outlast_runs
    ADD CONSTRAINT outlast_runs_app_pipeline_run_key_key UNIQUE (app, pipeline, run_key);
ALTER TABLE ONLY public.outlast_runs
    ADD CONSTRAINT outlast_runs_id_key UNIQUE (id);
ALTER TABLE ONLY public.outlast_runs
    ADD CONSTRAINT outlast_runs_pkey PRIMARY KEY (number);
ALTER TABLE ONLY public.outlast_schedules
    ADD CONSTRAINT outlast_schedules_pkey PRIMARY KEY (app, kind);
ALTER TABLE ONLY public.outlast_shards
    ADD CONSTRAINT outlast_shards_pkey PRIMARY KEY (run, shard);
ALTER TABLE ONLY public.outlast_states
    ADD CONSTRAINT outlast_states_pkey PRIMARY KEY (app, kind, name);
ALTER TABLE ONLY public.outlast_steps
    ADD CONSTRAINT outlast_steps_kind_owner_name_key UNIQUE (kind, owner, name);
ALTER TABLE ONLY public.outlast_store
    ADD CONSTRAINT outlast_store_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.outlast_unique_keys
    ADD CONSTRAINT outlast_unique_keys_pkey PRIMARY KEY (app, kind, unique_key);
ALTER TABLE ONLY public.outlast_workers
    ADD CONSTRAINT outlast_workers_pkey PRIMARY KEY (app, key);
CREATE INDEX outlast_artifacts_kept ON public.outlast_artifacts USING btree (kept) WHERE (kind = 'job'::text);
CREATE INDEX outlast_dead_letters_claims ON public.outlast_dead_letters USING btree (app, COALESCE(claimed_by, reason, ''::text)) WHERE (status = 'replaying'::text);
CREATE INDEX outlast_dead_letters_group ON public.outlast_dead_letters USING btree (app, status, fingerprint, pipeline, stage, created, id, first_failed, last_attempt);
CREATE INDEX outlast_dead_letters_group_updated ON public.outlast_dead_letters USING btree (app, status, fingerprint, moved, id);
CREATE INDEX outlast_dead_letters_newest ON public.outlast_dead_letters USING btree (app, status, created, id);
CREATE INDEX outlast_dead_letters_place ON public.outlast_dead_letters USING btree (app, status, pipeline, stage, created, id);
CREATE INDEX outlast_dead_letters_place_updated ON public.outlast_dead_letters USING btree (app, status, pipeline, stage, moved, id);
CREATE INDEX outlast_dead_letters_run ON public.outlast_dead_letters USING btree (app, run, status, fingerprint, pipeline, stage, created, id, first_failed, last_attempt);
CREATE INDEX outlast_dead_letters_run_updated ON public.outlast_dead_letters USING btree (app, run, status, moved, id);
CREATE INDEX outlast_dead_letters_updated ON public.outlast_dead_letters USING btree (app, status, moved, id);
CREATE INDEX outlast_events_at ON public.outlast_events USING btree (at);
CREATE INDEX outlast_events_run ON public.outlast_events USING btree (run, number);
CREATE INDEX outlast_idempotency_expires ON public.outlast_idempotency USING btree (app, expires) WHERE (expires IS NOT NULL);
CREATE INDEX outlast_job_changes_job ON public.outlast_job_changes USING btree (job, id);
CREATE INDEX outlast_jobs_alone ON public.outlast_jobs USING btree (app, queue, id) WHERE (state = 'alone'::text);
CREATE INDEX outlast_jobs_ended ON public.outlast_jobs USING btree (app, state, ended) WHERE (state = ANY (ARRAY['succeeded'::text, 'failed'::text, 'cancelled'::text]));
CREATE INDEX outlast_jobs_lingering ON public.outlast_jobs USING btree (app, worker) WHERE ((worker IS NOT NULL) AND (state = ANY (ARRAY['failed'::text, 'cancelled'::text])));
CREATE INDEX outlast_jobs_owned ON public.outlast_jobs USING btree (app, worker) WHERE (state = ANY (ARRAY['processing'::text, 'held'::text]));
CREATE INDEX outlast_jobs_ready ON public.outlast_jobs USING btree (app, queue, priority DESC, id) WHERE (state = 'ready'::text);
CREATE UNIQUE INDEX outlast_jobs_unique ON public.outlast_jobs USING btree (app, kind, unique_key) WHERE ((unique_key IS NOT NULL) AND (state = ANY (ARRAY['ready'::text, 'waiting'::text, 'alone'::text, 'held'::text, 'processing'::text, 'succeeded'::text])));
CREATE INDEX outlast_jobs_waiting ON public.outlast_jobs USING btree (app, due) WHERE (state = 'waiting'::text);
CREATE INDEX outlast_runs_newest ON public.outlast_runs USING btree (app, started, number);
CREATE INDEX outlast_unique_keys_job ON public.outlast_unique_keys USING btree (app, job);
