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
INSERT INTO public.outlast_attempts VALUES (1, 0, 0, 1, 1, 'success', 1794817057618901, 9, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (1, 1, 0, 1, 1, 'success', 1794817057618943, 4, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (1, 2, 0, 1, 1, 'success', 1794817057618958, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (1, 0, 1, 1, 1, 'success', 1794817057630771, 13, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":11614}', NULL);
INSERT INTO public.outlast_attempts VALUES (1, 1, 1, 1, 1, 'success', 1794817057630851, 4, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":11549}', NULL);
INSERT INTO public.outlast_attempts VALUES (1, 2, 1, 1, 1, 'success', 1794817057630876, 2, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":11528}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 0, 0, 1, 1, 'success', 1794817059229342, 13, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 1, 0, 1, 1, 'success', 1794817059229397, 5, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 2, 0, 1, 1, 'success', 1794817059229418, 4, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 3, 0, 1, 1, 'success', 1794817059229435, 4, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 4, 0, 1, 1, 'success', 1794817059229452, 3, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 5, 0, 1, 1, 'success', 1794817059229467, 3, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 6, 0, 1, 1, 'success', 1794817059229481, 3, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (2, 0, 1, 1, 1, 'success', 1794817059447238, 14, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":217517}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 1, 1, 1, 1, 'retrying', 1794817059447445, 25, 'connection_reset', 'ConnectionResetError', 'no label for 4', 10000, NULL, '{"checkpoint":217436}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 1, 1, 1, 2, 'failed', 1794817059459898, 30, 'connection_reset', 'ConnectionResetError', 'no label for 4', NULL, NULL, '{"retry":11422}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (2, 2, 1, 1, 1, 'retrying', 1794817059447932, 15, 'connection_reset', 'ConnectionResetError', 'no label for 5', 10000, NULL, '{"checkpoint":217397}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 2, 1, 1, 2, 'failed', 1794817059460770, 20, 'connection_reset', 'ConnectionResetError', 'no label for 5', NULL, NULL, '{"retry":11404}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (2, 3, 1, 1, 1, 'retrying', 1794817059448045, 8, 'connection_reset', 'ConnectionResetError', 'no label for 6', 10000, NULL, '{"checkpoint":217367}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 3, 1, 1, 2, 'failed', 1794817059461471, 13, 'connection_reset', 'ConnectionResetError', 'no label for 6', NULL, NULL, '{"retry":11402}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (2, 4, 1, 1, 1, 'retrying', 1794817059448117, 6, 'connection_reset', 'ConnectionResetError', 'no label for 7', 10000, NULL, '{"checkpoint":217341}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 4, 1, 1, 2, 'failed', 1794817059462761, 20, 'connection_reset', 'ConnectionResetError', 'no label for 7', NULL, NULL, '{"retry":11401}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (2, 6, 1, 1, 1, 'retrying', 1794817059448237, 6, 'connection_reset', 'ConnectionResetError', 'no label for 9', 10000, NULL, '{"checkpoint":217287}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 6, 1, 1, 2, 'failed', 1794817059464249, 13, 'connection_reset', 'ConnectionResetError', 'no label for 9', NULL, NULL, '{"retry":11398}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (2, 5, 1, 1, 1, 'retrying', 1794817059448179, 6, 'connection_reset', 'ConnectionResetError', 'no label for 8', 10000, NULL, '{"checkpoint":217311}', NULL);
INSERT INTO public.outlast_attempts VALUES (2, 5, 1, 1, 2, 'failed', 1794817059464825, 12, 'connection_reset', 'ConnectionResetError', 'no label for 8', NULL, NULL, '{"retry":11400}', 'exhausted');
INSERT INTO public.outlast_attempts VALUES (3, 0, 1, 1, 1, 'success', 1794817059841904, 12, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (4, 0, 0, 1, 1, 'success', 1794817062841440, 19, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (4, 0, 1, 1, 1, 'failed', 1794817062841473, 24, 'data_error', 'ValueError', 'the model refuses', NULL, NULL, NULL, 'permanent');
INSERT INTO public.outlast_attempts VALUES (5, 0, 0, 1, 1, 'failed', 1794817066506478, 20, 'data_error', 'ValueError', 'too heavy', NULL, NULL, NULL, 'permanent');
INSERT INTO public.outlast_attempts VALUES (7, 0, 0, 1, 1, 'success', 1794817070856122, 11, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 1, 0, 1, 1, 'success', 1794817070856178, 5, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 2, 0, 1, 1, 'success', 1794817070856199, 4, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 3, 0, 1, 1, 'success', 1794817070856217, 3, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 4, 0, 1, 1, 'success', 1794817070856232, 3, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 5, 0, 1, 1, 'success', 1794817070856245, 3, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 6, 0, 1, 1, 'success', 1794817070856258, 3, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 7, 0, 1, 1, 'success', 1794817070856279, 6, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 8, 0, 1, 1, 'success', 1794817070856299, 3, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 9, 0, 1, 1, 'success', 1794817070856311, 3, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 10, 0, 1, 1, 'success', 1794817070856322, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 11, 0, 1, 1, 'success', 1794817070856332, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_attempts VALUES (7, 0, 1, 1, 1, 'success', 1794817070861549, 10, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":4965}', NULL);
INSERT INTO public.outlast_attempts VALUES (7, 1, 1, 1, 1, 'success', 1794817070861617, 4, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":4879}', NULL);
INSERT INTO public.outlast_attempts VALUES (7, 2, 1, 1, 1, 'failed', 1794817070861642, 25, 'data_error', 'ValueError', 'no label for 2', NULL, NULL, '{"checkpoint":4844}', 'permanent');
INSERT INTO public.outlast_attempts VALUES (7, 3, 1, 1, 1, 'success', 1794817070862715, 5, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":4819}', NULL);
INSERT INTO public.outlast_attempts VALUES (7, 4, 1, 1, 1, 'success', 1794817070862759, 3, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":4795}', NULL);
INSERT INTO public.outlast_attempts VALUES (7, 5, 1, 1, 1, 'success', 1794817070862778, 2, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":4775}', NULL);
INSERT INTO public.outlast_attempts VALUES (7, 6, 1, 1, 1, 'success', 1794817070862792, 2, NULL, NULL, NULL, NULL, NULL, '{"checkpoint":4759}', NULL);
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
INSERT INTO public.outlast_dead_letters VALUES ('ecc7f622020ca66d062049e7335b1312', 'shop', 'f99aae4e665ba5b3aa835745f28465a1', 4, 'nightly', 'label', '7', 'item', 'open', '27a3100c86472090', 'no label for 7', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794817059448124, 1794817059464144, 1794817059464144, 1794817059464144, 0, NULL, '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo3LCJ0ZXh0IjoicmV2aWV3IDcifX0="}', '\x7b2276223a312c2264223a7b226964223a372c22776f726473223a5b22726576696577222c2237225d7d7d', NULL, 'exhausted', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('c682e2a6ae0f536487bbd1194d110b43', 'shop', 'f99aae4e665ba5b3aa835745f28465a1', 6, 'nightly', 'label', '9', 'item', 'open', '27a3100c86472090', 'no label for 9', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794817059448244, 1794817059464750, 1794817059464750, 1794817059464750, 0, NULL, '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo5LCJ0ZXh0IjoicmV2aWV3IDkifX0="}', '\x7b2276223a312c2264223a7b226964223a392c22776f726473223a5b22726576696577222c2239225d7d7d', NULL, 'exhausted', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('1130622058da4d4d26ea09f7bcf1f068', 'shop', 'f99aae4e665ba5b3aa835745f28465a1', 5, 'nightly', 'label', '8', 'item', 'open', '27a3100c86472090', 'no label for 8', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794817059448185, 1794817059465561, 1794817059465561, 1794817059465561, 0, NULL, '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo4LCJ0ZXh0IjoicmV2aWV3IDgifX0="}', '\x7b2276223a312c2264223a7b226964223a382c22776f726473223a5b22726576696577222c2238225d7d7d', NULL, 'exhausted', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('c36b471f3bc2daf037005ac5c0085582', 'shop', 'f99aae4e665ba5b3aa835745f28465a1', 1, 'nightly', 'label', '4', 'item', 'archived', '27a3100c86472090', 'no label for 4', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794817059447471, 1794817059460585, 1794817059460585, 1794817059618285, 0, 'not ours', '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo0LCJ0ZXh0IjoicmV2aWV3IDQifX0="}', '\x7b2276223a312c2264223a7b226964223a342c22776f726473223a5b22726576696577222c2234225d7d7d', NULL, 'exhausted', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('752bab3c6402ab5221ec9a37816830d2', 'shop', 'f99aae4e665ba5b3aa835745f28465a1', 2, 'nightly', 'label', '5', 'item', 'resolved', '27a3100c86472090', 'no label for 5', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794817059447948, 1794817059857259, 1794817059461357, 1794817059857259, 1, 'replayed by replay-bd25870bf89f', '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo1LCJ0ZXh0IjoicmV2aWV3IDUifX0="}', '\x7b2276223a312c2264223a7b226964223a352c22776f726473223a5b22726576696577222c2235225d7d7d', NULL, 'exhausted', 'a09072c6d06ea367d000e3de615b6e82');
INSERT INTO public.outlast_dead_letters VALUES ('41718d19e45b68295d90bf6c946d59dd', 'shop', '0e4a6b1a162708af9e41c6a94f8d499f', 0, 'pictures', 'measure', '1', 'item', 'open', '80eb484c8f680978', 'the model refuses', 'ValueError', 'data_error', 'data', 1, 1794817062841498, 1794817062842957, 1794817062842957, 1794817062842957, 0, NULL, '{"source": "eyJ2IjoxLCJkIjoxfQ==", "unstored": "it is a value of type Picture", "begins": "load", "warnings": ["the input of measure is not stored: it is a value of type Picture; a replay begins at load"]}', '\x7b2276223a312c2264223a317d', NULL, 'permanent', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('7492bb0bddfdf9adeeea974160801ecc', 'shop', 'a78131d62328de6f2d560d23cbeafb3c', 0, 'things', 'weigh', 'a', 'item', 'open', '0e7039d5a3e23989', 'too heavy', 'ValueError', 'data_error', 'data', 1, 1794817066506498, 1794817066507444, 1794817066507444, 1794817066507444, 0, NULL, '{"unstored": "it is a value of type Picture", "begins": null, "warnings": ["the input of weigh is not stored: it is a value of type Picture; its dead letters cannot be replayed"]}', '\x7b2276223a312c2264223a6e756c6c7d', NULL, 'permanent', NULL);
INSERT INTO public.outlast_dead_letters VALUES ('1a38fc15bc9ea2aaf38c0f9300ff8808', 'shop', 'f99aae4e665ba5b3aa835745f28465a1', 3, 'nightly', 'label', '6', 'item', 'replaying', '27a3100c86472090', 'no label for 6', 'ConnectionResetError', 'connection_reset', 'network', 2, 1794817059448054, 1794817059461998, 1794817059461998, 1794817069132571, 0, 'replayed by replay-d52eb03a9262', '{"source": "eyJ2IjoxLCJkIjp7ImlkIjo2LCJ0ZXh0IjoicmV2aWV3IDYifX0="}', '\x7b2276223a312c2264223a7b226964223a362c22776f726473223a5b22726576696577222c2236225d7d7d', NULL, 'exhausted', 'dd0bdb3d6be7fd9b906ca8f651c3582e');
INSERT INTO public.outlast_dead_letters VALUES ('b742d7c36f5b7cbfdd0efc9454460ff2', 'shop', 'd531cd091439d9d6ce0f547e50b4ac97', 2, 'nightly', 'label', '2', 'item', 'open', '51996ef35a3686e7', 'no label for 2', 'ValueError', 'data_error', 'data', 1, 1794817070861668, 1794817070862599, 1794817070862599, 1794817070862599, 0, NULL, '{"source": "eyJ2IjoxLCJkIjp7ImlkIjoyLCJ0ZXh0IjoicmV2aWV3IDIifX0="}', '\x7b2276223a312c2264223a7b226964223a322c22776f726473223a5b22726576696577222c2232225d7d7d', NULL, 'permanent', NULL);
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (1, '7a1215e48fea08b4b871cf8ac69d965b', 'shop', '55ac136a7b21cb800b63dcedac8fe43c', 'run_started', 1794817057617925, '{"event": "run_started", "ts": "2026-11-16T08:17:37.617925+00:00", "seq": 1, "run_id": "55ac136a7b21cb800b63dcedac8fe43c", "pipeline": "nightly", "run_key": "first", "finished": 0, "target": null}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (2, '9d12aacced18fea3700fb24d5957a5aa', 'shop', '55ac136a7b21cb800b63dcedac8fe43c', 'run_finished', 1794817057635181, '{"event": "run_finished", "ts": "2026-11-16T08:17:37.635181+00:00", "seq": 2, "run_id": "55ac136a7b21cb800b63dcedac8fe43c", "pipeline": "nightly", "run_key": "first", "status": "completed", "outcome": "success", "reason": null, "why": "3 of 3 items succeeded", "total": 3, "succeeded": 3, "skipped": 0, "dlq": 0, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (3, '621e83ba5ca370dfbc9dfd8ee63aeac3', 'shop', 'f99aae4e665ba5b3aa835745f28465a1', 'run_started', 1794817059228162, '{"event": "run_started", "ts": "2026-11-16T08:17:39.228162+00:00", "seq": 1, "run_id": "f99aae4e665ba5b3aa835745f28465a1", "pipeline": "nightly", "run_key": "second", "finished": 0, "target": null}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (4, '3ea868c6e8386263345afe1de9978792', 'shop', 'f99aae4e665ba5b3aa835745f28465a1', 'run_finished', 1794817059481493, '{"event": "run_finished", "ts": "2026-11-16T08:17:39.481493+00:00", "seq": 2, "run_id": "f99aae4e665ba5b3aa835745f28465a1", "pipeline": "nightly", "run_key": "second", "status": "completed", "outcome": "partial", "reason": null, "why": "1 of 7 items succeeded, 6 became dead letters; they are open", "total": 7, "succeeded": 1, "skipped": 0, "dlq": 6, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (5, '9c6a498370a98b54c1648f495b1c6043', 'shop', 'a09072c6d06ea367d000e3de615b6e82', 'run_started', 1794817059769898, '{"event": "run_started", "ts": "2026-11-16T08:17:39.769898+00:00", "seq": 3, "run_id": "a09072c6d06ea367d000e3de615b6e82", "pipeline": "nightly", "run_key": "replay-bd25870bf89f", "finished": 0, "target": null}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (6, '005f01fb21491273f3ee6ce6039eacbf', 'shop', 'a09072c6d06ea367d000e3de615b6e82', 'run_finished', 1794817059916437, '{"event": "run_finished", "ts": "2026-11-16T08:17:39.916437+00:00", "seq": 4, "run_id": "a09072c6d06ea367d000e3de615b6e82", "pipeline": "nightly", "run_key": "replay-bd25870bf89f", "status": "completed", "outcome": "success", "reason": null, "why": "1 of 1 item succeeded", "total": 1, "succeeded": 1, "skipped": 0, "dlq": 0, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (7, '55309f9e5e40ab17dada9557e0a328a5', 'shop', '0e4a6b1a162708af9e41c6a94f8d499f', 'run_started', 1794817062840389, '{"event": "run_started", "ts": "2026-11-16T08:17:42.840389+00:00", "seq": 1, "run_id": "0e4a6b1a162708af9e41c6a94f8d499f", "pipeline": "pictures", "run_key": "one", "finished": 0, "target": null}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (8, '246c9d78293a45053319aa1b72826ae0', 'shop', '0e4a6b1a162708af9e41c6a94f8d499f', 'run_finished', 1794817062893137, '{"event": "run_finished", "ts": "2026-11-16T08:17:42.893137+00:00", "seq": 2, "run_id": "0e4a6b1a162708af9e41c6a94f8d499f", "pipeline": "pictures", "run_key": "one", "status": "completed", "outcome": "failure", "reason": null, "why": "0 of 1 item succeeded, 1 became a dead letter; it is open", "total": 1, "succeeded": 0, "skipped": 0, "dlq": 1, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (9, 'f8f1bd1dfb33193b6d1e5232acd1ebd9', 'shop', 'a78131d62328de6f2d560d23cbeafb3c', 'run_started', 1794817066505680, '{"event": "run_started", "ts": "2026-11-16T08:17:46.505680+00:00", "seq": 1, "run_id": "a78131d62328de6f2d560d23cbeafb3c", "pipeline": "things", "run_key": "one", "finished": 0, "target": null}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (10, '060b848bb056554bcf38cb8d40dece1c', 'shop', 'a78131d62328de6f2d560d23cbeafb3c', 'run_finished', 1794817066599966, '{"event": "run_finished", "ts": "2026-11-16T08:17:46.599966+00:00", "seq": 2, "run_id": "a78131d62328de6f2d560d23cbeafb3c", "pipeline": "things", "run_key": "one", "status": "completed", "outcome": "failure", "reason": null, "why": "0 of 1 item succeeded, 1 became a dead letter; it is open", "total": 1, "succeeded": 0, "skipped": 0, "dlq": 1, "failed": 0, "pending": 0}');
INSERT INTO public.outlast_events OVERRIDING SYSTEM VALUE VALUES (11, 'a8e8cea204fab9813b284009e8ac2fe1', 'shop', 'd531cd091439d9d6ce0f547e50b4ac97', 'run_started', 1794817070854765, '{"event": "run_started", "ts": "2026-11-16T08:17:50.854765+00:00", "seq": 1, "run_id": "d531cd091439d9d6ce0f547e50b4ac97", "pipeline": "nightly", "run_key": "third", "finished": 0, "target": null}');
INSERT INTO public.outlast_items VALUES (1, 0, '0', 'succeeded', 1, 2, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a302c226c6162656c223a327d7d', 1794817057618901, 12060, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (1, 1, '1', 'succeeded', 1, 2, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a312c226c6162656c223a327d7d', 1794817057618943, 12067, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (1, 2, '2', 'succeeded', 1, 2, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a322c226c6162656c223a327d7d', 1794817057618958, 12069, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (2, 0, '3', 'succeeded', 1, 2, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a332c226c6162656c223a327d7d', 1794817059229342, 218024, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (2, 1, '4', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 4', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722034222c6e756c6c5d5d2c226c6574746572223a226333366234373166336263326461663033373030356163356330303835353832227d7d', 1794817059229397, 231144, NULL, 'exhausted', '27a3100c86472090', 'connection_reset', 'ConnectionResetError');
INSERT INTO public.outlast_items VALUES (2, 3, '6', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 6', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722036222c6e756c6c5d5d2c226c6574746572223a223161333866633135626339656132616166333863306639333030666638383038227d7d', 1794817059229435, 232528, NULL, 'exhausted', '27a3100c86472090', 'connection_reset', 'ConnectionResetError');
INSERT INTO public.outlast_items VALUES (2, 4, '7', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 7', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722037222c6e756c6c5d5d2c226c6574746572223a226563633766363232303230636136366430363230343965373333356231333132227d7d', 1794817059229452, 234650, NULL, 'exhausted', '27a3100c86472090', 'connection_reset', 'ConnectionResetError');
INSERT INTO public.outlast_items VALUES (2, 6, '9', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 9', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722039222c6e756c6c5d5d2c226c6574746572223a226336383265326136616530663533363438376262643131393464313130623433227d7d', 1794817059229481, 235204, NULL, 'exhausted', '27a3100c86472090', 'connection_reset', 'ConnectionResetError');
INSERT INTO public.outlast_items VALUES (2, 5, '8', 'dlq', 1, 3, false, 'label: ConnectionResetError: no label for 8', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22636f6e6e656374696f6e5f7265736574222c226e6f206c6162656c20666f722038222c6e756c6c5d5d2c226c6574746572223a223131333036323230353864613464346432366561303966376263663166303638227d7d', 1794817059229467, 236060, NULL, 'exhausted', '27a3100c86472090', 'connection_reset', 'ConnectionResetError');
INSERT INTO public.outlast_items VALUES (3, 0, '5', 'succeeded', 1, 1, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a352c226c6162656c223a327d7d', 1794817059841904, 112, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (2, 2, '5', 'succeeded', 1, 3, false, NULL, NULL, NULL, '\x7b2276223a312c2264223a7b226964223a352c226c6162656c223a327d7d', 1794817059229418, 231901, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (4, 0, '1', 'dlq', 1, 2, false, 'measure: ValueError: the model refuses', '["the input of measure is not stored: it is a value of type Picture; a replay begins at load"]', NULL, '\x7b2276223a312c2264223a7b227374616765223a226d656173757265222c226572726f7273223a5b5b6e756c6c2c22646174615f6572726f72222c22746865206d6f64656c2072656675736573222c6e756c6c5d5d2c226c6574746572223a223431373138643139653435623638323935643930626636633934366435396464227d7d', 1794817062841440, 1456, NULL, 'permanent', '80eb484c8f680978', 'data_error', 'ValueError');
INSERT INTO public.outlast_items VALUES (5, 0, 'a', 'dlq', 0, 1, false, 'weigh: ValueError: too heavy', '["the input of weigh is not stored: it is a value of type Picture; its dead letters cannot be replayed"]', NULL, '\x7b2276223a312c2264223a7b227374616765223a227765696768222c226572726f7273223a5b5b6e756c6c2c22646174615f6572726f72222c22746f6f206865617679222c6e756c6c5d5d2c226c6574746572223a223734393262623062646466646639616465656561393734313630383031656363227d7d', 1794817066506478, 930, NULL, 'permanent', '0e7039d5a3e23989', 'data_error', 'ValueError');
INSERT INTO public.outlast_items VALUES (7, 0, '0', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794817070856122, 6194, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 1, '1', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794817070856178, 6179, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 3, '3', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794817070856217, 6791, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 4, '4', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794817070856232, 6796, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 5, '5', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794817070856245, 6796, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 6, '6', 'succeeded', 1, 2, false, NULL, NULL, NULL, NULL, 1794817070856258, 6794, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.outlast_items VALUES (7, 2, '2', 'dlq', 1, 2, false, 'label: ValueError: no label for 2', NULL, NULL, '\x7b2276223a312c2264223a7b227374616765223a226c6162656c222c226572726f7273223a5b5b6e756c6c2c22646174615f6572726f72222c226e6f206c6162656c20666f722032222c6e756c6c5d5d2c226c6574746572223a226237343264376333366635623763626664643065666339343534343630666632227d7d', 1794817070856199, 6362, NULL, 'permanent', '51996ef35a3686e7', 'data_error', 'ValueError');
INSERT INTO public.outlast_progress VALUES (1, 0, 2, 1, 3, NULL, true, 3, 0, 0, 0, 0, '{}');
INSERT INTO public.outlast_progress VALUES (3, 0, 2, 1, 1, NULL, true, 1, 0, 0, 0, 0, '{}');
INSERT INTO public.outlast_progress VALUES (4, 0, 2, 1, 1, NULL, true, 0, 0, 1, 0, 0, '{}');
INSERT INTO public.outlast_progress VALUES (5, 0, 2, 1, 1, NULL, true, 0, 0, 1, 0, 0, '{}');
INSERT INTO public.outlast_progress VALUES (6, 0, 1, 1, 0, NULL, false, 0, 0, 0, 0, 0, '{}');
INSERT INTO public.outlast_progress VALUES (2, 0, 5, 1, 7, NULL, true, 2, 0, 5, 0, 0, '{}');
INSERT INTO public.outlast_progress VALUES (7, 0, 1, 1, 12, 114, true, 6, 0, 1, 0, 0, '{}');
INSERT INTO public.outlast_replays VALUES (3, 0, '752bab3c6402ab5221ec9a37816830d2');
INSERT INTO public.outlast_replays VALUES (6, 0, '1a38fc15bc9ea2aaf38c0f9300ff8808');
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (1, '55ac136a7b21cb800b63dcedac8fe43c', 'shop', 'nightly', 'first', 'run', 'completed', NULL, '3 of 3 items succeeded', '[["parse", "1", true], ["label", "1", false]]', NULL, NULL, 1794817057597041, 1794817057635273, '{"sink": "the store", "key": ["field", "id"], "code": {"parse": "ea504f06a93d522a561bcea1", "label": "10236c02d08a299448135cd0"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (2, 'f99aae4e665ba5b3aa835745f28465a1', 'shop', 'nightly', 'second', 'run', 'completed', NULL, '2 of 7 items succeeded, 5 became dead letters; they are open', '[["parse", "1", true], ["label", "1", false]]', NULL, NULL, 1794817059021351, 1794817059481611, '{"sink": "the store", "key": ["field", "id"], "code": {"parse": "ea504f06a93d522a561bcea1", "label": "10236c02d08a299448135cd0"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (3, 'a09072c6d06ea367d000e3de615b6e82', 'shop', 'nightly', 'replay-bd25870bf89f', 'replay', 'completed', NULL, '1 of 1 item succeeded', '[["parse", "1", true], ["label", "1", false]]', NULL, NULL, 1794817059660795, 1794817059916548, '{"sink": "the store", "key": ["content", ""], "code": {"parse": "ea504f06a93d522a561bcea1", "label": "10236c02d08a299448135cd0"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (4, '0e4a6b1a162708af9e41c6a94f8d499f', 'shop', 'pictures', 'one', 'run', 'completed', NULL, '0 of 1 item succeeded, 1 became a dead letter; it is open', '[["load", "1", false], ["measure", "1", false]]', NULL, NULL, 1794817062795584, 1794817062893273, '{"sink": "the store", "key": ["function", ""], "code": {"load": "d3ed093c67099b32843d86ca", "measure": "8e8252f956480d6468c08de3"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (5, 'a78131d62328de6f2d560d23cbeafb3c', 'shop', 'things', 'one', 'run', 'completed', NULL, '0 of 1 item succeeded, 1 became a dead letter; it is open', '[["weigh", "1", false]]', NULL, NULL, 1794817066435327, 1794817066600049, '{"sink": "the store", "key": ["function", "46aa745773f90d191bbc14c5"], "code": {"weigh": "f4a55f41444f66085d243e74"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (6, 'dd0bdb3d6be7fd9b906ca8f651c3582e', 'shop', 'nightly', 'replay-d52eb03a9262', 'replay', 'running', NULL, '', '[["parse", "1", true], ["label", "1", false]]', NULL, NULL, 1794817069065723, NULL, '{"sink": "the store", "key": ["content", ""], "code": {"parse": "ea504f06a93d522a561bcea1", "label": "10236c02d08a299448135cd0"}}', NULL, NULL, NULL);
INSERT INTO public.outlast_runs OVERRIDING SYSTEM VALUE VALUES (7, 'd531cd091439d9d6ce0f547e50b4ac97', 'shop', 'nightly', 'third', 'run', 'running', NULL, '', '[["parse", "1", true], ["label", "1", false]]', NULL, 'out.jsonl', 1794817070777980, NULL, '{"sink": "out.jsonl", "key": ["field", "id"], "code": {"parse": "ea504f06a93d522a561bcea1", "label": "10236c02d08a299448135cd0"}}', '{"file": "/where/it/was/out.jsonl"}', NULL, NULL);
INSERT INTO public.outlast_schema VALUES (7);
INSERT INTO public.outlast_shards VALUES (1, 0, 2, '', 0, 20);
INSERT INTO public.outlast_shards VALUES (3, 0, 2, '', 0, 20);
INSERT INTO public.outlast_shards VALUES (4, 0, 2, '', 0, 20);
INSERT INTO public.outlast_shards VALUES (5, 0, 2, '', 0, 20);
INSERT INTO public.outlast_shards VALUES (6, 0, 1, 'gone.example/4026531836:4711:123456:1', 1, 20);
INSERT INTO public.outlast_shards VALUES (2, 0, 5, 'gone.example/4026531836:4711:123456:1', 1, 20);
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
CREATE INDEX outlast_runs_newest ON public.outlast_runs USING btree (app, started, number);
