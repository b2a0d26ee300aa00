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
    next_run bigint
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
CREATE TABLE public.outlast_store (
    id text NOT NULL
);
INSERT INTO public.outlast_attempts VALUES (1, 0, 0, 1, 1, 'success', 1794826546472071, 22, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (1, 1, 0, 1, 1, 'success', 1794826546472157, 6, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (1, 2, 0, 1, 1, 'success', 1794826546472180, 4, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (1, 0, 1, 1, 1, 'success', 1794826546492805, 14, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":20419}', NULL);
INSERT INTO public.outlast_attempts VALUES (1, 1, 1, 1, 1, 'success', 1794826546492891, 5, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":20319}', NULL);
INSERT INTO public.outlast_attempts VALUES (1, 2, 1, 1, 1, 'success', 1794826546492920, 3, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":20289}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 0, 0, 1, 1, 'success', 1794826548040374, 9, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 1, 0, 1, 1, 'success', 1794826548040411, 3, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 2, 0, 1, 1, 'success', 1794826548040424, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 3, 0, 1, 1, 'success', 1794826548040433, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 4, 0, 1, 1, 'success', 1794826548040443, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 5, 0, 1, 1, 'success', 1794826548040451, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 6, 0, 1, 1, 'success', 1794826548040459, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 0, 1, 1, 1, 'success', 1794826548050041, 10, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":9439}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 1, 1, 1, 1, 'retrying', 1794826548050094, 22, 'connection_reset', 'ConnectionResetError', 'no label for 4', 10000, NULL, '{"checkpoint":9383}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 1, 1, 1, 2, 'failed', 1794826548061547, 28, 'connection_reset', 'ConnectionResetError', 'no label for 4', NULL, NULL, '{"retry":10541}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (2, 2, 1, 1, 1, 'retrying', 1794826548050443, 9, 'connection_reset', 'ConnectionResetError', 'no label for 5', 10000, NULL, '{"checkpoint":9365}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 2, 1, 1, 2, 'failed', 1794826548065627, 19, 'connection_reset', 'ConnectionResetError', 'no label for 5', NULL, NULL, '{"retry":10523}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (2, 4, 1, 1, 1, 'retrying', 1794826548050593, 7, 'connection_reset', 'ConnectionResetError', 'no label for 7', 10000, NULL, '{"checkpoint":9339}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 4, 1, 1, 2, 'failed', 1794826548066231, 11, 'connection_reset', 'ConnectionResetError', 'no label for 7', NULL, NULL, '{"retry":10519}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (2, 3, 1, 1, 1, 'retrying', 1794826548050526, 7, 'connection_reset', 'ConnectionResetError', 'no label for 6', 10000, NULL, '{"checkpoint":9353}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 3, 1, 1, 2, 'failed', 1794826548066770, 10, 'connection_reset', 'ConnectionResetError', 'no label for 6', NULL, NULL, '{"retry":10521}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (2, 6, 1, 1, 1, 'retrying', 1794826548050719, 6, 'connection_reset', 'ConnectionResetError', 'no label for 9', 10000, NULL, '{"checkpoint":9318}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 6, 1, 1, 2, 'failed', 1794826548067382, 12, 'connection_reset', 'ConnectionResetError', 'no label for 9', NULL, NULL, '{"retry":10516}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (2, 5, 1, 1, 1, 'retrying', 1794826548050657, 6, 'connection_reset', 'ConnectionResetError', 'no label for 8', 10000, NULL, '{"checkpoint":9328}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 5, 1, 1, 2, 'failed', 1794826548067932, 11, 'connection_reset', 'ConnectionResetError', 'no label for 8', NULL, NULL, '{"retry":10518}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (3, 0, 1, 1, 1, 'success', 1794826548168943, 70, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (4, 0, 0, 1, 1, 'success', 1794826549766444, 12, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (4, 0, 1, 1, 1, 'failed', 1794826549766467, 18, 'data_error', 'ValueError', 'the model refuses', NULL, NULL, NULL, 'permanent');
INSERT INTO public.outlast_attempts VALUES (5, 0, 0, 1, 1, 'failed', 1794826551282761, 23, 'data_error', 'ValueError', 'too heavy', NULL, NULL, NULL, 'permanent');
INSERT INTO public.outlast_attempts VALUES (7, 0, 0, 1, 1, 'success', 1794826555068801, 14, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 1, 0, 1, 1, 'success', 1794826555068861, 4, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 2, 0, 1, 1, 'success', 1794826555068879, 3, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 3, 0, 1, 1, 'success', 1794826555068895, 3, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 4, 0, 1, 1, 'success', 1794826555068908, 3, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 5, 0, 1, 1, 'success', 1794826555068921, 3, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 6, 0, 1, 1, 'success', 1794826555068933, 3, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 7, 0, 1, 1, 'success', 1794826555069053, 10, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 8, 0, 1, 1, 'success', 1794826555069083, 4, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 9, 0, 1, 1, 'success', 1794826555069097, 3, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 10, 0, 1, 1, 'success', 1794826555069107, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 11, 0, 1, 1, 'success', 1794826555069118, 3, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 0, 1, 1, 1, 'success', 1794826555080716, 16, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":11337}', NULL);
INSERT INTO public.outlast_attempts VALUES (7, 1, 1, 1, 1, 'success', 1794826555080803, 5, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":11240}', NULL);
INSERT INTO public.outlast_attempts VALUES (7, 2, 1, 1, 1, 'failed', 1794826555080828, 34, 'data_error', 'ValueError', 'no label for 2', NULL, NULL, '{"checkpoint":11212}', 'permanent');
INSERT INTO public.outlast_attempts VALUES (7, 3, 1, 1, 1, 'success', 1794826555082360, 9, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":11190}', NULL);
INSERT INTO public.outlast_attempts VALUES (7, 4, 1, 1, 1, 'success', 1794826555082562, 6, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":11173}', NULL);
INSERT INTO public.outlast_attempts VALUES (7, 5, 1, 1, 1, 'success', 1794826555082836, 6, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":11157}', NULL);
INSERT INTO public.outlast_attempts VALUES (7, 6, 1, 1, 1, 'success', 1794826555082877, 3, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":11141}', NULL);
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
INSERT INTO public.outlast_dead_letters VALUES ('45e9491e863048505533661e477f478b', 'shop', '37386bebd0cebd3a2f9327624452a7cf', 4, 'nightly', 'label', '7', 'item', 'open', '27a3100c86472090', 'no label for 7', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794826548050600, 1794826548066686, 1794826548066687, 1794826548066687, 0, NULL, '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo3LCJ0ZXh0IjoicmV2aWV3IDcifX0="}', '\x7b2276223a312c2264223a7b226964223a372c22776f726473223a5b22726576696577222c2237225d7d7d', NULL, 'exhausted', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('dd2c6ef79b52124c1fff2ecf5781470a', 'shop', '37386bebd0cebd3a2f9327624452a7cf', 6, 'nightly', 'label', '9', 'item', 'open', '27a3100c86472090', 'no label for 9', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794826548050726, 1794826548067860, 1794826548067861, 1794826548067861, 0, NULL, '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo5LCJ0ZXh0IjoicmV2aWV3IDkifX0="}', '\x7b2276223a312c2264223a7b226964223a392c22776f726473223a5b22726576696577222c2239225d7d7d', NULL, 'exhausted', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('1332d1a36ae3cb95b7e1d9a248c2dbd3', 'shop', '37386bebd0cebd3a2f9327624452a7cf', 5, 'nightly', 'label', '8', 'item', 'open', '27a3100c86472090', 'no label for 8', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794826548050664, 1794826548068321, 1794826548068321, 1794826548068321, 0, NULL, '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo4LCJ0ZXh0IjoicmV2aWV3IDgifX0="}', '\x7b2276223a312c2264223a7b226964223a382c22776f726473223a5b22726576696577222c2238225d7d7d', NULL, 'exhausted', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('b97b93c6de126fde2f84c703789800ec', 'shop', '37386bebd0cebd3a2f9327624452a7cf', 1, 'nightly', 'label', '4', 'item', 'archived', '27a3100c86472090', 'no label for 4', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794826548050117, 1794826548065337, 1794826548065337, 1794826548098733, 0, 'not ours', '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo0LCJ0ZXh0IjoicmV2aWV3IDQifX0="}', '\x7b2276223a312c2264223a7b226964223a342c22776f726473223a5b22726576696577222c2234225d7d7d', NULL, 'exhausted', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('134acc876e9ffb7b735a0c6867e03904', 'shop', '37386bebd0cebd3a2f9327624452a7cf', 2, 'nightly', 'label', '5', 'item', 'resolved', '27a3100c86472090', 'no label for 5', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794826548050452, 1794826548173881, 1794826548066143, 1794826548173881, 1, 'replayed by replay-484877b6e3bd', '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo1LCJ0ZXh0IjoicmV2aWV3IDUifX0="}', '\x7b2276223a312c2264223a7b226964223a352c22776f726473223a5b22726576696577222c2235225d7d7d', NULL, 'exhausted', 'a1171f7333107ab3dbe1f28ee3847e02');
INSERT INTO public.outlast_dead_letters VALUES ('d10557f71dc0c025d34931a7fd8b0e05', 'shop', 'b8f5c3daea51406a159ed3138bd8e6be', 0, 'pictures', 'measure', '1', 'item', 'open', '80eb484c8f680978', 'the model refuses', 'ValueError', 'data_error', 'data', 1, 1794826549766486, 1794826549767556, 1794826549767557, 1794826549767557, 0, NULL, '{"source": "eyJ2IjoxLCJkIjoxfQ==", "unstored": "it is a value of type Picture", "begins": "load", "warnings": ["the input of measure is not stored: it is a value of type Picture; a replay begins at load"]}', '\x7b2276223a312c2264223a317d', NULL, 'permanent', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('0bfe3f9c5752b838aff832440cdc8f5f', 'shop', 'd0a8d6f2b56712d83dd864a0179b3a0a', 0, 'things', 'weigh', 'a', 'item', 'open', '0e7039d5a3e23989', 'too heavy', 'ValueError', 'data_error', 'data', 1, 1794826551282785, 1794826551285256, 1794826551285257, 1794826551285257, 0, NULL, '{"unstored": "it is a value of type Picture", "begins": null, "warnings": ["the input of weigh is not stored: it is a value of type Picture; its dead letters cannot be replayed"]}', '\x7b2276223a312c2264223a6e756c6c7d', NULL, 'permanent', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('e30f36616f07e726757e73c8fdb577f6', 'shop', '37386bebd0cebd3a2f9327624452a7cf', 3, 'nightly', 'label', '6', 'item', 'replaying', '27a3100c86472090', 'no label for 6', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794826548050533, 1794826548067304, 1794826548067304, 1794826553122562, 0, 'replayed by replay-b40fef796188', '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo2LCJ0ZXh0IjoicmV2aWV3IDYifX0="}', '\x7b2276223a312c2264223a7b226964223a362c22776f726473223a5b22726576696577222c2236225d7d7d', NULL, 'exhausted', '03137806d7b65090c325eb544c561c1d');
INSERT INTO public.outlast_dead_letters VALUES ('235b82bb950a81612a44178f1b318d96', 'shop', '2ad74d4a1b0162feebe447105231423b', 2, 'nightly', 'label', '2', 'item', 'open', '51996ef35a3686e7', 'no label for 2', 'ValueError', 'data_error', 'data', 1, 1794826555080862, 1794826555082222, 1794826555082223, 1794826555082223, 0, NULL, '{"source": "eyJ2IjoxLCJkIjp7ImlkIjoyLCJ0ZXh0IjoicmV2aWV3IDIifX0="}', '\x7b2276223a312c2264223a7b226964223a322c22776f726473223a5b22726576696577222c2232225d7d7d', NULL, 'permanent', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('ac79f7a39c4f2b1c543d703250651b9d', 'shop', NULL, NULL, 'refuse', 'refuse', '2', 'job', 'open', '602699d8455b0b2e', 'nobody knows 2', 'ValueError', 'data_error', 'data', 1, 1794826556836045, 1794826556837269, 1794826556839728, 1794826556839728, 0, NULL, '{"queue": "default", "version": 1}', '\x7b2276223a312c2264223a7b226e223a327d7d', NULL, 'permanent', NULL);
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (1, '17f74b8781ab7ead9fb699b2b8c5f15a', 'shop', 'fbc182b612a9dc3879d7e723bd9eeac8', 'run_started', 1794826546469328, '{"event": "run_started", "ts": "2026-11-16T10:55:46.469328+00:00", "seq": 1, "run_id": "fbc182b612a9dc3879d7e723bd9eeac8", "pipeline": "nightly", "run_key": "first", "finished": 0, "target": null}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (2, '1669918579732bcc7e2061fa7a342a11', 'shop', 'fbc182b612a9dc3879d7e723bd9eeac8', 'run_finished', 1794826546497452, '{"event": "run_finished", "ts": "2026-11-16T10:55:46.497452+00:00", "seq": 2, "run_id": "fbc182b612a9dc3879d7e723bd9eeac8", "pipeline": "nightly", "run_key": "first", "status": "completed", "outcome": "success", "reason": null, "why": "3 of 3 items succeeded", "total": 3, "succeeded": 3, "skipped": 0, "dlq": 0, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (3, '62d375d3e39b4535e0258e74c66bd807', 'shop', '37386bebd0cebd3a2f9327624452a7cf', 'run_started', 1794826548039564, '{"event": "run_started", "ts": "2026-11-16T10:55:48.039564+00:00", "seq": 1, "run_id": "37386bebd0cebd3a2f9327624452a7cf", "pipeline": "nightly", "run_key": "second", "finished": 0, "target": null}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (4, '0b299577efb6f60783e7c71e8671bd9b', 'shop', '37386bebd0cebd3a2f9327624452a7cf', 'run_finished', 1794826548072402, '{"event": "run_finished", "ts": "2026-11-16T10:55:48.072402+00:00", "seq": 2, "run_id": "37386bebd0cebd3a2f9327624452a7cf", "pipeline": "nightly", "run_key": "second", "status": "completed", "outcome": "partial", "reason": null, "why": "1 of 7 items succeeded, 6 became dead letters; they are open", "total": 7, "succeeded": 1, "skipped": 0, "dlq": 6, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (5, '4f23507af8ae8dffd000a7a9ba1c0a9d', 'shop', 'a1171f7333107ab3dbe1f28ee3847e02', 'run_started', 1794826548130854, '{"event": "run_started", "ts": "2026-11-16T10:55:48.130854+00:00", "seq": 3, "run_id": "a1171f7333107ab3dbe1f28ee3847e02", "pipeline": "nightly", "run_key": "replay-484877b6e3bd", "finished": 0, "target": null}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (6, 'c209cc527cb84c775a28296a03cc9ddd', 'shop', 'a1171f7333107ab3dbe1f28ee3847e02', 'run_finished', 1794826548182141, '{"event": "run_finished", "ts": "2026-11-16T10:55:48.182141+00:00", "seq": 4, "run_id": "a1171f7333107ab3dbe1f28ee3847e02", "pipeline": "nightly", "run_key": "replay-484877b6e3bd", "status": "completed", "outcome": "success", "reason": null, "why": "1 of 1 item succeeded", "total": 1, "succeeded": 1, "skipped": 0, "dlq": 0, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (7, '402394db6cc0cee1a6d8b775fd9c552b', 'shop', 'b8f5c3daea51406a159ed3138bd8e6be', 'run_started', 1794826549765708, '{"event": "run_started", "ts": "2026-11-16T10:55:49.765708+00:00", "seq": 1, "run_id": "b8f5c3daea51406a159ed3138bd8e6be", "pipeline": "pictures", "run_key": "one", "finished": 0, "target": null}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (8, '3e4df05e66fa093939e1867819ec00b9', 'shop', 'b8f5c3daea51406a159ed3138bd8e6be', 'run_finished', 1794826549776334, '{"event": "run_finished", "ts": "2026-11-16T10:55:49.776334+00:00", "seq": 2, "run_id": "b8f5c3daea51406a159ed3138bd8e6be", "pipeline": "pictures", "run_key": "one", "status": "completed", "outcome": "failure", "reason": null, "why": "0 of 1 item succeeded, 1 became a dead letter; it is open", "total": 1, "succeeded": 0, "skipped": 0, "dlq": 1, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (9, '612880983b26f9f08e7669367ced1663', 'shop', 'd0a8d6f2b56712d83dd864a0179b3a0a', 'run_started', 1794826551281529, '{"event": "run_started", "ts": "2026-11-16T10:55:51.281529+00:00", "seq": 1, "run_id": "d0a8d6f2b56712d83dd864a0179b3a0a", "pipeline": "things", "run_key": "one", "finished": 0, "target": null}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (10, 'e6488ea90c4d14d6e11ea4ecffaf0b0b', 'shop', 'd0a8d6f2b56712d83dd864a0179b3a0a', 'run_finished', 1794826551335408, '{"event": "run_finished", "ts": "2026-11-16T10:55:51.335408+00:00", "seq": 2, "run_id": "d0a8d6f2b56712d83dd864a0179b3a0a", "pipeline": "things", "run_key": "one", "status": "completed", "outcome": "failure", "reason": null, "why": "0 of 1 item succeeded, 1 became a dead letter; it is open", "total": 1, "succeeded": 0, "skipped": 0, "dlq": 1, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (11, 'ee040d2013119b002ffce076cfadf7d7', 'shop', '2ad74d4a1b0162feebe447105231423b', 'run_started', 1794826555067516, '{"event": "run_started", "ts": "2026-11-16T10:55:55.067516+00:00", "seq": 1, "run_id": "2ad74d4a1b0162feebe447105231423b", "pipeline": "nightly", "run_key": "third", "finished": 0, "target": null}');
INSERT INTO public.outlast_items VALUES (1, 0, '0', 'succeeded', 1, 2, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a302c226c6162656c223a327d7d', 1794826546472071, 20987, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (1, 1, '1', 'succeeded', 1, 2, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a312c226c6162656c223a327d7d', 1794826546472157, 20943, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (1, 2, '2', 'succeeded', 1, 2, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a322c226c6162656c223a327d7d', 1794826546472180, 20935, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (2, 0, '3', 'succeeded', 1, 2, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a332c226c6162656c223a327d7d', 1794826548040374, 10464, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (2, 1, '4', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 4', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722034222c6e756c6c5d5d2c226c6574746572223a226239376239336336646531323666646532663834633730333738393830306563227d7d', 1794826548040411, 24871, NULL, 'exhausted', '27a3100c86472090', 'connection_reset', 'ConnectionResetError');
INSERT INTO public.outlast_items VALUES (2, 4, '7', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 7', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722037222c6e756c6c5d5d2c226c6574746572223a223435653934393165383633303438353035353333363631653437376634373862227d7d', 1794826548040443, 26180, NULL, 'exhausted', '27a3100c86472090', 'connection_reset', 'ConnectionResetError');
INSERT INTO public.outlast_items VALUES (2, 3, '6', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 6', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722036222c6e756c6c5d5d2c226c6574746572223a226533306633363631366630376537323637353765373363386664623537376636227d7d', 1794826548040433, 26831, NULL, 'exhausted', '27a3100c86472090', 'connection_reset', 'ConnectionResetError');
INSERT INTO public.outlast_items VALUES (2, 6, '9', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 9', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722039222c6e756c6c5d5d2c226c6574746572223a226464326336656637396235323132346331666666326563663537383134373061227d7d', 1794826548040459, 27362, NULL, 'exhausted', '27a3100c86472090', 'connection_reset', 'ConnectionResetError');
INSERT INTO public.outlast_items VALUES (2, 5, '8', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 8', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722038222c6e756c6c5d5d2c226c6574746572223a223133333264316133366165336362393562376531643961323438633264626433227d7d', 1794826548040451, 27835, NULL, 'exhausted', '27a3100c86472090', 'connection_reset', 'ConnectionResetError');
INSERT INTO public.outlast_items VALUES (3, 0, '5', 'succeeded', 1, 1, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a352c226c6162656c223a327d7d', 1794826548168943, 552, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (2, 2, '5', 'succeeded', 1, 3, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a352c226c6162656c223a327d7d', 1794826548040424, 25680, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (4, 0, '1', 'dlq', 1, 2, false, 'measure: ValueError: the model refuses', '["the input of measure is not stored: it is a value of type Picture; a replay begins at load"]', NULL, '\x7b2276223a312c2264223a7b227374616765223a226d656173757265222c226572726f7273223a5b5b6e756c6c2c22646174615f6572726f72222c22746865206d6f64656c2072656675736573222c6e756c6c5d5d2c226c6574746572223a226431303535376637316463306330323564333439333161376664386230653035227d7d', 1794826549766444, 1032, NULL, 'permanent', '80eb484c8f680978', 'data_error', 'ValueError');
INSERT INTO public.outlast_items VALUES (5, 0, 'a', 'dlq', 0, 1, false, 'weigh: ValueError: too heavy', '["the input of weigh is not stored: it is a value of type Picture; its dead letters cannot be replayed"]', NULL, '\x7b2276223a312c2264223a7b227374616765223a227765696768222c226572726f7273223a5b5b6e756c6c2c22646174615f6572726f72222c22746f6f206865617679222c6e756c6c5d5d2c226c6574746572223a223062666533663963353735326238333861666638333234343063646338663566227d7d', 1794826551282761, 2442, NULL, 'permanent', '0e7039d5a3e23989', 'data_error', 'ValueError');
INSERT INTO public.outlast_items VALUES (7, 0, '0', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794826555068801, 13003, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 1, '1', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794826555068861, 13019, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 3, '3', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794826555068895, 13587, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 4, '4', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794826555068908, 13741, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 5, '5', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794826555068921, 14699, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 6, '6', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794826555068933, 14719, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 2, '2', 'dlq', 1, 2, false, 'label: ValueError: no label for 2', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22646174615f6572726f72222c226e6f206c6162656c20666f722032222c6e756c6c5d5d2c226c6574746572223a223233356238326262393530613831363132613434313738663162333138643936227d7d', 1794826555068879, 13275, NULL, 'permanent', '51996ef35a3686e7', 'data_error', 'ValueError');
INSERT INTO public.outlast_job_attempts VALUES (1, 1, 1, 'a14fcf7d7e4a2b9cd1b8f9f548e527cc', 1794826556836563, 345, 'succeeded', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_job_attempts VALUES (2, 1, 1, 'a14fcf7d7e4a2b9cd1b8f9f548e527cc', 1794826556837269, 2459, 'failed', 'data_error', 'ValueError', 'nobody knows 2', 'permanent', NULL);
INSERT INTO public.outlast_job_attempts VALUES (3, 1, 1, 'a14fcf7d7e4a2b9cd1b8f9f548e527cc', 1794826556837483, 2669, 'failed', 'connection_reset', 'ConnectionResetError', 'once more', NULL, 1794826656851882);
INSERT INTO public.outlast_job_attempts VALUES (7, 1, 1, 'd19cf5bfb8eeb884c6976e71d29d8898', 1794826558756603, 99711, 'timeout', 'timeout', 'AttemptTimeoutError', 'the attempt took longer than 0.1 s', NULL, 1794826658870967);
INSERT INTO public.outlast_jobs OVERRIDING SYSTEM VALUE VALUES (4, 'shop', 'mail', 'write', 1, 'ready', 0, 1794826556770890, '\x7b2276223a312c2264223a7b226e223a347d7d', NULL, 1794826556770890, 0, NULL, NULL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_jobs OVERRIDING SYSTEM VALUE VALUES (1, 'shop', 'default', 'send', 1, 'succeeded', 0, 1794826556759373, '\x7b2276223a312c2264223a7b226e223a317d7d', 'done', 1794826556759373, 1, NULL, 1794826556836045, 1794826556836045, 1, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b2276616c7565223a327d7d', 1794826556848899, NULL, NULL);
INSERT INTO public.outlast_jobs OVERRIDING SYSTEM VALUE VALUES (3, 'shop', 'default', 'hesitate', 1, 'waiting', 0, 1794826656851882, '\x7b2276223a312c2264223a7b226e223a337d7d', NULL, 1794826556762272, 1, NULL, 1794826556836045, 1794826556836045, 1, 1, 0, 100000000, NULL, NULL, 'once more', 'ConnectionResetError', 'connection_reset', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_jobs OVERRIDING SYSTEM VALUE VALUES (2, 'shop', 'default', 'refuse', 1, 'failed', 0, 1794826556761375, '\x7b2276223a312c2264223a7b226e223a327d7d', NULL, 1794826556761375, 1, NULL, 1794826556836045, 1794826556836045, 1, 1, 0, NULL, NULL, NULL, 'nobody knows 2', 'ValueError', 'data_error', 'permanent', NULL, 1794826556851882, NULL, 'ac79f7a39c4f2b1c543d703250651b9d');
INSERT INTO public.outlast_jobs OVERRIDING SYSTEM VALUE VALUES (5, 'shop', 'default', 'send', 1, 'ready', 0, 1794826556868236, '\x7b2276223a312c2264223a7b226e223a357d7d', 'due', 1794826556868236, 0, NULL, NULL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_jobs OVERRIDING SYSTEM VALUE VALUES (6, 'shop', 'last', 'stay', 1, 'processing', 0, 1794826558567313, '\x7b2276223a312c2264223a7b226e223a367d7d', NULL, 1794826558567313, 1, 'd19cf5bfb8eeb884c6976e71d29d8898', 1794826558753786, 1794826558753786, 1, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_jobs OVERRIDING SYSTEM VALUE VALUES (7, 'shop', 'last', 'linger', 1, 'held', 0, 1794826658870967, '\x7b2276223a312c2264223a7b226e223a377d7d', NULL, 1794826558569313, 1, 'd19cf5bfb8eeb884c6976e71d29d8898', 1794826558753786, 1794826558753786, 1, 1, 0, 100000000, NULL, NULL, 'the attempt took longer than 0.1 s', 'AttemptTimeoutError', 'timeout', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_leases VALUES ('shop', 'worker', 'd19cf5bfb8eeb884c6976e71d29d8898', 1, 'gone.example/4026531836:4711:123456:1', 1, 20);
INSERT INTO public.outlast_progress VALUES (1, 0, 2, 1, 3, NULL, true, 3, 0, 0, 0, 0, '{}', NULL);
INSERT INTO public.outlast_progress VALUES (3, 0, 2, 1, 1, NULL, true, 1, 0, 0, 0, 0, '{}', NULL);
INSERT INTO public.outlast_progress VALUES (4, 0, 2, 1, 1, NULL, true, 0, 0, 1, 0, 0, '{}', NULL);
INSERT INTO public.outlast_progress VALUES (5, 0, 2, 1, 1, NULL, true, 0, 0, 1, 0, 0, '{}', NULL);
INSERT INTO public.outlast_progress VALUES (6, 0, 1, 1, 0, NULL, false, 0, 0, 0, 0, 0, '{}', NULL);
INSERT INTO public.outlast_progress VALUES (2, 0, 5, 1, 7, NULL, true, 2, 0, 5, 0, 0, '{}', NULL);
INSERT INTO public.outlast_progress VALUES (7, 0, 1, 1, 12, 114, true, 6, 0, 1, 0, 0, '{}', '114 9e20ec44c1013ab15d66e203cbdb7149');
INSERT INTO public.outlast_queues VALUES ('shop', 'mail', true);
INSERT INTO public.outlast_replays VALUES (3, 0, '134acc876e9ffb7b735a0c6867e03904');
INSERT INTO public.outlast_replays VALUES (6, 0, 'e30f36616f07e726757e73c8fdb577f6');
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (1, 'fbc182b612a9dc3879d7e723bd9eeac8', 'shop', 'nightly', 'first', 'run', 'completed', NULL, '3 of 3 items succeeded', '[["parse", "1", true], ["label", "1", false]]', NULL, NULL, 1794826546445876, 1794826546500670, '{"sink": "the store", "key": ["field", "id"], "code": {"parse": "ea504f06a93d522a561bcea1", "label": "10236c02d08a299448135cd0"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (2, '37386bebd0cebd3a2f9327624452a7cf', 'shop', 'nightly', 'second', 'run', 'completed', NULL, '2 of 7 items succeeded, 5 became dead letters; they are open', '[["parse", "1", true], ["label", "1", false]]', NULL, NULL, 1794826548004924, 1794826548072578, '{"sink": "the store", "key": ["field", "id"], "code": {"parse": "ea504f06a93d522a561bcea1", "label": "10236c02d08a299448135cd0"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (3, 'a1171f7333107ab3dbe1f28ee3847e02', 'shop', 'nightly', 'replay-484877b6e3bd', 'replay', 'completed', NULL, '1 of 1 item succeeded', '[["parse", "1", true], ["label", "1", false]]', NULL, NULL, 1794826548114210, 1794826548182351, '{"sink": "the store", "key": ["content", ""], "code": {"parse": "ea504f06a93d522a561bcea1", "label": "10236c02d08a299448135cd0"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (4, 'b8f5c3daea51406a159ed3138bd8e6be', 'shop', 'pictures', 'one', 'run', 'completed', NULL, '0 of 1 item succeeded, 1 became a dead letter; it is open', '[["load", "1", false], ["measure", "1", false]]', NULL, NULL, 1794826549746681, 1794826549776609, '{"sink": "the store", "key": ["function", ""], "code": {"load": "d3ed093c67099b32843d86ca", "measure": "8e8252f956480d6468c08de3"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (5, 'd0a8d6f2b56712d83dd864a0179b3a0a', 'shop', 'things', 'one', 'run', 'completed', NULL, '0 of 1 item succeeded, 1 became a dead letter; it is open', '[["weigh", "1", false]]', NULL, NULL, 1794826551265252, 1794826551335595, '{"sink": "the store", "key": ["function", "46aa745773f90d191bbc14c5"], "code": {"weigh": "f4a55f41444f66085d243e74"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (6, '03137806d7b65090c325eb544c561c1d', 'shop', 'nightly', 'replay-b40fef796188', 'replay', 'running', NULL, '', '[["parse", "1", true], ["label", "1", false]]', NULL, NULL, 1794826553098139, NULL, '{"sink": "the store", "key": ["content", ""], "code": {"parse": "ea504f06a93d522a561bcea1", "label": "10236c02d08a299448135cd0"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (7, '2ad74d4a1b0162feebe447105231423b', 'shop', 'nightly', 'third', 'run', 'running', NULL, '', '[["parse", "1", true], ["label", "1", false]]', NULL, 'out.jsonl', 1794826555026088, NULL, '{"sink": "out.jsonl", "key": ["field", "id"], "code": {"parse": "ea504f06a93d522a561bcea1", "label": "10236c02d08a299448135cd0"}}', '{"file": "/where/it/was/out.jsonl"}', NULL, NULL);
INSERT INTO public.outlast_schema VALUES (11);
INSERT INTO public.outlast_shards VALUES (1, 0, 2, '', 0, 20);
INSERT INTO public.outlast_shards VALUES (3, 0, 2, '', 0, 20);
INSERT INTO public.outlast_shards VALUES (4, 0, 2, '', 0, 20);
INSERT INTO public.outlast_shards VALUES (5, 0, 2, '', 0, 20);
INSERT INTO public.outlast_shards VALUES (2, 0, 5, 'gone.example/4026531836:4711:123456:1', 1, 20);
INSERT INTO public.outlast_shards VALUES (6, 0, 1, 'gone.example/4026531836:4711:123456:1', 1, 20);
INSERT INTO public.outlast_shards VALUES (7, 0, 1, 'gone.example/4026531836:4711:123456:1', 1, 20);
INSERT INTO public.outlast_store VALUES ('4da7877f903cbafa1b6d47fd1cb88a3b5658ff285460fd8f7afc9afdc37b010b');
SELECT pg_catalog.setval('public.outlast_events_number_seq', 11, true);
SELECT pg_catalog.setval('public.outlast_jobs_id_seq', 7, true);
SELECT pg_catalog.setval('public.outlast_runs_number_seq', 7, true);
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
ALTER TABLE ONLY public.outlast_items
    ADD CONSTRAINT outlast_items_pkey PRIMARY KEY (run, seq);
ALTER TABLE ONLY public.outlast_job_attempts
    ADD CONSTRAINT outlast_job_attempts_pkey PRIMARY KEY (job, number);
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
ALTER TABLE ONLY public.outlast_shards
    ADD CONSTRAINT outlast_shards_pkey PRIMARY KEY (run, shard);
ALTER TABLE ONLY public.outlast_states
    ADD CONSTRAINT outlast_states_pkey PRIMARY KEY (app, kind, name);
ALTER TABLE ONLY public.outlast_store
    ADD CONSTRAINT outlast_store_pkey PRIMARY KEY (id);
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
CREATE INDEX outlast_jobs_alone ON public.outlast_jobs USING btree (app, queue, id) WHERE (state = 'alone'::text);
CREATE INDEX outlast_jobs_ended ON public.outlast_jobs USING btree (app, state, ended) WHERE (state = ANY (ARRAY['succeeded'::text, 'failed'::text, 'cancelled'::text]));
CREATE INDEX outlast_jobs_lingering ON public.outlast_jobs USING btree (app, worker) WHERE ((worker IS NOT NULL) AND (state = ANY (ARRAY['failed'::text, 'cancelled'::text])));
CREATE INDEX outlast_jobs_owned ON public.outlast_jobs USING btree (app, worker) WHERE (state = ANY (ARRAY['processing'::text, 'held'::text]));
CREATE INDEX outlast_jobs_ready ON public.outlast_jobs USING btree (app, queue, priority DESC, id) WHERE (state = 'ready'::text);
CREATE UNIQUE INDEX outlast_jobs_unique ON public.outlast_jobs USING btree (app, kind, unique_key) WHERE ((unique_key IS NOT NULL) AND (state = ANY (ARRAY['ready'::text, 'waiting'::text, 'alone'::text, 'held'::text, 'processing'::text, 'succeeded'::text])));
CREATE INDEX outlast_jobs_waiting ON public.outlast_jobs USING btree (app, due) WHERE (state = 'waiting'::text);
CREATE INDEX outlast_runs_newest ON public.outlast_runs USING btree (app, started, number);
