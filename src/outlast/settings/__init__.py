"""
What users write as settings, read and checked.

    checks      gathers everything that is wrong, so that all mistakes are told at once
    keys        the configuration blocks of a guard and its parts, as tables
    blocks      the retry block, in every spelling that is accepted
    callables   what kind of callable is this, and must its result be awaited?
    names       from "module:name" to the thing it names
    secret      Secret: a secret by its name
"""
