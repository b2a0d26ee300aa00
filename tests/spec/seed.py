"""The five blocks that the format of steps goes back to, as they were written, and each of them as a whole file."""

from __future__ import annotations

import re

RETRY = """\
steps:
  - id: extract-data
    component: mysql.extractor
    retry:
      max_attempts: 3
      backoff: exponential  # none | linear | exponential
      initial_delay_ms: 1000
      max_delay_ms: 30000
      jitter: 0.1  # 10% randomization
      on_errors:
        - network_error
        - timeout
      skip_on_errors:
        - syntax_error
        - permission_denied
"""
TIMEOUT = """\
steps:
  - id: long-query
    component: mysql.extractor
    timeout:
      step_ms: 300000  # 5 minutes for this step
      total_ms: 600000  # 10 minutes including retries
"""
IDEMPOTENCY = """\
steps:
  - id: write-data
    component: supabase.writer
    idempotency:
      key: "${connection}:${table}:${params.batch_id}"
      cache_ttl_s: 3600  # Remember for 1 hour
"""
COMPENSATION = """\
steps:
  - id: reserve-capacity
    component: resource.allocator
    compensate:
      component: resource.deallocator
      config:
        allocation_id: "${steps.reserve-capacity.outputs.allocation_id}"

  - id: process-data
    component: data.processor
    depends_on: [reserve-capacity]
    # If this fails, compensation will run
"""
BREAKER = """\
steps:
  - id: call-external-api
    component: http.caller
    circuit_breaker:
      failure_threshold: 5
      reset_timeout_s: 60
      half_open_requests: 2
"""
BLOCKS = {
    "retry": RETRY,
    "timeout": TIMEOUT,
    "idempotency": IDEMPOTENCY,
    "compensate": COMPENSATION,
    "circuit_breaker": BREAKER,
}
HEAD = 'oml_version: "0.1.0"\nname: seed\nparams:\n  batch_id: {type: string, default: b-1}\n'
# What each component needs and the block does not show.
CONFIG = {
    "mysql.extractor": '{connection: "@mysql.shop", query: "select * from movies"}',
    "supabase.writer": '{connection: "@supabase.main", table: movies, rows: [{id: 1}]}',
    "resource.allocator": "{pool: workers, amount: 2, capacity: 8}",
    "data.processor": '{rows: [{id: 1}], call: "shop.steps:process"}',
    "http.caller": "{url: https://example.com/api}",
}


def whole(block: str) -> str:
    """The block as a file: head, parameters and config lines are added, and no line of it is changed."""
    lines = []
    for line in block.splitlines(keepends=True):
        lines.append(line)
        found = re.fullmatch(r"    component: (\S+)\n", line)
        if found:
            lines.append(f"    config: {CONFIG[found[1]]}\n")
    return HEAD + "".join(lines)
