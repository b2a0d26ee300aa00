"""
State that processes share: breakers, limits and retry budgets with ``shared=True``.

Each of them keeps a small document under its kind and its name in a store, where every process that uses the same app
finds it. This folder uses no store directly. It uses a `Commons`, which changes a document in one transaction and says
what time it is in the store. No instant of a process's own clock is written into a document.

    contact   the one thread of this process that asks a commons, and whether that can be reached
    named     objects known by kind and name: copies, pickles, forks, and the commons that each belongs to
"""
