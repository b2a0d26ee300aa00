"""
How work is done, whatever it is: items now, jobs next. Nothing here knows of items or runs.

    slots      how much is under way at a time; what waits for a slot, and what keeps one
    timers     what goes on at a later time, in virtual time too
    threads    a pool for work that blocks; it comes back to the event loop in bursts
    writer     batches to a store, by a thread: when they go, how many are under way, what to do when it is broken
    memory     a bound on the bytes of values that are finished and not written
    leases     who works on something: take a lease, keep it by a heartbeat, recognise the dead
    patience   do what needs a store or a sink, and wait while it cannot be used
"""
