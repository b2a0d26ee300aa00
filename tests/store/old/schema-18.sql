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
CREATE TABLE public.outlast_flow_steps (
    run bigint NOT NULL,
    step text NOT NULL,
    deed text NOT NULL,
    place integer NOT NULL,
    state text NOT NULL,
    round integer NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    made integer DEFAULT 0 NOT NULL,
    crashes integer DEFAULT 0 NOT NULL,
    token bigint DEFAULT 0 NOT NULL,
    began bigint,
    due bigint,
    previous bigint,
    completed bigint,
    work text NOT NULL,
    definition text NOT NULL,
    key_scope text,
    key_digest text,
    key_token bigint,
    error text,
    error_type text,
    error_class text,
    stop_reason text,
    letter text,
    changed bigint NOT NULL
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
CREATE TABLE public.outlast_step_attempts (
    run bigint NOT NULL,
    step text NOT NULL,
    deed text NOT NULL,
    number integer NOT NULL,
    round integer NOT NULL,
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
INSERT INTO public.outlast_attempts VALUES (1, 0, 0, 1, 1, 'success', 1794913030253112, 10, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (1, 1, 0, 1, 1, 'success', 1794913030253153, 58, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (1, 2, 0, 1, 1, 'success', 1794913030253223, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (1, 0, 1, 1, 1, 'success', 1794913030280463, 16, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":27045}', NULL);
INSERT INTO public.outlast_attempts VALUES (1, 1, 1, 1, 1, 'success', 1794913030280555, 4, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":26995}', NULL);
INSERT INTO public.outlast_attempts VALUES (1, 2, 1, 1, 1, 'success', 1794913030280579, 3, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":26979}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 0, 0, 1, 1, 'success', 1794913037086262, 14, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 1, 0, 1, 1, 'success', 1794913037086447, 3, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 2, 0, 1, 1, 'success', 1794913037086465, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 3, 0, 1, 1, 'success', 1794913037086473, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 4, 0, 1, 1, 'success', 1794913037086479, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 5, 0, 1, 1, 'success', 1794913037086485, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 6, 0, 1, 1, 'success', 1794913037086491, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 0, 1, 1, 1, 'success', 1794913037265562, 20, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":159277}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 1, 1, 1, 1, 'retrying', 1794913037265819, 27, 'connection_reset', 'ConnectionResetError', 'no label for 4', 10000, NULL, '{"checkpoint":159107}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 1, 1, 1, 2, 'failed', 1794913037288272, 34, 'connection_reset', 'ConnectionResetError', 'no label for 4', NULL, NULL, '{"retry":21600}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (2, 2, 1, 1, 1, 'retrying', 1794913037266277, 7, 'connection_reset', 'ConnectionResetError', 'no label for 5', 10000, NULL, '{"checkpoint":159094}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 2, 1, 1, 2, 'failed', 1794913037290091, 19, 'connection_reset', 'ConnectionResetError', 'no label for 5', NULL, NULL, '{"retry":21582}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (2, 4, 1, 1, 1, 'retrying', 1794913037266391, 5, 'connection_reset', 'ConnectionResetError', 'no label for 7', 10000, NULL, '{"checkpoint":159081}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 4, 1, 1, 2, 'failed', 1794913037290547, 6, 'connection_reset', 'ConnectionResetError', 'no label for 7', NULL, NULL, '{"retry":21579}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (2, 5, 1, 1, 1, 'retrying', 1794913037266434, 4, 'connection_reset', 'ConnectionResetError', 'no label for 8', 10000, NULL, '{"checkpoint":159076}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 5, 1, 1, 2, 'failed', 1794913037291734, 9, 'connection_reset', 'ConnectionResetError', 'no label for 8', NULL, NULL, '{"retry":21578}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (2, 3, 1, 1, 1, 'retrying', 1794913037266343, 5, 'connection_reset', 'ConnectionResetError', 'no label for 6', 10000, NULL, '{"checkpoint":159087}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 3, 1, 1, 2, 'failed', 1794913037297789, 16, 'connection_reset', 'ConnectionResetError', 'no label for 6', NULL, NULL, '{"retry":21580}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (2, 6, 1, 1, 1, 'retrying', 1794913037266472, 4, 'connection_reset', 'ConnectionResetError', 'no label for 9', 10000, NULL, '{"checkpoint":159070}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 6, 1, 1, 2, 'failed', 1794913037298539, 8, 'connection_reset', 'ConnectionResetError', 'no label for 9', NULL, NULL, '{"retry":21577}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (3, 0, 1, 1, 1, 'success', 1794913038090446, 11, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (4, 0, 0, 1, 1, 'success', 1794913046856524, 26, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (4, 0, 1, 1, 1, 'failed', 1794913046856571, 33, 'data_error', 'ValueError', 'the model refuses', NULL, NULL, NULL, 'permanent');
INSERT INTO public.outlast_attempts VALUES (5, 0, 0, 1, 1, 'failed', 1794913054524612, 20, 'data_error', 'ValueError', 'too heavy', NULL, NULL, NULL, 'permanent');
INSERT INTO public.outlast_attempts VALUES (7, 0, 0, 1, 1, 'success', 1794913069644213, 10, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 1, 0, 1, 1, 'success', 1794913069644252, 3, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 2, 0, 1, 1, 'success', 1794913069644266, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 3, 0, 1, 1, 'success', 1794913069644281, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 4, 0, 1, 1, 'success', 1794913069644291, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 5, 0, 1, 1, 'success', 1794913069644300, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 6, 0, 1, 1, 'success', 1794913069644310, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 7, 0, 1, 1, 'success', 1794913069644328, 6, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 8, 0, 1, 1, 'success', 1794913069644346, 3, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 9, 0, 1, 1, 'success', 1794913069644356, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 10, 0, 1, 1, 'success', 1794913069644364, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 11, 0, 1, 1, 'success', 1794913069644372, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 0, 1, 1, 1, 'success', 1794913069656128, 13, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":11533}', NULL);
INSERT INTO public.outlast_attempts VALUES (7, 1, 1, 1, 1, 'success', 1794913069656195, 2, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":11479}', NULL);
INSERT INTO public.outlast_attempts VALUES (7, 2, 1, 1, 1, 'failed', 1794913069656209, 27, 'data_error', 'ValueError', 'no label for 2', NULL, NULL, '{"checkpoint":11464}', 'permanent');
INSERT INTO public.outlast_attempts VALUES (7, 3, 1, 1, 1, 'success', 1794913069685148, 62, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":11453}', NULL);
INSERT INTO public.outlast_attempts VALUES (7, 4, 1, 1, 1, 'success', 1794913069666247, 13, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":11445}', NULL);
INSERT INTO public.outlast_attempts VALUES (7, 5, 1, 1, 1, 'success', 1794913069666327, 3, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":11436}', NULL);
INSERT INTO public.outlast_attempts VALUES (7, 6, 1, 1, 1, 'success', 1794913069666348, 2, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":11428}', NULL);
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
INSERT INTO public.outlast_dead_letters VALUES ('9ce513f97663b170c56d0a35c9641144', 'shop', '598b2468f91cae426ebd79bed24f9661', 4, 'nightly', 'label', '7', 'item', 'open', '27a3100c86472090', 'no label for 7', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794913037266397, 1794913037290815, 1794913037290816, 1794913037290816, 0, NULL, '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo3LCJ0ZXh0IjoicmV2aWV3IDcifX0="}', '\x7b2276223a312c2264223a7b226964223a372c22776f726473223a5b22726576696577222c2237225d7d7d', NULL, 'exhausted', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('f8761ef8a48ccb1581af1b1ab8c20c36', 'shop', '598b2468f91cae426ebd79bed24f9661', 5, 'nightly', 'label', '8', 'item', 'open', '27a3100c86472090', 'no label for 8', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794913037266439, 1794913037297677, 1794913037297677, 1794913037297677, 0, NULL, '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo4LCJ0ZXh0IjoicmV2aWV3IDgifX0="}', '\x7b2276223a312c2264223a7b226964223a382c22776f726473223a5b22726576696577222c2238225d7d7d', NULL, 'exhausted', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('609a8c8cc9cfa14233a557bce44d90eb', 'shop', '598b2468f91cae426ebd79bed24f9661', 6, 'nightly', 'label', '9', 'item', 'open', '27a3100c86472090', 'no label for 9', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794913037266476, 1794913037298799, 1794913037298799, 1794913037298799, 0, NULL, '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo5LCJ0ZXh0IjoicmV2aWV3IDkifX0="}', '\x7b2276223a312c2264223a7b226964223a392c22776f726473223a5b22726576696577222c2239225d7d7d', NULL, 'exhausted', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('c4a2b2e0fdce706001635eb93a1c6a9e', 'shop', '598b2468f91cae426ebd79bed24f9661', 1, 'nightly', 'label', '4', 'item', 'archived', '27a3100c86472090', 'no label for 4', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794913037265846, 1794913037289680, 1794913037289681, 1794913037627166, 0, 'not ours', '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo0LCJ0ZXh0IjoicmV2aWV3IDQifX0="}', '\x7b2276223a312c2264223a7b226964223a342c22776f726473223a5b22726576696577222c2234225d7d7d', NULL, 'exhausted', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('f098ce24b5854b8f9fc16e5558514d54', 'shop', '598b2468f91cae426ebd79bed24f9661', 2, 'nightly', 'label', '5', 'item', 'resolved', '27a3100c86472090', 'no label for 5', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794913037266285, 1794913038139710, 1794913037290488, 1794913038139710, 1, 'replayed by replay-081511ec3292', '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo1LCJ0ZXh0IjoicmV2aWV3IDUifX0="}', '\x7b2276223a312c2264223a7b226964223a352c22776f726473223a5b22726576696577222c2235225d7d7d', NULL, 'exhausted', '2ea087cb4acf05bed198a8d73bdebdae');
INSERT INTO public.outlast_dead_letters VALUES ('00bd56ecdce753ea1a4a3af7fc93b2cb', 'shop', 'a96a53234ae45fc2fc530258dd4e5301', 0, 'pictures', 'measure', '1', 'item', 'open', '80eb484c8f680978', 'the model refuses', 'ValueError', 'data_error', 'data', 1, 1794913046856604, 1794913046862298, 1794913046862299, 1794913046862299, 0, NULL, '{"source": "eyJ2IjoxLCJkIjoxfQ==", "unstored": "it is a value of type Picture", "begins": "load", "warnings": ["the input of measure is not stored: it is a value of type Picture; a replay begins at load"]}', '\x7b2276223a312c2264223a317d', NULL, 'permanent', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('737839a82211fd0ba7f3e96c9adfec03', 'shop', '0798f15562c2ac637f092e999e7aa0d2', 0, 'things', 'weigh', 'a', 'item', 'open', '0e7039d5a3e23989', 'too heavy', 'ValueError', 'data_error', 'data', 1, 1794913054524632, 1794913054525607, 1794913054525608, 1794913054525608, 0, NULL, '{"unstored": "it is a value of type Picture", "begins": null, "warnings": ["the input of weigh is not stored: it is a value of type Picture; its dead letters cannot be replayed"]}', '\x7b2276223a312c2264223a6e756c6c7d', NULL, 'permanent', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('6fdbb6151983217019dfb7ef8d4c765e', 'shop', '598b2468f91cae426ebd79bed24f9661', 3, 'nightly', 'label', '6', 'item', 'replaying', '27a3100c86472090', 'no label for 6', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794913037266348, 1794913037298484, 1794913037298484, 1794913062645699, 0, 'replayed by replay-7cff7d2ec9eb', '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo2LCJ0ZXh0IjoicmV2aWV3IDYifX0="}', '\x7b2276223a312c2264223a7b226964223a362c22776f726473223a5b22726576696577222c2236225d7d7d', NULL, 'exhausted', '17a2d7f653ac5ce911627a221c905db2');
INSERT INTO public.outlast_dead_letters VALUES ('96924e672589030b7c05ac7d2ded8cae', 'shop', '2390b4a00cc9fd8546c105ce2d7eca4d', 2, 'nightly', 'label', '2', 'item', 'open', '51996ef35a3686e7', 'no label for 2', 'ValueError', 'data_error', 'data', 1, 1794913069656237, 1794913069665896, 1794913069665897, 1794913069665897, 0, NULL, '{"source": "eyJ2IjoxLCJkIjp7ImlkIjoyLCJ0ZXh0IjoicmV2aWV3IDIifX0="}', '\x7b2276223a312c2264223a7b226964223a322c22776f726473223a5b22726576696577222c2232225d7d7d', NULL, 'permanent', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('15b1f149ab4a46f8da92c2954def0f0e', 'shop', NULL, NULL, 'refuse', 'refuse', '2', 'job', 'open', '602699d8455b0b2e', 'nobody knows 2', 'ValueError', 'data_error', 'data', 1, 1794913076456751, 1794913076521467, 1794913076521729, 1794913076521729, 0, NULL, '{"queue": "default", "version": 1}', '\x7b2276223a312c2264223a7b226e223a327d7d', NULL, 'permanent', NULL);
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (1, '4b23b6430ede73e916d4281ea2cd5726', 'shop', 'ee5c8c9497c27a0239caaa2cf94cedb0', 'run_started', 1794913030252108, '{"event": "run_started", "ts": "2026-11-17T10:57:10.252108+00:00", "seq": 1, "run_id": "ee5c8c9497c27a0239caaa2cf94cedb0", "pipeline": "nightly", "run_key": "first", "finished": 0, "target": null, "unit": null}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (2, '7e041dabc3122d8024b40ca0ee7a8308', 'shop', 'ee5c8c9497c27a0239caaa2cf94cedb0', 'run_finished', 1794913030283684, '{"event": "run_finished", "ts": "2026-11-17T10:57:10.283684+00:00", "seq": 2, "run_id": "ee5c8c9497c27a0239caaa2cf94cedb0", "pipeline": "nightly", "run_key": "first", "status": "completed", "outcome": "success", "reason": null, "why": "3 of 3 items succeeded", "total": 3, "succeeded": 3, "skipped": 0, "dlq": 0, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (3, '05367b96dd8854c5a33666a3bc430f2f', 'shop', '598b2468f91cae426ebd79bed24f9661', 'run_started', 1794913037058633, '{"event": "run_started", "ts": "2026-11-17T10:57:17.058633+00:00", "seq": 1, "run_id": "598b2468f91cae426ebd79bed24f9661", "pipeline": "nightly", "run_key": "second", "finished": 0, "target": null, "unit": null}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (4, 'b26ba012843a1d9e0fae7466dbe7fdbb', 'shop', '598b2468f91cae426ebd79bed24f9661', 'run_finished', 1794913037365674, '{"event": "run_finished", "ts": "2026-11-17T10:57:17.365674+00:00", "seq": 2, "run_id": "598b2468f91cae426ebd79bed24f9661", "pipeline": "nightly", "run_key": "second", "status": "completed", "outcome": "partial", "reason": null, "why": "1 of 7 items succeeded, 6 became dead letters; they are open", "total": 7, "succeeded": 1, "skipped": 0, "dlq": 6, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (5, '1b8839d074fc8ae5121d830137c7ce9c', 'shop', '2ea087cb4acf05bed198a8d73bdebdae', 'run_started', 1794913037891217, '{"event": "run_started", "ts": "2026-11-17T10:57:17.891217+00:00", "seq": 3, "run_id": "2ea087cb4acf05bed198a8d73bdebdae", "pipeline": "nightly", "run_key": "replay-081511ec3292", "finished": 0, "target": null, "unit": null}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (6, '560d34f1f308b6f9abd09e023e7a1849', 'shop', '2ea087cb4acf05bed198a8d73bdebdae', 'run_finished', 1794913038238396, '{"event": "run_finished", "ts": "2026-11-17T10:57:18.238396+00:00", "seq": 4, "run_id": "2ea087cb4acf05bed198a8d73bdebdae", "pipeline": "nightly", "run_key": "replay-081511ec3292", "status": "completed", "outcome": "success", "reason": null, "why": "1 of 1 item succeeded", "total": 1, "succeeded": 1, "skipped": 0, "dlq": 0, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (7, 'a583a2ef1b0607b8bf2366b8e5707786', 'shop', 'a96a53234ae45fc2fc530258dd4e5301', 'run_started', 1794913046834336, '{"event": "run_started", "ts": "2026-11-17T10:57:26.834336+00:00", "seq": 1, "run_id": "a96a53234ae45fc2fc530258dd4e5301", "pipeline": "pictures", "run_key": "one", "finished": 0, "target": null, "unit": null}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (8, 'e17681a07609c942bcbad4a2c5e9e64d', 'shop', 'a96a53234ae45fc2fc530258dd4e5301', 'run_finished', 1794913046902919, '{"event": "run_finished", "ts": "2026-11-17T10:57:26.902919+00:00", "seq": 2, "run_id": "a96a53234ae45fc2fc530258dd4e5301", "pipeline": "pictures", "run_key": "one", "status": "completed", "outcome": "failure", "reason": null, "why": "0 of 1 item succeeded, 1 became a dead letter; it is open", "total": 1, "succeeded": 0, "skipped": 0, "dlq": 1, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (9, 'ae30b458791a84e535753eb3b14c346e', 'shop', '0798f15562c2ac637f092e999e7aa0d2', 'run_started', 1794913054523950, '{"event": "run_started", "ts": "2026-11-17T10:57:34.523950+00:00", "seq": 1, "run_id": "0798f15562c2ac637f092e999e7aa0d2", "pipeline": "things", "run_key": "one", "finished": 0, "target": null, "unit": null}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (10, 'cb87324a0a1bca9d7b5b653c9a995565', 'shop', '0798f15562c2ac637f092e999e7aa0d2', 'run_finished', 1794913054592228, '{"event": "run_finished", "ts": "2026-11-17T10:57:34.592228+00:00", "seq": 2, "run_id": "0798f15562c2ac637f092e999e7aa0d2", "pipeline": "things", "run_key": "one", "status": "completed", "outcome": "failure", "reason": null, "why": "0 of 1 item succeeded, 1 became a dead letter; it is open", "total": 1, "succeeded": 0, "skipped": 0, "dlq": 1, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (11, '4b0e969ca2b43a93ada12fa6105a03d2', 'shop', '2390b4a00cc9fd8546c105ce2d7eca4d', 'run_started', 1794913069643265, '{"event": "run_started", "ts": "2026-11-17T10:57:49.643265+00:00", "seq": 1, "run_id": "2390b4a00cc9fd8546c105ce2d7eca4d", "pipeline": "nightly", "run_key": "third", "finished": 0, "target": null, "unit": null}');
INSERT INTO public.outlast_items VALUES (1, 0, '0', 'succeeded', 1, 2, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a302c226c6162656c223a327d7d', 1794913030253112, 27570, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (1, 1, '1', 'succeeded', 1, 2, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a312c226c6162656c223a327d7d', 1794913030253153, 27574, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (1, 2, '2', 'succeeded', 1, 2, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a322c226c6162656c223a327d7d', 1794913030253223, 27514, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (2, 0, '3', 'succeeded', 1, 2, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a332c226c6162656c223a327d7d', 1794913037086262, 179461, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (2, 1, '4', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 4', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722034222c6e756c6c5d5d2c226c6574746572223a226334613262326530666463653730363030313633356562393361316336613965227d7d', 1794913037086447, 203192, NULL, 'exhausted', '27a3100c86472090', 'connection_reset', 'ConnectionResetError');
INSERT INTO public.outlast_items VALUES (2, 4, '7', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 7', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722037222c6e756c6c5d5d2c226c6574746572223a223963653531336639373636336231373063353664306133356339363431313434227d7d', 1794913037086479, 204312, NULL, 'exhausted', '27a3100c86472090', 'connection_reset', 'ConnectionResetError');
INSERT INTO public.outlast_items VALUES (2, 5, '8', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 8', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722038222c6e756c6c5d5d2c226c6574746572223a226638373631656638613438636362313538316166316231616238633230633336227d7d', 1794913037086485, 211146, NULL, 'exhausted', '27a3100c86472090', 'connection_reset', 'ConnectionResetError');
INSERT INTO public.outlast_items VALUES (2, 3, '6', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 6', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722036222c6e756c6c5d5d2c226c6574746572223a223666646262363135313938333231373031396466623765663864346337363565227d7d', 1794913037086473, 211985, NULL, 'exhausted', '27a3100c86472090', 'connection_reset', 'ConnectionResetError');
INSERT INTO public.outlast_items VALUES (2, 6, '9', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 9', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722039222c6e756c6c5d5d2c226c6574746572223a223630396138633863633963666131343233336135353762636534346439306562227d7d', 1794913037086491, 212285, NULL, 'exhausted', '27a3100c86472090', 'connection_reset', 'ConnectionResetError');
INSERT INTO public.outlast_items VALUES (3, 0, '5', 'succeeded', 1, 1, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a352c226c6162656c223a327d7d', 1794913038090446, 1304, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (2, 2, '5', 'succeeded', 1, 3, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a352c226c6162656c223a327d7d', 1794913037086465, 203996, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (4, 0, '1', 'dlq', 1, 2, false, 'measure: ValueError: the model refuses', '["the input of measure is not stored: it is a value of type Picture; a replay begins at load"]', NULL, '\x7b2276223a312c2264223a7b227374616765223a226d656173757265222c226572726f7273223a5b5b6e756c6c2c22646174615f6572726f72222c22746865206d6f64656c2072656675736573222c6e756c6c5d5d2c226c6574746572223a223030626435366563646365373533656131613461336166376663393362326362227d7d', 1794913046856524, 5696, NULL, 'permanent', '80eb484c8f680978', 'data_error', 'ValueError');
INSERT INTO public.outlast_items VALUES (5, 0, 'a', 'dlq', 0, 1, false, 'weigh: ValueError: too heavy', '["the input of weigh is not stored: it is a value of type Picture; its dead letters cannot be replayed"]', NULL, '\x7b2276223a312c2264223a7b227374616765223a227765696768222c226572726f7273223a5b5b6e756c6c2c22646174615f6572726f72222c22746f6f206865617679222c6e756c6c5d5d2c226c6574746572223a223733373833396138323231316664306261376633653936633961646665633033227d7d', 1794913054524612, 959, NULL, 'permanent', '0e7039d5a3e23989', 'data_error', 'ValueError');
INSERT INTO public.outlast_items VALUES (7, 0, '0', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794913069644213, 21209, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 1, '1', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794913069644252, 21276, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 3, '3', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794913069644281, 41317, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 4, '4', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794913069644291, 41343, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 5, '5', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794913069644300, 41351, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 6, '6', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794913069644310, 41355, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 2, '2', 'dlq', 1, 2, false, 'label: ValueError: no label for 2', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22646174615f6572726f72222c226e6f206c6162656c20666f722032222c6e756c6c5d5d2c226c6574746572223a223936393234653637323538393033306237633035616337643264656438636165227d7d', 1794913069644266, 21566, NULL, 'permanent', '51996ef35a3686e7', 'data_error', 'ValueError');
INSERT INTO public.outlast_job_attempts VALUES (2, 1, 1, 'cf245894bd1ddc3e96632b76032d4aea', 1794913076521467, 262, 'failed', 'data_error', 'ValueError', 'nobody knows 2', 'permanent', NULL, 'Traceback (most recent call last):
  File "/where/it/was/durable.py", line 32, in refuse
    raise ValueError(f"nobody knows {n}")
ValueError: nobody knows 2
');
INSERT INTO public.outlast_job_attempts VALUES (3, 1, 1, 'cf245894bd1ddc3e96632b76032d4aea', 1794913076521553, 864, 'failed', 'connection_reset', 'ConnectionResetError', 'once more', NULL, 1794913176591207, 'Traceback (most recent call last):
  File "/where/it/was/durable.py", line 39, in hesitate
    raise ConnectionResetError("once more")
ConnectionResetError: once more
');
INSERT INTO public.outlast_job_attempts VALUES (1, 1, 1, 'cf245894bd1ddc3e96632b76032d4aea', 1794913076520926, 751, 'succeeded', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_job_attempts VALUES (7, 1, 1, '7eafde12dfa985be4d1de67b6f30ddb1', 1794913083946264, 98722, 'timeout', 'timeout', 'AttemptTimeoutError', 'the attempt took longer than 0.1 s', NULL, 1794913184087340, 'Traceback (most recent call last):
  File "/where/it/was/durable.py", line 55, in linger
    threading.Event().wait()
outlast.errors.AttemptTimeoutError: the attempt took longer than 0.1 s
');
INSERT INTO public.outlast_jobs OVERRIDING SYSTEM VALUE VALUES (4, 'shop', 'mail', 'write', 1, 'ready', 0, 1794913075691207, '\x7b2276223a312c2264223a7b226e223a347d7d', NULL, 1794913075691207, 0, NULL, NULL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_jobs OVERRIDING SYSTEM VALUE VALUES (3, 'shop', 'default', 'hesitate', 1, 'waiting', 0, 1794913176591207, '\x7b2276223a312c2264223a7b226e223a337d7d', NULL, 1794913075630705, 1, NULL, 1794913076456751, 1794913076456751, 1, 1, 0, 100000000, NULL, NULL, 'once more', 'ConnectionResetError', 'connection_reset', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_jobs OVERRIDING SYSTEM VALUE VALUES (2, 'shop', 'default', 'refuse', 1, 'failed', 0, 1794913075606053, '\x7b2276223a312c2264223a7b226e223a327d7d', NULL, 1794913075606053, 1, NULL, 1794913076456751, 1794913076456751, 1, 1, 0, NULL, NULL, NULL, 'nobody knows 2', 'ValueError', 'data_error', 'permanent', NULL, 1794913076591207, NULL, '15b1f149ab4a46f8da92c2954def0f0e');
INSERT INTO public.outlast_jobs OVERRIDING SYSTEM VALUE VALUES (1, 'shop', 'default', 'send', 1, 'succeeded', 0, 1794913075585353, '\x7b2276223a312c2264223a7b226e223a317d7d', 'done', 1794913075585353, 1, NULL, 1794913076456751, 1794913076456751, 1, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b2276616c7565223a327d7d', 1794913076635835, NULL, NULL);
INSERT INTO public.outlast_jobs OVERRIDING SYSTEM VALUE VALUES (5, 'shop', 'default', 'send', 1, 'ready', 0, 1794913076730818, '\x7b2276223a312c2264223a7b226e223a357d7d', 'due', 1794913076730818, 0, NULL, NULL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_jobs OVERRIDING SYSTEM VALUE VALUES (6, 'shop', 'last', 'stay', 1, 'processing', 0, 1794913083250298, '\x7b2276223a312c2264223a7b226e223a367d7d', NULL, 1794913083250298, 1, '7eafde12dfa985be4d1de67b6f30ddb1', 1794913083943493, 1794913083943493, 1, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_jobs OVERRIDING SYSTEM VALUE VALUES (7, 'shop', 'last', 'linger', 1, 'held', 0, 1794913184087340, '\x7b2276223a312c2264223a7b226e223a377d7d', NULL, 1794913083300811, 1, '7eafde12dfa985be4d1de67b6f30ddb1', 1794913083943493, 1794913083943493, 1, 1, 0, 100000000, NULL, NULL, 'the attempt took longer than 0.1 s', 'AttemptTimeoutError', 'timeout', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_leases VALUES ('shop', 'worker', '7eafde12dfa985be4d1de67b6f30ddb1', 1, 'gone.example/4026531836:4711:123456:1', 1, 20);
INSERT INTO public.outlast_progress VALUES (1, 0, 2, 1, 3, NULL, true, 3, 0, 0, 0, 0, '{}', NULL);
INSERT INTO public.outlast_progress VALUES (3, 0, 2, 1, 1, NULL, true, 1, 0, 0, 0, 0, '{}', NULL);
INSERT INTO public.outlast_progress VALUES (4, 0, 2, 1, 1, NULL, true, 0, 0, 1, 0, 0, '{}', NULL);
INSERT INTO public.outlast_progress VALUES (5, 0, 2, 1, 1, NULL, true, 0, 0, 1, 0, 0, '{}', NULL);
INSERT INTO public.outlast_progress VALUES (6, 0, 1, 1, 0, NULL, false, 0, 0, 0, 0, 0, '{}', NULL);
INSERT INTO public.outlast_progress VALUES (2, 0, 5, 1, 7, NULL, true, 2, 0, 5, 0, 0, '{}', NULL);
INSERT INTO public.outlast_progress VALUES (7, 0, 1, 1, 12, 114, true, 6, 0, 1, 0, 0, '{}', '114 9e20ec44c1013ab15d66e203cbdb7149');
INSERT INTO public.outlast_queues VALUES ('shop', 'mail', true);
INSERT INTO public.outlast_replays VALUES (3, 0, 'f098ce24b5854b8f9fc16e5558514d54');
INSERT INTO public.outlast_replays VALUES (6, 0, '6fdbb6151983217019dfb7ef8d4c765e');
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (1, 'ee5c8c9497c27a0239caaa2cf94cedb0', 'shop', 'nightly', 'first', 'run', 'completed', NULL, '3 of 3 items succeeded', '[["parse", "1", true], ["label", "1", false]]', NULL, NULL, 1794913030131016, 1794913030283951, '{"sink": "the store", "key": ["field", "id"], "code": {"parse": "ea504f06a93d522a561bcea1", "label": "10236c02d08a299448135cd0"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (2, '598b2468f91cae426ebd79bed24f9661', 'shop', 'nightly', 'second', 'run', 'completed', NULL, '2 of 7 items succeeded, 5 became dead letters; they are open', '[["parse", "1", true], ["label", "1", false]]', NULL, NULL, 1794913036852531, 1794913037366125, '{"sink": "the store", "key": ["field", "id"], "code": {"parse": "ea504f06a93d522a561bcea1", "label": "10236c02d08a299448135cd0"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (3, '2ea087cb4acf05bed198a8d73bdebdae', 'shop', 'nightly', 'replay-081511ec3292', 'replay', 'completed', NULL, '1 of 1 item succeeded', '[["parse", "1", true], ["label", "1", false]]', NULL, NULL, 1794913037755721, 1794913038241520, '{"sink": "the store", "key": ["content", ""], "code": {"parse": "ea504f06a93d522a561bcea1", "label": "10236c02d08a299448135cd0"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (4, 'a96a53234ae45fc2fc530258dd4e5301', 'shop', 'pictures', 'one', 'run', 'completed', NULL, '0 of 1 item succeeded, 1 became a dead letter; it is open', '[["load", "1", false], ["measure", "1", false]]', NULL, NULL, 1794913046740784, 1794913046903468, '{"sink": "the store", "key": ["function", ""], "code": {"load": "d3ed093c67099b32843d86ca", "measure": "8e8252f956480d6468c08de3"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (6, '17a2d7f653ac5ce911627a221c905db2', 'shop', 'nightly', 'replay-7cff7d2ec9eb', 'replay', 'running', NULL, '', '[["parse", "1", true], ["label", "1", false]]', NULL, NULL, 1794913062507410, NULL, '{"sink": "the store", "key": ["content", ""], "code": {"parse": "ea504f06a93d522a561bcea1", "label": "10236c02d08a299448135cd0"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (5, '0798f15562c2ac637f092e999e7aa0d2', 'shop', 'things', 'one', 'run', 'completed', NULL, '0 of 1 item succeeded, 1 became a dead letter; it is open', '[["weigh", "1", false]]', NULL, NULL, 1794913054434921, 1794913054592504, '{"sink": "the store", "key": ["function", "46aa745773f90d191bbc14c5"], "code": {"weigh": "f4a55f41444f66085d243e74"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (7, '2390b4a00cc9fd8546c105ce2d7eca4d', 'shop', 'nightly', 'third', 'run', 'running', NULL, '', '[["parse", "1", true], ["label", "1", false]]', NULL, 'out.jsonl', 1794913069281352, NULL, '{"sink": "out.jsonl", "key": ["field", "id"], "code": {"parse": "ea504f06a93d522a561bcea1", "label": "10236c02d08a299448135cd0"}}', '{"file": "/where/it/was/out.jsonl"}', NULL, NULL);
INSERT INTO public.outlast_schema VALUES (18);
INSERT INTO public.outlast_shards VALUES (1, 0, 2, '', 0, 20);
INSERT INTO public.outlast_shards VALUES (3, 0, 2, '', 0, 20);
INSERT INTO public.outlast_shards VALUES (4, 0, 2, '', 0, 20);
INSERT INTO public.outlast_shards VALUES (5, 0, 2, '', 0, 20);
INSERT INTO public.outlast_shards VALUES (2, 0, 5, 'gone.example/4026531836:4711:123456:1', 1, 20);
INSERT INTO public.outlast_shards VALUES (6, 0, 1, 'gone.example/4026531836:4711:123456:1', 1, 20);
INSERT INTO public.outlast_shards VALUES (7, 0, 1, 'gone.example/4026531836:4711:123456:1', 1, 20);
INSERT INTO public.outlast_store VALUES ('0e6c04ebdd95ea3eae16920659bf9f7c06e53123455186eeb4868be3808cab34');
INSERT INTO public.outlast_workers VALUES ('shop', 'cf245894bd1ddc3e96632b76032d4aea', NULL, '{"outlast.flow": 1, "send": 1, "write": 1, "refuse": 1, "hesitate": 1, "stay": 1, "linger": 1}');
INSERT INTO public.outlast_workers VALUES ('shop', '7eafde12dfa985be4d1de67b6f30ddb1', '["last"]', '{"outlast.flow": 1, "send": 1, "write": 1, "refuse": 1, "hesitate": 1, "stay": 1, "linger": 1}');
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
ALTER TABLE ONLY public.outlast_flow_steps
    ADD CONSTRAINT outlast_flow_steps_pkey PRIMARY KEY (run, step, deed);
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
ALTER TABLE ONLY public.outlast_step_attempts
    ADD CONSTRAINT outlast_step_attempts_pkey PRIMARY KEY (run, step, deed, number);
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
