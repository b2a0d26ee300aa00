"""
Parts for any kind of work: the items of a run, and later jobs. No module here imports items or runs.

    slots      how much work runs at a time; the queue for a slot; work that keeps its slot while it waits
    timers     work that goes on at a later time, also in virtual time
    threads    a pool for work that blocks; results come back to the event loop in bursts
    writer     batches to a store, written by a thread: when a batch is sent, how many at a time, what an error does
    memory     a bound on the bytes of values that are finished and not written
    leases     which process works on something: take a lease, renew it by a heartbeat, detect a dead owner
    patience   repeat an operation on a store or a sink while that cannot be used
"""
