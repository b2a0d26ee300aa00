"""
The door from the core to what processes share.

A breaker, a limit or a retry budget with ``shared=True`` keeps a small document under its kind and its name in a store,
where every process that uses the same app finds it. The core knows no store: it knows a `Commons`, which changes such a
document in one transaction and says what time it is there. No instant of a process's own clock is written into it.

    contact   a process's one thread to a commons; whether it can be asked
    named     what is known by a name: copies, pickles, forks, and to which commons it belongs
"""
