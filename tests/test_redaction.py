"""No secret gets out: planted everywhere a secret can be, looked for everywhere a text of ours can be seen."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import logging
import pickle
import time
import traceback
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import outlast
from outlast import CircuitBreaker, ConfigurationError, Guard, RetryPolicy
from outlast.kernel import redact
from outlast.kernel.redact import MASK, error_text, mask, remember_secret, sanitise
from outlast.testing import capture_events, virtual_time
from tables import table

PLANT = "Zx9pLantEd"  # what must not be seen again, nor either half of it
names = itertools.count()


def seen(text: str) -> bool:
    """Whether any telling part of the plant is in it."""
    return "Zx9p" in text or "antEd" in text


@pytest.fixture(autouse=True)
def forget_secrets():
    """What one test made known is unknown to the next."""
    before = dict(redact._secrets)
    yield
    redact._secrets.clear()
    redact._secrets.update(before)


@pytest.fixture
def lines():
    """Every log record of Outlast with all it carries, as text."""

    class Handler(logging.Handler):
        def __init__(self):
            super().__init__()
            self.lines: list[str] = []

        def emit(self, record):
            self.lines.append(f"{self.format(record)} {vars(record)!r}")

    handler, logger = Handler(), logging.getLogger("outlast")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler.lines
    logger.setLevel(level)
    logger.removeHandler(handler)


# --- shapes of credentials ---

CREDENTIALS = {
    # connection strings
    "URL": f"cannot open postgresql://shop:{PLANT}@db.example:5432/shop",
    "URL without a user": f"redis://:{PLANT}@cache:6379/0 timed out",
    "URL with a plus scheme": f"mongodb+srv://shop:{PLANT}@cluster.example/shop?retryWrites=true",
    "URL with a slash in the password": f"amqp://shop:Zx9p/{PLANT}@queue/shop",
    "URL with an at sign in the password": f"amqp://shop:Zx9p@{PLANT}@queue/shop",
    "URL with a token for a user": f"fatal: could not read from https://{PLANT}@git.example/shop.git",
    "two URLs": f"http://a:{PLANT}@one.example and http://b:{PLANT}@two.example",
    "keyword string": f"connection failed: host=db user=shop password={PLANT} dbname=shop",
    "quoted keyword string": f"host=db password='{PLANT} and {PLANT}' dbname=shop",
    "semicolon string": f"Server=db;User Id=sa;Password={PLANT};Encrypt=yes",
    "semicolon string, short": f"Server=db;Uid=sa;Pwd={PLANT};",
    "storage account": f"DefaultEndpointsProtocol=https;AccountName=shop;AccountKey={PLANT}==;EndpointSuffix=core",
    "shared access": f"Endpoint=sb://shop/;SharedAccessKeyName=root;SharedAccessKey={PLANT}",
    # headers
    "bearer": f"Authorization: Bearer {PLANT}",
    "basic": f"authorization: Basic {PLANT}==",
    "token scheme": f"Authorization: Token {PLANT}",
    "own scheme": f"Authorization: ApiKey {PLANT}",
    "AWS scheme": f"Authorization: AWS4-HMAC-SHA256 Credential=shop/2026/s3, SignedHeaders=host, Signature={PLANT}",
    "digest": f'Authorization: Digest username="shop", nonce="x", response="{PLANT}"',
    "proxy": f"Proxy-Authorization: Basic {PLANT}",
    "API key header": f"X-Api-Key: {PLANT}",
    "auth token header": f"x-auth-token: {PLANT}",
    "header dictionary": f"{{'Host': 'x', 'Authorization': 'Bearer {PLANT}', 'Accept': '*/*'}}",
    "header dictionary, own scheme": f'{{"Authorization": "Token {PLANT}"}}',
    "header pairs": f"[(b'host', b'x'), (b'authorization', b'Bearer {PLANT}')]",
    "bearer alone": f"invalid bearer {PLANT}",
    "cookie": f"Cookie: session={PLANT}; theme=dark",
    "second cookie": f"Cookie: theme=dark; sid={PLANT}",
    "set-cookie": f"Set-Cookie: sid={PLANT}; Path=/; HttpOnly",
    "cross-site token": f"csrftoken={PLANT}",
    # addresses
    "query": f"GET https://api.example/v1?api_key={PLANT}&page=2 failed",
    "last of the query": f"GET https://api.example/v1?page=2&access_token={PLANT}",
    "signed address": f"https://bucket.example/a?X-Amz-Signature={PLANT}&X-Amz-Expires=60",
    "signature": f"https://account.example/a?sv=2026&sig={PLANT}",
    "key": f"https://maps.example/json?key={PLANT}",
    "form": f"user=shop&password={PLANT}&remember=1",
    "name of a parameter with percent signs": f"postgresql://db/shop?user=shop&p%61ssword={PLANT}&sslmode=require",
    # data
    "JSON": f'{{"user": "shop", "password": "{PLANT}"}}',
    "JSON without spaces": f'{{"client_secret":"{PLANT}","scope":"all"}}',
    "JSON in camel case": f'{{"accessToken": "{PLANT}", "expiresIn": 60}}',
    "JSON in camel case, secret": f'{{"clientSecret": "{PLANT}"}}',
    "JSON inside": f'{{"user": {{"password": "{PLANT}"}}}}',
    "JSON as a string": f'body: "{{\\"password\\": \\"{PLANT}\\"}}"',
    "JSON with an escaped quote": f'{{"password": "Zx9p\\"{PLANT}"}}',
    "dictionary": f"{{'refresh_token': '{PLANT}'}}",
    "bytes": f"{{b'password': b'{PLANT}'}}",
    "XML": f"<login><password>{PLANT}</password></login>",
    "YAML": f"database: password: {PLANT}",
    "arrow": f'{{:password=>"{PLANT}"}}',
    # code
    "keyword argument": f"connect(host='db', password='{PLANT}', port=5432)",
    "first keyword argument": f"Client(api_key='{PLANT}', timeout=3)",
    "object": f"BasicAuth(login='shop', password='{PLANT}', encoding='latin1')",
    "pair": f"requests.get(url, auth=('shop', '{PLANT}'))",
    "credentials pair": f"login(credentials=('shop', '{PLANT}'))",
    "assignment": f'openai.api_key = "{PLANT}"',
    "settings": f"SECRET_KEY = '{PLANT}'",
    "option": f"mysqldump --password={PLANT} shop",
    "option and value": f"tool --api-key {PLANT} run",
    "option with a prefix": f"tool --db-password {PLANT}",
    # environments
    "variable": f"OPENAI_API_KEY={PLANT}",
    "variable of AWS": f"AWS_SECRET_ACCESS_KEY={PLANT}",
    "session of AWS": f"aws_session_token = {PLANT}",
    "variable of PostgreSQL": f"PGPASSWORD={PLANT} psql -h db",
    "variable of MySQL": f"MYSQL_PWD={PLANT}",
    "variable, short": f"DB_PASS={PLANT}",
    "variable in one word": f"DBPASSWORD={PLANT}",
    "field in camel case": f"userPassword: {PLANT}",
    # words
    "sentence": f"the password {PLANT} was rejected",
    "sentence with is": f"password is {PLANT}",
    "provided": f"Incorrect API key provided: {PLANT}. You can find your key in the console.",
    "passphrase": f"passphrase={PLANT}",
    "token in words": f"token: {PLANT}",
    # keys
    "private key": f"-----BEGIN PRIVATE KEY-----\n{PLANT}\n-----END PRIVATE KEY-----",
    "private key cut short": f"-----BEGIN RSA PRIVATE KEY----- {PLANT}",
    "private key in JSON": f'"private_key": "-----BEGIN PRIVATE KEY-----\\n{PLANT}\\n-----END PRIVATE KEY-----\\n"',
    "JWT variable": f"jwt={PLANT}",
    # less usual places
    "list of tokens": f"refresh(tokens=['{PLANT}', '{PLANT}'])",
    "short word": f"login failed: user=shop pass={PLANT}",
    "short word and colon": f"user: shop, pass: {PLANT}",
    "before a host": f"cannot reach shop:{PLANT}@db.example:5432",
    "encoded query": f"redirected to /login?next=%2Fpay%3Ftoken%3D{PLANT}%26page%3D2",
    "web hook": f"POST https://hooks.slack.com/services/T0000000/B0000000/{PLANT}{PLANT}abcd failed",
    "SQL, MySQL": f"near \"CREATE USER shop IDENTIFIED BY '{PLANT}'\"",
    "SQL, PostgreSQL": f"near \"CREATE ROLE shop LOGIN PASSWORD '{PLANT}'\"",
    "SQL, assignment": f"near \"SET PASSWORD FOR 'shop' = '{PLANT}'\"",
    "command line user": f"curl -u shop:{PLANT} https://api.example failed with 22",
}

KEYS = {
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    "AWS id": "AKIAIOSFODNN7EXAMPLE",
    "AWS pair": "AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AWS secret": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "GitHub": "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "GitHub, fine": "github_pat_11ABCDEFG0aBcDeFgHiJkL_mNoPqRsTuVwXyZ0123456789",
    "GitLab": "glpat-abcdEFGH1234ijklMNOP",
    "Slack": "xoxb-123456789012-abcdefGHIJ",
    "Google": "AIzaSyA-abcdefghijklmnopqrstuvwxyz12345",
    "OpenAI": "sk-proj-abc_def-GHI123456789012345",
    "Anthropic": "sk-ant-api03-abcDEF123456_789xyzabc",
    "Stripe": "sk_live_abcdefghijklmnop1234",
    "Hugging Face": "hf_abcdefghijklmnopqrst",
    "npm": "npm_abcdefghijklmnopqrstuvwxyz0123456789",
    "SendGrid": "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",
    "Docker": "dckr_pat_abcdefghijklmnopqrstuv",
}


@table("text", CREDENTIALS.values(), ids=CREDENTIALS)
def test_a_credential_is_masked(text):
    """S0-41: whatever looks like one; the rest of the text stays."""
    clean = sanitise(text)
    assert not seen(clean), clean
    assert MASK in clean


@table("key", KEYS.values(), ids=KEYS)
def test_the_published_shape_of_a_key_is_masked(key):
    """Without any word in front of it (S0-41)."""
    masked = ":".join(MASK for _ in key.split(":"))
    assert sanitise(f"rejected {key} just now") == f"rejected {masked} just now"
    assert sanitise(f"rejected: '{key}'") == f"rejected: '{masked}'"


@table(
    ("text", "kept"),
    [
        ("cannot open postgresql://shop:x1x2x3@db.example/shop", "cannot open postgresql://***@db.example/shop"),
        ("host=db password=x1x2x3 dbname=shop", "host=db password=*** dbname=shop"),
        ("GET /v1?api_key=x1x2x3&page=2 failed", "GET /v1?api_key=***&page=2 failed"),
        ("connect(host='db', password='x1x2x3', port=5432)", "connect(host='db', password=***, port=5432)"),
        ('{"user": "shop", "password": "x1x2x3", "port": 1}', '{"user": "shop", "password": ***, "port": 1}'),
    ],
)
def test_what_stands_around_a_credential_stays_readable(text, kept):
    """A masked message still says what went wrong, and where (S0-41)."""
    assert sanitise(text) == kept


HARMLESS = [
    "token expired",
    "invalid token",
    "token limit exceeded",
    "KeyError: 'user_key'",
    "invalid syntax near SELECT",
    "Unexpected token < in JSON at position 0",
    "unexpected token 'from' at line 3",
    'duplicate key value violates unique constraint "users_pkey"',
    "DETAIL: Key (email)=(jane@shop.example) already exists.",
    "foreign key constraint fails",
    'password authentication failed for user "shop"',
    "Bearer token missing",
    "Basic authentication is required",
    "basic usage: see the docs",
    "digest mismatch for file a.txt",
    "maximum context length is 8192 tokens, however you requested 9000 tokens",
    "max_tokens: 4096 exceeds the limit",
    "token_count=12",
    "tokenizer=cl100k_base",
    "Rate limit reached for tokens per min (TPM): Limit 10000, Used 9000",
    "run 6f1d2c3b-8a4e-4f5d-9c0b-1a2b3c4d5e6f stopped",
    "run 6f1d2c3b8a4e4f5d9c0b1a2b3c4d5e6f stopped",
    "[Errno 104] Connection reset by peer",
    "[Errno 2] No such file or directory: '/srv/Data/exports/2026-11-15/reviews-part-00001.jsonl'",
    "[Errno 28] No space left on device: '/var/lib/Outlast/store-2026/Data-1.db'",
    "s3://my-Bucket/Path/2026/11/15/Part-00001-abcdef12.snappy.parquet is not readable",
    "HTTPSConnectionPool(host='api.example', port=443): Max retries exceeded with url: /v1/Orders/2026/items?page=2",
    "404 Client Error: Not Found for url: https://api.example/v2/Customers/ABC12345/Orders/2026-11-15/Lines",
    "the session has expired",
    "Session 42 is closed",
    "missing 1 required positional argument: 'key'",
    "'NoneType' object has no attribute 'get'",
    "author: Jane",
    "authors=2",
    "passed: 3, failed: 2",
    "bypass: 1",
    "monkey=5",
    "keyboard: us",
    "design: simple",
    "assignment=3",
    "signal: killed",
    "compass=north",
    "the secret of success",
    "i18n key 'home.title' is missing",
    "could not connect to server at 10.0.0.7:5432, retried 3 times",
    "2026-11-15T09:30:00.123456+00:00",
    "s3://bucket/reviews/2026/11/15/part-00001.parquet not found",
    "postgresql://db.example:5432/shop is not reachable",
    "expected 3 columns, got 5: id,name,price,currency,stock",
    "ValueError: could not convert string to float: '12,50'",
]


@table("text", HARMLESS)
def test_a_harmless_text_survives(text):
    """A message that says nothing any more helps nobody (S0-41)."""
    assert sanitise(text) == text


# --- values that are known to be secret ---


def test_a_known_value_is_masked_wherever_it_stands():
    """U-24: alone, inside a word, twice, and the longer of two that overlap (S0-41)."""
    remember_secret("blue-whale")
    remember_secret("blue-whale-in-the-sea")
    assert mask("a blue-whale") == f"a {MASK}"
    assert mask("xblue-whaley blue-whale") == f"x{MASK}y {MASK}"
    assert mask("blue-whale-in-the-sea") == MASK


@table(
    "encoded",
    [
        lambda value: value,
        quote,
        lambda value: quote(value, safe=""),
        json.dumps,
        repr,
        lambda value: repr(value.encode()),
        lambda value: value.replace("\n", " "),
    ],
    ids=["as it is", "quoted path", "quoted", "JSON", "repr", "bytes", "on one line"],
)
def test_a_known_value_is_masked_however_it_is_written(encoded):
    """U-24: in an address, in JSON or in a repr it looks different and is the same secret."""
    value = f'Zx9p/w "q"\n{PLANT}'
    remember_secret(value)
    assert not seen(sanitise(f"rejected {encoded(value)} now"))


def test_a_very_short_value_is_not_remembered():
    """U-24: masking every "a" would mask everything."""
    remember_secret("abc")
    remember_secret("")
    assert mask("abc def") == "abc def"


@given(before=st.text(max_size=300), after=st.text(max_size=300))
def test_a_known_value_never_gets_out(before, after):
    """U-24: whatever stands around it."""
    remember_secret(PLANT)
    assert PLANT not in sanitise(f"{before}{PLANT}{after}")


@table("distance", range(8170, 8200, 3))
def test_a_secret_is_not_cut_in_two_by_the_length_limit(distance):
    """U-24: half a secret behind a lot of white space is still half a secret."""
    remember_secret(PLANT)
    assert not seen(sanitise(" " * distance + PLANT + " end"))
    assert not seen(sanitise("\n" * distance + f"password={PLANT}"))


def test_a_text_is_bounded_and_on_one_line():
    """C-23: 280 characters, no line breaks, and the end says that something is missing (S0-41)."""
    clean = sanitise("first\r\n\tsecond " + "word " * 1000)
    assert clean.startswith("first second word")
    assert len(clean) == 280
    assert clean.endswith("…")
    assert sanitise("x" * 20, limit=10) == "x" * 9 + "…"


@pytest.mark.timeout(20)
@table(
    "text",
    [
        "0" * 8192,
        "a" * 8192,
        "-" * 8192,
        "aA" * 4096,
        "Aa1" * 2730 + "!",
        "x-" * 4096,
        "sk-" * 2730,
        "eyJ" * 2730,
        "eyJaaaaa." * 900,
        "password" * 1024,
        "password'" * 900,
        "key" * 2730,
        "a.b-c_" * 1360,
        "a:" * 4096,
        "http://" + "a:" * 4096,
        "-----BEGIN " * 740,
        "token " * 1360,
        "word " * 200_000,
        "f" * 5_000_000,
    ],
    ids=lambda text: f"{text[:12].strip()} x {len(text)}",
)
def test_masking_takes_no_time_worth_mentioning(text):
    """U-24: no message, however long or odd, keeps the call that failed with it waiting."""
    began = time.thread_time()
    sanitise(text)
    assert time.thread_time() - began < 0.5


@settings(max_examples=50)
@given(st.text(max_size=400))
def test_masking_twice_is_masking_once(text):
    """U-24: what has been cleaned stays as it is when it passes another door."""
    once = sanitise(text)
    assert sanitise(once) == once


def test_an_exception_without_readable_text_is_named():
    """Its type says enough (S0-41)."""

    class MuteError(Exception):
        def __str__(self):
            raise RuntimeError(PLANT)

    assert error_text(MuteError()) == "<MuteError has no readable text>"


# --- planted in a call ---


class VendorError(ConnectionError):
    """An error as clients make them: it carries the request that failed."""

    def __init__(self, message, **request):
        super().__init__(message)
        self.request = request


def wrapped(message: str) -> Exception:
    """An error whose cause, and whose cause's context, hold the secret."""
    try:
        try:
            raise OSError(f"password={PLANT}")
        except OSError:
            raise KeyError(message)  # noqa: B904 - the context is the point
    except KeyError as cause:
        error = ConnectionResetError("the upload failed")
        error.__cause__ = cause
        return error


