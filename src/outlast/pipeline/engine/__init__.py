"""
The runner of items.

    runner       the driver: takes items in, carries them from stage to stage, ends the run
    scheduling   slots, tasks and waits: which item is attempted next
    threads      the threads of blocking stages
    attempts     one attempt at a time
    item         one item's way through its stages, pure
    itemcall     the protected call of an item at a stage
    batches      which items go through one call together, and what it means for each, pure
"""
