"""A worker's hands, for tests of what others see of jobs: claims them and writes how they ended."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from job_rows import end, failed, worker


class Hands:
    """One worker at the store of an app."""

    def __init__(self, app):
        self.app = app
        self.lease = worker(app.store)

    def take(self, queue="default", most=100, **how):
        """Claim jobs of the kinds that the app knows."""
        kinds = {kind: job.version for kind, job in self.app.kinds.items()}
        return self.app.store.turn(self.lease, [], {queue: most}, kinds, **how).claimed

    def finish(self, *ends):
        assert self.app.store.turn(self.lease, ends, {}, {}).lost == ()

    def succeed(self, queue="default"):
        """Do all there is, with the functions themselves."""
        for claimed in self.take(queue):
            job = self.app.kinds[claimed.kind]
            args, kwargs = job.bind_payload(claimed.payload, claimed.version)
            self.finish(end(claimed, result=job.encode_result(job.fn(*args, **kwargs))))

    def fail(self, queue="default", **how):
        """Let all there is fail for good, each with a dead letter of its own."""
        for claimed in self.take(queue):
            told = failed(claimed, **how)
            kept = replace(told.letter, id=uuid4().hex, payload=claimed.payload)
            self.finish(told._replace(letter=kept))