PLANTED = {
    "message": lambda: ConnectionResetError(f"login with password={PLANT} failed"),
    "URL": lambda: ConnectionResetError(f"cannot reach https://shop:{PLANT}@api.example/v1"),
    "query": lambda: TimeoutError(f"GET https://api.example/v1?api_key={PLANT} timed out"),
    "header": lambda: ConnectionResetError(f"request with {{'Authorization': 'Bearer {PLANT}'}} failed"),
    "request of the error": lambda: VendorError("failed", headers={"Authorization": PLANT}, url=PLANT),
    "cause": lambda: wrapped(f"token={PLANT}"),
    "group": lambda: ExceptionGroup(f"token={PLANT}", [ConnectionResetError(f"password={PLANT}")]),
    "TemporaryFailure": lambda: outlast.TemporaryFailure(f"secret={PLANT}"),
    "permanent": lambda: outlast.PermanentFailure(f"password={PLANT}"),
    "value error": lambda: ValueError(f"cannot parse {{'password': '{PLANT}'}}"),
    "unclear": lambda: RuntimeError(f"Authorization: Bearer {PLANT}"),
}
every_plant = table("make", PLANTED.values(), ids=PLANTED)


def shown(error: Exception) -> list[str]:
    """Everything of ours that an exception carries; its own message is its author's affair."""
    return [
        repr(outlast.history(error)),
        repr(outlast.stop_reason(error)),
        *error.__notes__,
        *(repr(record) for record in outlast.history(error)),
        *(str(record.error) + repr(record.verdict) for record in outlast.history(error)),
        repr(vars(error)["__outlast_history__"]),
        repr(pickle.loads(pickle.dumps(outlast.history(error)))),
    ]


