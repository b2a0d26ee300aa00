from . import RetryPolicy
default: RetryPolicy      # RetryPolicy()
llm: RetryPolicy          # for model APIs
database: RetryPolicy     # for databases
step: RetryPolicy         # for a step of a declared pipeline
jobs: RetryPolicy         # for durable jobs: 4 attempts, 30/120/480 s +-20 %
tiered: RetryPolicy       # retries by tier 5/3/3/2, 1, 2, 4, 8, 16 s, no jitter
stage: RetryPolicy        # for items: 3 attempts, 1 s doubling to 60 s, +-25 % after the cap; transient and unclear
call: RetryPolicy         # for a call: 3 attempts, 1 s doubling to 60 s, plus 0..1 s
