"""
What becomes of an item that has ended.

    endings     its row, its attempts, its output or its dead letter; whether its end stops the run
    writer      what a batch is, and how it goes to the sink and the store
    books       what is counted, and when a run must stop, pure
    rowerrors   what is wrong with an item, error by error
    errorfile   the same for a spreadsheet
"""