@every_plant
@pytest.mark.parametrize("kind", ["sync", "async", "attempts"])
def test_a_planted_secret_is_seen_nowhere(make, kind, lines):
    """S0-41, S0-43, U-24: no log line, event, history, note, outcome, context or repr shows it."""
    breaker = CircuitBreaker(f"planted-{next(names)}", failure_threshold=2)
    guard = Guard("shop", retry=RetryPolicy(jitter=0), breaker=breaker, total_timeout=60)
    texts: list[str] = []

    def body(*args, **kwargs):
        texts.append(repr(outlast.current()))
        raise make()

    async def abody(*args, **kwargs):
        body()

    with virtual_time(), capture_events() as events:
        if kind == "sync":
            outcome = guard.outcome(body, PLANT, header=PLANT)
            error = outcome.error
            texts.append(repr(outcome))
        elif kind == "async":
            outcome = asyncio.run(guard.aoutcome(abody, PLANT, header=PLANT))
            error = outcome.error
            texts.append(repr(outcome))
        else:
            with pytest.raises(Exception) as caught:
                for attempt in guard.attempts():
                    with attempt:
                        body(PLANT)
            error = caught.value
    assert events
    texts += shown(error) + lines + [repr(guard), repr(breaker), repr(guard.retry)]
    texts += [f"{event!r} {event.sentence()} {json.dumps(event.as_dict())}" for event in events]
    assert [text for text in texts if seen(text)] == []


