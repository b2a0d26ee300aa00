"""
The runner of items, put together from parts.

    runner       reads, and decides when to stop; it has a scheduler, endings (`record`) and a writer
    scheduling   which item is attempted next: tasks, and the slots, timers and threads of `work`
    attempts     one attempt at a time, in the event loop or in a thread
    item         one item's way through its stages, pure; a stage as it is in one run
    itemcall     the protected call of an item at a stage
    batches      which items go through one call together, and what it means for each, pure
"""
