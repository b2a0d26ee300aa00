"""
What users write as settings, read and checked.

    checks      gathers everything that is wrong, so that all mistakes are told at once
    blocks      configuration blocks, in every spelling that is accepted
    callables   what kind of callable is this, and must its result be awaited?
    names       from "module:name" to the thing it names
"""