@every_plant
def test_a_planted_secret_is_seen_nowhere_in_a_plain_retry(make, lines):
    """S0-41: the short way through @retry is no way around."""

    @outlast.retry(initial_delay=0)
    def work(secret):
        raise make()

    with pytest.raises(Exception) as caught:
        work(PLANT)
    assert [text for text in shown(caught.value) + lines if seen(text)] == []


def test_notes_say_nothing_that_the_message_said():
    """What a traceback prints below the exception is ours, and clean (S0-41)."""
    error = ConnectionResetError(f"password={PLANT}")

    @outlast.retry(max_attempts=1)
    def work():
        raise error

    with pytest.raises(ConnectionResetError):
        work()
    printed = "".join(traceback.format_exception_only(error)).splitlines()
    assert len(printed) > 1
    assert not any(seen(line) for line in printed[1:])


def test_a_value_in_an_outcome_is_not_shown():
    """What a call returned is the caller's, not the log's (S0-41)."""
    outcome = Guard("shop").outcome(lambda: {"token": PLANT})
    assert outcome.value == {"token": PLANT}
    assert not seen(repr(outcome))
    assert not seen(repr(outcome.attempts))


def test_the_last_error_in_a_context_is_not_shown():
    """Current() hands the error out and does not print it (S0-41)."""
    contexts = []

    @outlast.retry(initial_delay=0)
    def work():
        contexts.append(outlast.current())
        if len(contexts) < 3:
            raise ConnectionResetError(f"password={PLANT}")

    work()
    assert contexts[-1].last_error is not None
    assert not any(seen(repr(context)) for context in contexts)


