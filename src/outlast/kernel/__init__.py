"""
What everything stands on. Nothing here knows of retries.

    clock     Clock, Dice, Ids in a World: the only doors for time, chance and identity; Stop
    redact    no secret gets out, and nothing that a terminal obeys: every text that leaves passes through here
    log       the logger "outlast", silent and unloaded until somebody listens
    raised    every touch of an exception that is somebody else's, past whatever its class does
    frames    where an exception was raised, as a text for people
    value     the base of frozen values in the modules that load with @retry
    wording   numbers and times for a person's eye
    aliases   the types of arguments, for type checkers
"""
