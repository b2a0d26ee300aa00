"""
How work is done, whatever it is: items now, jobs next. Nothing here knows of items or runs.

    leases     who works on something: take a lease, keep it by a heartbeat, recognise the dead
    patience   do what needs a store or a sink, and wait while it cannot be used
"""