def test_the_reason_of_an_isolation_is_clean(lines):
    """People write what they have at hand (S0-41)."""
    breaker = CircuitBreaker(f"isolated-{next(names)}")
    with capture_events() as events:
        breaker.isolate(f"rotating: old password={PLANT}")
    with pytest.raises(outlast.CircuitBreakerOpenError) as caught:
        breaker.call(print)
    texts = [str(caught.value), repr(caught.value), repr(vars(caught.value)), repr(breaker), *lines]
    texts += [f"{event!r} {event.sentence()} {json.dumps(event.as_dict())}" for event in events]
    assert "rotating" in str(caught.value)
    assert [text for text in texts if seen(text)] == []


def test_a_policy_does_not_show_what_a_predicate_holds():
    """A predicate may be a partial with anything inside (S0-41)."""

    def matches(secret, error):
        return secret in str(error)

    policy = RetryPolicy(on_errors=[functools.partial(matches, PLANT)])
    assert not seen(repr(policy))
    assert not seen(repr(Guard(retry=policy, retry_if=functools.partial(matches, PLANT), fallback=print)))
    assert not seen(repr(policy.decide(ConnectionResetError(PLANT), attempt=1)))


MISTAKES = {
    "timeout": lambda: Guard(timeout=f"postgresql://shop:{PLANT}@db/shop"),
    "breaker": lambda: Guard("shop", breaker=f"token={PLANT}", on_open=f"token={PLANT}"),
    "on_errors": lambda: RetryPolicy(on_errors=[f"token={PLANT}"]),
    "unknown option": lambda: RetryPolicy(**{f"password={PLANT}": 1}),
    "config": lambda: RetryPolicy.from_config({"password": PLANT, "max_attempts": f"token={PLANT}"}),
    "tier": lambda: RetryPolicy.from_config({"retry_limits": {f"token={PLANT}": 1}}),
    "mode": lambda: CircuitBreaker("service", mode=f"secret={PLANT}", failure_threshold=f"secret={PLANT}"),
    "ratio": lambda: outlast.RetryBudget("service", ratio=f"secret={PLANT}"),
    "classify": lambda: outlast.classify(f"token={PLANT}"),
    "retry": lambda: outlast.retry(f"token={PLANT}"),
    "register": lambda: outlast.register(ValueError, f"token={PLANT}"),
}


