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
    waits text
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
    original bytea
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
    waits text
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
    spent text DEFAULT '{}'::text NOT NULL
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
    finished bigint
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
INSERT INTO public.outlast_attempts VALUES (1, 0, 0, 1, 1, 'success', 1794777203733629, 12, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (1, 1, 0, 1, 1, 'success', 1794777203733671, 3, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (1, 2, 0, 1, 1, 'success', 1794777203733681, 2, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (1, 0, 1, 1, 1, 'success', 1794777203744141, 9, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":10306}');
INSERT INTO public.outlast_attempts VALUES (1, 1, 1, 1, 1, 'success', 1794777203744182, 3, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":10247}');
INSERT INTO public.outlast_attempts VALUES (1, 2, 1, 1, 1, 'success', 1794777203744195, 2, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":10229}');
INSERT INTO public.outlast_attempts VALUES (2, 0, 0, 1, 1, 'success', 1794777204285788, 12, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 1, 0, 1, 1, 'success', 1794777204285839, 3, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 2, 0, 1, 1, 'success', 1794777204285849, 2, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 3, 0, 1, 1, 'success', 1794777204285856, 2, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 4, 0, 1, 1, 'success', 1794777204285864, 2, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 5, 0, 1, 1, 'success', 1794777204285872, 2, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 6, 0, 1, 1, 'success', 1794777204285878, 2, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 0, 1, 1, 1, 'success', 1794777204298113, 15, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":12024}');
INSERT INTO public.outlast_attempts VALUES (2, 1, 1, 1, 1, 'retrying', 1794777204298168, 9, 'connection_reset', 'ConnectionResetError', 'no label for 4', 10000, NULL, '{"checkpoint":11959}');
INSERT INTO public.outlast_attempts VALUES (2, 1, 1, 1, 2, 'failed', 1794777204310094, 20, 'connection_reset', 'ConnectionResetError', 'no label for 4', NULL, NULL, '{"retry":10859}');
INSERT INTO public.outlast_attempts VALUES (2, 2, 1, 1, 1, 'retrying', 1794777204298579, 5, 'connection_reset', 'ConnectionResetError', 'no label for 5', 10000, NULL, '{"checkpoint":11942}');
INSERT INTO public.outlast_attempts VALUES (2, 2, 1, 1, 2, 'failed', 1794777204310969, 9, 'connection_reset', 'ConnectionResetError', 'no label for 5', NULL, NULL, '{"retry":10843}');
INSERT INTO public.outlast_attempts VALUES (2, 3, 1, 1, 1, 'retrying', 1794777204298655, 4, 'connection_reset', 'ConnectionResetError', 'no label for 6', 10000, NULL, '{"checkpoint":11931}');
INSERT INTO public.outlast_attempts VALUES (2, 3, 1, 1, 2, 'failed', 1794777204311502, 6, 'connection_reset', 'ConnectionResetError', 'no label for 6', NULL, NULL, '{"retry":10840}');
INSERT INTO public.outlast_attempts VALUES (2, 4, 1, 1, 1, 'retrying', 1794777204298723, 4, 'connection_reset', 'ConnectionResetError', 'no label for 7', 10000, NULL, '{"checkpoint":11922}');
INSERT INTO public.outlast_attempts VALUES (2, 4, 1, 1, 2, 'failed', 1794777204312113, 6, 'connection_reset', 'ConnectionResetError', 'no label for 7', NULL, NULL, '{"retry":10839}');
INSERT INTO public.outlast_attempts VALUES (2, 5, 1, 1, 1, 'retrying', 1794777204298784, 4, 'connection_reset', 'ConnectionResetError', 'no label for 8', 10000, NULL, '{"checkpoint":11914}');
INSERT INTO public.outlast_attempts VALUES (2, 5, 1, 1, 2, 'failed', 1794777204312355, 5, 'connection_reset', 'ConnectionResetError', 'no label for 8', NULL, NULL, '{"retry":10837}');
INSERT INTO public.outlast_attempts VALUES (2, 6, 1, 1, 1, 'retrying', 1794777204298844, 3, 'connection_reset', 'ConnectionResetError', 'no label for 9', 10000, NULL, '{"checkpoint":11897}');
INSERT INTO public.outlast_attempts VALUES (2, 6, 1, 1, 2, 'failed', 1794777204312543, 4, 'connection_reset', 'ConnectionResetError', 'no label for 9', NULL, NULL, '{"retry":10835}');
INSERT INTO public.outlast_attempts VALUES (3, 0, 1, 1, 1, 'success', 1794777204357194, 13, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (4, 0, 0, 1, 1, 'success', 1794777204921241, 16, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (4, 0, 1, 1, 1, 'failed', 1794777204921269, 6, 'data_error', 'ValueError', 'the model refuses', NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (5, 0, 0, 1, 1, 'failed', 1794777205433250, 12, 'data_error', 'ValueError', 'too heavy', NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 0, 0, 1, 1, 'success', 1794777206507821, 11, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 1, 0, 1, 1, 'success', 1794777206507876, 4, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 2, 0, 1, 1, 'success', 1794777206507889, 2, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 3, 0, 1, 1, 'success', 1794777206507898, 1, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 4, 0, 1, 1, 'success', 1794777206507905, 1, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 5, 0, 1, 1, 'success', 1794777206507911, 1, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 6, 0, 1, 1, 'success', 1794777206507921, 1, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 7, 0, 1, 1, 'success', 1794777206507934, 5, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 8, 0, 1, 1, 'success', 1794777206507947, 2, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 9, 0, 1, 1, 'success', 1794777206507954, 1, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 10, 0, 1, 1, 'success', 1794777206507959, 1, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 11, 0, 1, 1, 'success', 1794777206507964, 1, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 0, 1, 1, 1, 'success', 1794777206512291, 9, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":4121}');
INSERT INTO public.outlast_attempts VALUES (7, 1, 1, 1, 1, 'success', 1794777206512349, 3, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":4061}');
INSERT INTO public.outlast_attempts VALUES (7, 2, 1, 1, 1, 'failed', 1794777206512363, 6, 'data_error', 'ValueError', 'no label for 2', NULL, NULL, '{"checkpoint":4043}');
INSERT INTO public.outlast_attempts VALUES (7, 3, 1, 1, 1, 'success', 1794777206512804, 4, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":4032}');
INSERT INTO public.outlast_attempts VALUES (7, 4, 1, 1, 1, 'success', 1794777206512819, 2, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":4023}');
INSERT INTO public.outlast_attempts VALUES (7, 5, 1, 1, 1, 'success', 1794777206512827, 1, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":4014}');
INSERT INTO public.outlast_attempts VALUES (7, 6, 1, 1, 1, 'success', 1794777206512835, 1, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":4006}');
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
INSERT INTO public.outlast_dead_letters VALUES ('8237d2a15b37b595bd7751beac27aa1e', 'shop', 'e8329a65294f9a3593d8a3fe9a94a6fa', 4, 'nightly', 'label', '7', 'item', 'open', '27a3100c86472090', 'no label for 7', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794777204298728, 1794777204313371, 1794777204313371, 1794777204315612, 0, NULL, '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo3LCJ0ZXh0IjoicmV2aWV3IDcifX0="}', '\x7b2276223a312c2264223a7b226964223a372c22776f726473223a5b22726576696577222c2237225d7d7d', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('58ffe3f0758336abfafe5147d25271e9', 'shop', 'e8329a65294f9a3593d8a3fe9a94a6fa', 5, 'nightly', 'label', '8', 'item', 'open', '27a3100c86472090', 'no label for 8', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794777204298788, 1794777204313531, 1794777204313531, 1794777204315612, 0, NULL, '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo4LCJ0ZXh0IjoicmV2aWV3IDgifX0="}', '\x7b2276223a312c2264223a7b226964223a382c22776f726473223a5b22726576696577222c2238225d7d7d', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('6b1d920103d19ffd68dc4ae5ab15f57c', 'shop', 'e8329a65294f9a3593d8a3fe9a94a6fa', 6, 'nightly', 'label', '9', 'item', 'open', '27a3100c86472090', 'no label for 9', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794777204298848, 1794777204313696, 1794777204313696, 1794777204315612, 0, NULL, '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo5LCJ0ZXh0IjoicmV2aWV3IDkifX0="}', '\x7b2276223a312c2264223a7b226964223a392c22776f726473223a5b22726576696577222c2239225d7d7d', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('270a2b7392f0f11e0355a9a2fb06e460', 'shop', 'e8329a65294f9a3593d8a3fe9a94a6fa', 1, 'nightly', 'label', '4', 'item', 'archived', '27a3100c86472090', 'no label for 4', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794777204298177, 1794777204310794, 1794777204310794, 1794777204333534, 0, 'not ours', '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo0LCJ0ZXh0IjoicmV2aWV3IDQifX0="}', '\x7b2276223a312c2264223a7b226964223a342c22776f726473223a5b22726576696577222c2234225d7d7d', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('6d2ae29342d17d562bbd1ff5835aa04e', 'shop', 'e8329a65294f9a3593d8a3fe9a94a6fa', 2, 'nightly', 'label', '5', 'item', 'resolved', '27a3100c86472090', 'no label for 5', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794777204298585, 1794777204311386, 1794777204311386, 1794777204359124, 0, 'replayed by replay-ca82114df041', '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo1LCJ0ZXh0IjoicmV2aWV3IDUifX0="}', '\x7b2276223a312c2264223a7b226964223a352c22776f726473223a5b22726576696577222c2235225d7d7d', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('61069a704b2fc20692a112eb20f74498', 'shop', '89a2818887b0f0af71b3f3c291c648dc', 0, 'pictures', 'measure', '1', 'item', 'open', '80eb484c8f680978', 'the model refuses', 'ValueError', 'data_error', 'data', 1, 1794777204921276, 1794777204921989, 1794777204921989, 1794777204929995, 0, NULL, '{"source": "eyJ2IjoxLCJkIjoxfQ=="}', '\x7b2276223a312c2264223a7b2224756e73746f7261626c65223a223c706970656c696e65732e50696374757265206f626a6563742061742030783766353539346438663639303e227d7d', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('3307d9f6f91ccd686b072e6c6e8d0b2e', 'shop', '67438955ea31822a946f85a2e3ec0b85', 0, 'things', 'weigh', 'a', 'item', 'open', '0e7039d5a3e23989', 'too heavy', 'ValueError', 'data_error', 'data', 1, 1794777205433263, 1794777205433962, 1794777205433962, 1794777205445976, 0, NULL, '{}', '\x7b2276223a312c2264223a7b2224756e73746f7261626c65223a223c706970656c696e65732e50696374757265206f626a6563742061742030783766303362626239326239303e227d7d', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('9ccac71d4673eccb2eb7241cd242eaa0', 'shop', 'e8329a65294f9a3593d8a3fe9a94a6fa', 3, 'nightly', 'label', '6', 'item', 'replaying', '27a3100c86472090', 'no label for 6', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794777204298659, 1794777204311878, 1794777204311878, 1794777206057739, 0, 'replayed by replay-db51c9211acb', '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo2LCJ0ZXh0IjoicmV2aWV3IDYifX0="}', '\x7b2276223a312c2264223a7b226964223a362c22776f726473223a5b22726576696577222c2236225d7d7d', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('01f777217e1e39771386184c5a57bcbf', 'shop', 'bc96f54e442a1cfd8a9a907148ecba5a', 2, 'nightly', 'label', '2', 'item', 'open', '51996ef35a3686e7', 'no label for 2', 'ValueError', 'data_error', 'data', 1, 1794777206512370, 1794777206513289, 1794777206513289, 1794777206567341, 0, NULL, '{"source": "eyJ2IjoxLCJkIjp7ImlkIjoyLCJ0ZXh0IjoicmV2aWV3IDIifX0="}', '\x7b2276223a312c2264223a7b226964223a322c22776f726473223a5b22726576696577222c2232225d7d7d', NULL);
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (1, '8df14b782bebeae0984e4279c2140f57', 'shop', 'a0efa39f085536de1c91c8cd3c1a1eb6', 'run_started', 1794777203729152, '{"event": "run_started", "ts": "2026-11-15T21:13:23.729152+00:00", "seq": 1, "run_id": "a0efa39f085536de1c91c8cd3c1a1eb6", "pipeline": "nightly", "run_key": "first", "finished": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (2, '2317bc3d2cc170dcab69a2da43bd816e', 'shop', 'a0efa39f085536de1c91c8cd3c1a1eb6', 'run_finished', 1794777203747153, '{"event": "run_finished", "ts": "2026-11-15T21:13:23.747153+00:00", "seq": 2, "run_id": "a0efa39f085536de1c91c8cd3c1a1eb6", "pipeline": "nightly", "run_key": "first", "status": "completed", "outcome": "success", "reason": null, "why": "3 of 3 items succeeded", "total": 3, "succeeded": 3, "skipped": 0, "dlq": 0, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (3, '3927c6c74ce3b3f521b166091a9efb89', 'shop', 'e8329a65294f9a3593d8a3fe9a94a6fa', 'run_started', 1794777204277823, '{"event": "run_started", "ts": "2026-11-15T21:13:24.277823+00:00", "seq": 1, "run_id": "e8329a65294f9a3593d8a3fe9a94a6fa", "pipeline": "nightly", "run_key": "second", "finished": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (4, 'a8f9d94d53a2f7b57be97fb6f4bc8a57', 'shop', 'e8329a65294f9a3593d8a3fe9a94a6fa', 'run_finished', 1794777204320843, '{"event": "run_finished", "ts": "2026-11-15T21:13:24.320843+00:00", "seq": 2, "run_id": "e8329a65294f9a3593d8a3fe9a94a6fa", "pipeline": "nightly", "run_key": "second", "status": "completed", "outcome": "partial", "reason": null, "why": "1 of 7 items succeeded, 6 became dead letters; they are open", "total": 7, "succeeded": 1, "skipped": 0, "dlq": 6, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (5, 'bf1bc229619ac40672b1411bfaca272c', 'shop', '74d9abf4bf5c13c82f4bedeab2429d81', 'run_started', 1794777204346329, '{"event": "run_started", "ts": "2026-11-15T21:13:24.346329+00:00", "seq": 3, "run_id": "74d9abf4bf5c13c82f4bedeab2429d81", "pipeline": "nightly", "run_key": "replay-ca82114df041", "finished": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (6, '285d994410cc0fb325a8f1f2e3c82918', 'shop', '74d9abf4bf5c13c82f4bedeab2429d81', 'run_finished', 1794777204362611, '{"event": "run_finished", "ts": "2026-11-15T21:13:24.362611+00:00", "seq": 4, "run_id": "74d9abf4bf5c13c82f4bedeab2429d81", "pipeline": "nightly", "run_key": "replay-ca82114df041", "status": "completed", "outcome": "success", "reason": null, "why": "1 of 1 item succeeded", "total": 1, "succeeded": 1, "skipped": 0, "dlq": 0, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (7, '6c7b020fc2b0cea2278b9e4ac839f4f7', 'shop', '89a2818887b0f0af71b3f3c291c648dc', 'run_started', 1794777204918887, '{"event": "run_started", "ts": "2026-11-15T21:13:24.918887+00:00", "seq": 1, "run_id": "89a2818887b0f0af71b3f3c291c648dc", "pipeline": "pictures", "run_key": "one", "finished": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (8, '71bc9b6285f64b8250f656cd452d8ead', 'shop', '89a2818887b0f0af71b3f3c291c648dc', 'run_finished', 1794777204933327, '{"event": "run_finished", "ts": "2026-11-15T21:13:24.933327+00:00", "seq": 2, "run_id": "89a2818887b0f0af71b3f3c291c648dc", "pipeline": "pictures", "run_key": "one", "status": "completed", "outcome": "failure", "reason": null, "why": "0 of 1 item succeeded, 1 became a dead letter; it is open", "total": 1, "succeeded": 0, "skipped": 0, "dlq": 1, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (9, '44d4def0e55084eadebea7eb3b19b388', 'shop', '67438955ea31822a946f85a2e3ec0b85', 'run_started', 1794777205429584, '{"event": "run_started", "ts": "2026-11-15T21:13:25.429584+00:00", "seq": 1, "run_id": "67438955ea31822a946f85a2e3ec0b85", "pipeline": "things", "run_key": "one", "finished": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (10, 'cf19c7ed8b1994706f9dc4f71826ec7e', 'shop', '67438955ea31822a946f85a2e3ec0b85', 'run_finished', 1794777205455590, '{"event": "run_finished", "ts": "2026-11-15T21:13:25.455590+00:00", "seq": 2, "run_id": "67438955ea31822a946f85a2e3ec0b85", "pipeline": "things", "run_key": "one", "status": "completed", "outcome": "failure", "reason": null, "why": "0 of 1 item succeeded, 1 became a dead letter; it is open", "total": 1, "succeeded": 0, "skipped": 0, "dlq": 1, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (11, 'be33dda62dff841f69fce85ccfd5b59d', 'shop', 'bc96f54e442a1cfd8a9a907148ecba5a', 'run_started', 1794777206500697, '{"event": "run_started", "ts": "2026-11-15T21:13:26.500697+00:00", "seq": 1, "run_id": "bc96f54e442a1cfd8a9a907148ecba5a", "pipeline": "nightly", "run_key": "third", "finished": 0}');
INSERT INTO public.outlast_items VALUES (1, 0, '0', 'succeeded', 1, 2, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a302c226c6162656c223a327d7d', 1794777203733629, 10639, NULL);
INSERT INTO public.outlast_items VALUES (1, 1, '1', 'succeeded', 1, 2, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a312c226c6162656c223a327d7d', 1794777203733671, 10638, NULL);
INSERT INTO public.outlast_items VALUES (1, 2, '2', 'succeeded', 1, 2, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a322c226c6162656c223a327d7d', 1794777203733681, 10644, NULL);
INSERT INTO public.outlast_items VALUES (2, 0, '3', 'succeeded', 1, 2, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a332c226c6162656c223a327d7d', 1794777204285788, 13198, NULL);
INSERT INTO public.outlast_items VALUES (2, 1, '4', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 4', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722034222c6e756c6c5d5d2c226c6574746572223a223237306132623733393266306631316530333535613961326662303665343630227d7d', 1794777204285839, 24862, NULL);
INSERT INTO public.outlast_items VALUES (2, 2, '5', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 5', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722035222c6e756c6c5d5d2c226c6574746572223a223664326165323933343264313764353632626264316666353833356161303465227d7d', 1794777204285849, 25474, NULL);
INSERT INTO public.outlast_items VALUES (2, 3, '6', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 6', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722036222c6e756c6c5d5d2c226c6574746572223a223963636163373164343637336563636232656237323431636432343265616130227d7d', 1794777204285856, 25964, NULL);
INSERT INTO public.outlast_items VALUES (2, 4, '7', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 7', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722037222c6e756c6c5d5d2c226c6574746572223a223832333764326131356233376235393562643737353162656163323761613165227d7d', 1794777204285864, 27444, NULL);
INSERT INTO public.outlast_items VALUES (2, 5, '8', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 8', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722038222c6e756c6c5d5d2c226c6574746572223a223538666665336630373538333336616266616665353134376432353237316539227d7d', 1794777204285872, 27604, NULL);
INSERT INTO public.outlast_items VALUES (2, 6, '9', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 9', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722039222c6e756c6c5d5d2c226c6574746572223a223662316439323031303364313966666436386463346165356162313566353763227d7d', 1794777204285878, 27763, NULL);
INSERT INTO public.outlast_items VALUES (3, 0, '5', 'succeeded', 1, 1, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a352c226c6162656c223a327d7d', 1794777204357194, 110, NULL);
INSERT INTO public.outlast_items VALUES (4, 0, '1', 'dlq', 1, 2, false, 'measure: ValueError: the model refuses', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226d656173757265222c226572726f7273223a5b5b6e756c6c2c22646174615f6572726f72222c22746865206d6f64656c2072656675736573222c6e756c6c5d5d2c226c6574746572223a223631303639613730346232666332303639326131313265623230663734343938227d7d', 1794777204921241, 674, NULL);
INSERT INTO public.outlast_items VALUES (5, 0, 'a', 'dlq', 0, 1, false, 'weigh: ValueError: too heavy', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a227765696768222c226572726f7273223a5b5b6e756c6c2c22646174615f6572726f72222c22746f6f206865617679222c6e756c6c5d5d2c226c6574746572223a223333303764396636663931636364363836623037326536633665386430623265227d7d', 1794777205433250, 643, NULL);
INSERT INTO public.outlast_items VALUES (7, 0, '0', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794777206507821, 5267, NULL);
INSERT INTO public.outlast_items VALUES (7, 1, '1', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794777206507876, 5244, NULL);
INSERT INTO public.outlast_items VALUES (7, 3, '3', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794777206507898, 5452, NULL);
INSERT INTO public.outlast_items VALUES (7, 4, '4', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794777206507905, 5457, NULL);
INSERT INTO public.outlast_items VALUES (7, 5, '5', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794777206507911, 5459, NULL);
INSERT INTO public.outlast_items VALUES (7, 6, '6', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794777206507921, 5456, NULL);
INSERT INTO public.outlast_items VALUES (7, 2, '2', 'dlq', 1, 2, false, 'label: ValueError: no label for 2', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22646174615f6572726f72222c226e6f206c6162656c20666f722032222c6e756c6c5d5d2c226c6574746572223a223031663737373231376531653339373731333836313834633561353762636266227d7d', 1794777206507889, 5304, NULL);
INSERT INTO public.outlast_progress VALUES (1, 0, 2, 1, 3, NULL, true, 3, 0, 0, 0, 0, '{}');
INSERT INTO public.outlast_progress VALUES (2, 0, 2, 1, 7, NULL, true, 1, 0, 6, 0, 0, '{}');
INSERT INTO public.outlast_progress VALUES (3, 0, 2, 1, 1, NULL, true, 1, 0, 0, 0, 0, '{}');
INSERT INTO public.outlast_progress VALUES (4, 0, 2, 1, 1, NULL, true, 0, 0, 1, 0, 0, '{}');
INSERT INTO public.outlast_progress VALUES (5, 0, 2, 1, 1, NULL, true, 0, 0, 1, 0, 0, '{}');
INSERT INTO public.outlast_progress VALUES (6, 0, 1, 1, 0, NULL, false, 0, 0, 0, 0, 0, '{}');
INSERT INTO public.outlast_progress VALUES (7, 0, 1, 1, 12, 114, true, 6, 0, 1, 0, 0, '{}');
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (1, 'a0efa39f085536de1c91c8cd3c1a1eb6', 'shop', 'nightly', 'first', 'run', 'completed', NULL, '3 of 3 items succeeded', '[["parse", "1", true], ["label", "1", false]]', NULL, NULL, 1794777203718050, 1794777203747178);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (2, 'e8329a65294f9a3593d8a3fe9a94a6fa', 'shop', 'nightly', 'second', 'run', 'completed', NULL, '1 of 7 items succeeded, 6 became dead letters; they are open', '[["parse", "1", true], ["label", "1", false]]', NULL, NULL, 1794777204261979, 1794777204320872);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (3, '74d9abf4bf5c13c82f4bedeab2429d81', 'shop', 'nightly', 'replay-ca82114df041', 'replay', 'completed', NULL, '1 of 1 item succeeded', '[["parse", "1", true], ["label", "1", false]]', NULL, NULL, 1794777204339024, 1794777204362641);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (4, '89a2818887b0f0af71b3f3c291c648dc', 'shop', 'pictures', 'one', 'run', 'completed', NULL, '0 of 1 item succeeded, 1 became a dead letter; it is open', '[["load", "1", false], ["measure", "1", false]]', NULL, NULL, 1794777204908214, 1794777204933350);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (5, '67438955ea31822a946f85a2e3ec0b85', 'shop', 'things', 'one', 'run', 'completed', NULL, '0 of 1 item succeeded, 1 became a dead letter; it is open', '[["weigh", "1", false]]', NULL, NULL, 1794777205416543, 1794777205455615);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (6, 'fbbaaa7c9f87439eedbdde134a0485bf', 'shop', 'nightly', 'replay-db51c9211acb', 'replay', 'running', NULL, '', '[["parse", "1", true], ["label", "1", false]]', NULL, NULL, 1794777206041681, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (7, 'bc96f54e442a1cfd8a9a907148ecba5a', 'shop', 'nightly', 'third', 'run', 'running', NULL, '', '[["parse", "1", true], ["label", "1", false]]', NULL, 'out.jsonl', 1794777206484776, NULL);
INSERT INTO public.outlast_schema VALUES (2);
INSERT INTO public.outlast_shards VALUES (1, 0, 2, '', 0, 20);
INSERT INTO public.outlast_shards VALUES (2, 0, 2, '', 0, 20);
INSERT INTO public.outlast_shards VALUES (3, 0, 2, '', 0, 20);
INSERT INTO public.outlast_shards VALUES (4, 0, 2, '', 0, 20);
INSERT INTO public.outlast_shards VALUES (5, 0, 2, '', 0, 20);
INSERT INTO public.outlast_shards VALUES (6, 0, 1, 'gone.example/4026531836:4711:123456:1', 1, 20);
INSERT INTO public.outlast_shards VALUES (7, 0, 1, 'gone.example/4026531836:4711:123456:1', 1, 20);
SELECT pg_catalog.setval('public.outlast_events_number_seq', 11, true);
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
ALTER TABLE ONLY public.outlast_progress
    ADD CONSTRAINT outlast_progress_pkey PRIMARY KEY (run, shard);
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
CREATE INDEX outlast_dead_letters_group ON public.outlast_dead_letters USING btree (app, status, fingerprint, pipeline, stage, created, id, first_failed, last_attempt);
CREATE INDEX outlast_dead_letters_newest ON public.outlast_dead_letters USING btree (app, status, created, id);
CREATE INDEX outlast_dead_letters_place ON public.outlast_dead_letters USING btree (app, status, pipeline, stage, created, id);
CREATE INDEX outlast_dead_letters_run ON public.outlast_dead_letters USING btree (app, run, status, fingerprint, pipeline, stage, created, id, first_failed, last_attempt);
CREATE INDEX outlast_events_at ON public.outlast_events USING btree (at);
CREATE INDEX outlast_events_run ON public.outlast_events USING btree (run, number);
CREATE INDEX outlast_runs_newest ON public.outlast_runs USING btree (app, started, number);
