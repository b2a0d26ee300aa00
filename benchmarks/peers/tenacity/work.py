"""asyncio and tenacity: a pool of tasks by hand, every stage decorated."""

import asyncio

import stages
from tenacity import retry, stop_after_attempt, wait_exponential_jitter

again = retry(stop=stop_after_attempt(stages.ATTEMPTS), wait=wait_exponential_jitter(initial=1, max=60), reraise=True)
steps = [again(step) for step in (stages.afirst, stages.asecond, stages.athird)]

stages.time_it("tenacity", lambda items: asyncio.run(stages.pool(items, steps)))