@table("mistake", MISTAKES.values(), ids=MISTAKES)
def test_the_complaint_about_a_setting_does_not_repeat_a_secret(mistake):
    """What came is shown, without what looks like a credential (S0-41)."""
    with pytest.raises(ConfigurationError) as caught:
        mistake()
    assert not seen(str(caught.value)), str(caught.value)
    assert not seen(repr(caught.value.problems))


def test_a_broken_predicate_is_reported_without_its_message(lines):
    """semantics 10: its exception may hold anything (S0-41)."""

    def broken(value):
        raise RuntimeError(f"password={PLANT}")

    guard = Guard("shop", retry=RetryPolicy(on_errors=[broken]), retry_if=broken)
    assert guard.call(lambda: PLANT) == PLANT
    with pytest.raises(ConnectionResetError):
        guard.call(functools.partial(raise_, ConnectionResetError()), PLANT)
    assert [line for line in lines if seen(line)] == []


def raise_(error, *_):
    raise error


def test_a_header_that_makes_no_sense_is_not_repeated(lines):
    """A Retry-After that cannot be read is ignored with a line that does not quote it (S0-41)."""
    error = VendorError("busy")
    error.status_code = 503
    error.headers = {"Retry-After": PLANT}
    with pytest.raises(VendorError):
        Guard("shop", retry=None).call(raise_, error)
    assert [line for line in lines if seen(line)] == []


