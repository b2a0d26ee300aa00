"""
Ready-made policies. Five carry the numbers of the documents Outlast grew from, exactly; three are our own
recommendation.
"""

from __future__ import annotations

from outlast.policy import RetryPolicy

#: What a bare ``@retry`` does: 3 attempts, 1 s doubling to 30 s, ±25 %, transient errors.
default = RetryPolicy()

#: Model APIs: rate limits need more attempts and more patience than anything else, 529 is their way to say "overloaded", and what they say with 408
#: (no request in time) and 409 (a conflict of locks) passes too, as their own clients know.
llm = RetryPolicy(max_attempts=6, initial_delay=1.0, max_delay=60.0, on_errors=("transient", "5xx", 408, 409))

#: Databases: a pool or a failover recovers within 5 to 10 seconds; a deadlock at once.
database = RetryPolicy(max_attempts=6, initial_delay=0.2, max_delay=10.0, on_errors=("database", "network", "timeout"))

#: The numbers of older declared pipelines, for a step that names it: 3 attempts, 1 s doubling to 30 s, ±10 %.
step = RetryPolicy(
    max_attempts=3,
    max_delay=30.0,
    jitter=0.1,
    on_errors=("network_error", "timeout"),
    skip_on_errors=("syntax_error", "permission_denied"),
)

#: A durable job: 4 attempts, after 30, 120 and 480 s, ±20 %; every 5xx is worth it.
jobs = RetryPolicy(delays=(30.0, 120.0, 480.0), jitter=0.2, on_errors=("transient", "5xx"))

#: Retries by tier: database 5, network 3, 429 and 503 3, 500, 502 and 504 2; 1, 2, 4, 8, 16 s, no jitter.
tiered = RetryPolicy(
    max_delay=None, jitter=0.0, retry_limits={"database": 5, "network": 3, "http_429_503": 3, "http_500_502_504": 2}
)

#: A stage over items: 3 attempts, 1 s doubling to 60 s, ±25 % after the cap; unclear errors too.
stage = RetryPolicy(
    max_attempts=3, max_delay=60.0, jitter=0.25, cap="before_jitter", on_errors=("transient", "unclear")
)

#: A call by hand: 3 attempts, 1 s doubling to 60 s, plus 0 to 1 s.
call = RetryPolicy(
    max_attempts=3,
    max_delay=60.0,
    jitter={"add": 1.0},
    cap="before_jitter",
    on_errors=("timeout", ConnectionError, "TemporaryFailure"),
)
