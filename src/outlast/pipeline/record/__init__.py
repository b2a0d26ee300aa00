"""
What becomes of an item that has ended.

    endings     its row, its attempts, its output or its dead letter
    writer      batches to the store and the sink, by a thread
    books       what is counted, and when a run must stop, pure
    rowerrors   what is wrong with an item, error by error
    errorfile   the same for a spreadsheet
"""