# --- secrets by name ---


def test_a_secret_does_not_show_itself(monkeypatch):
    """U-24: neither before nor after it was revealed (S0-41)."""
    from outlast.app import Secret

    monkeypatch.setenv("SHOP_KEY", PLANT)
    secret = Secret.env("SHOP_KEY")
    assert not seen(repr(secret) + str(secret) + f"{secret}")
    assert secret.reveal() == PLANT
    assert not seen(repr(secret) + str(secret) + f"{secret}" + repr([secret]))


def test_a_revealed_secret_is_masked_from_then_on(monkeypatch, lines):
    """U-24: without any word in front of it, in every place that shows a text (S0-41)."""
    from outlast.app import Secret

    monkeypatch.setenv("SHOP_KEY", PLANT)
    value = Secret.env("SHOP_KEY").reveal()

    def work():
        raise ConnectionResetError(f"rejected {value}")

    with virtual_time(), capture_events() as events, pytest.raises(ConnectionResetError) as caught:
        Guard("shop", retry=RetryPolicy()).call(work)
    texts = shown(caught.value) + lines + [f"{event!r} {event.sentence()}" for event in events]
    assert events[0].error == f"rejected {MASK}"
    assert [text for text in texts if seen(text)] == []


def test_the_secrets_of_an_application_are_masked_from_its_beginning(monkeypatch):
    """U-24: they need not be revealed first."""
    from outlast.app import App, Secret

    monkeypatch.setenv("SHOP_KEY", PLANT)
    monkeypatch.delenv("SHOP_OTHER", raising=False)
    app = App("shop", secrets=[Secret.env("SHOP_KEY"), Secret.env("SHOP_OTHER")])
    assert not seen(sanitise(f"rejected {PLANT}"))
    assert not seen(repr(app) + repr(app.secrets))


