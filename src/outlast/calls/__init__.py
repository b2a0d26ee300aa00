"""
One protected call, from the door to its end.

    guard        the door: @retry, Guard, and what a decorated function does
    configured   a guard from a configuration block, and a guard as one
    state        the state of one call, and what to do next; it neither waits nor calls
    drivers      the loops around it: sync, async, attempts in the user's own code
    generators   the same for generators, up to their first item
    hedge        an attempt races with its hedges
    ending       what a call says when it gives up
    records      what happened, as values: AttemptRecord, Outcome, History; Context
    remote       the call as the child process knows it that makes its attempt
    internal     our own calls of stores and sinks: decided like any other, without events
"""