def test_an_application_does_not_show_its_store(monkeypatch):
    """U-24: a store's address has a password."""
    from outlast.app import App

    app = App("shop", store=f"postgresql://shop:{PLANT}@db/shop")
    assert not seen(repr(app))


def test_a_value_given_for_a_secret_is_not_repeated():
    """U-24: this is the mistake that everyone makes once, and the message is what ends up in the log (S0-41)."""
    from outlast.app import App, Secret

    with pytest.raises(ConfigurationError) as caught:
        App("shop", secrets=[PLANT])
    assert not seen(str(caught.value))
    with pytest.raises(ConfigurationError) as caught:
        Secret.env("SHOP_KEY_THAT_IS_NOT_SET").reveal()
    assert "SHOP_KEY_THAT_IS_NOT_SET" in str(caught.value)


@table(
    "text",
    [
        "bad settings: token=SecretStr('Zaq1xsw2cde3')",
        "client refused: Client(api_key=pydantic.SecretStr('Zaq1xsw2cde3'), url='http://x')",
        "users:\n- user:\n    client-key-data: Zaq1xsw2cde3LS0t",
        "command failed: mysql -h db -u root -pZaq1xsw2cde3 shop",
        "mysqldump --single-transaction -pZaq1xsw2cde3 exited with 2",
        "sshpass -p Zaq1xsw2cde3 ssh host",
        "401 for dop_v1_Zaq1xsw2cde3Zaq1xsw2cde3Zaq1xsw2",
        "the secret key Zaq1xsw2cde3456789012345678901 was refused",
        "secret key 0123456789abcdef0123456789Zaq1xsw2cde3",
        "Das Passwort lautet Zaq1xsw2cde3.",
        "Kennwort: Zaq1xsw2cde3",
        "la contraseña es Zaq1xsw2cde3",
        '{"contraseña": "Zaq1xsw2cde3"}',
        "mot de passe : Zaq1xsw2cde3",
        "Mot de passe=Zaq1xsw2cde3",
        "senha=Zaq1xsw2cde3",
        "用户密码\uff1aZaq1xsw2cde3",
        "密码是 Zaq1xsw2cde3",
        "パスワード: Zaq1xsw2cde3",
        "пароль: Zaq1xsw2cde3",
        "<passwort>Zaq1xsw2cde3</passwort>",
    ],
)
def test_what_was_not_masked_is(text):
    """Shapes that a review found unmasked: calls as values, cluster files, options glued to their value, other languages."""
    assert "xsw2cde" not in sanitise(text)


@table(
    "text",
    ["your one-time code is 482913", "OTP: 482 913", "verification code: 48291347", "2FA code 482913", "otp=482913"],
)
def test_a_one_time_code_is_masked(text):
    """A code that opens a door is a secret for as long as it is good."""
    assert "482" not in sanitise(text)
    assert sanitise(text).endswith("***")


@table(
    "text",
    [
        "error code 1045 from mysql -h db -P 3306",
        "security code 12 of 300",
        "Das Passwort ist falsch",
        "la contraseña es incorrecta",
        "mysql -u root shop: connection refused",
        "the data key is missing",
        "exit code: 137",
        "token=expired",
        "HTTP verification failed: status code 503",
        "mot de passe incorrect",
    ],
)
def test_ordinary_text_is_left_alone(text):
    """What is masked in vain cannot be read when it is needed."""
    assert sanitise(text) == text


def test_a_secret_that_is_set_after_its_app_is_made_is_masked(monkeypatch):
    """The variable is looked up whenever something goes out, and an older value stays a secret (S0-41)."""
    monkeypatch.delenv("SET_LATER", raising=False)
    outlast.App("later", secrets=[outlast.Secret.env("SET_LATER")])
    said = []
    for value in ("violet-walrus", "orange-ferret"):
        monkeypatch.setenv("SET_LATER", value)
        said.append(sanitise("got violet-walrus and orange-ferret"))
    assert said == ["got *** and orange-ferret", "got *** and ***"]
