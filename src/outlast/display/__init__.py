"""
What a person sees of a run while it runs, and of its parts in a notebook.

    snapshot    a run at one instant, as a value; View: what one look must remember for the next
    telling     the same in words: limits, breakers, costs; plain lines for a log
    graph       stages as a graph, drawn from its edges
    terminal    the picture in a terminal, with rich
    html        what pages are made of, a report's too: escaping, the palette, bars and tables for notebooks
    page        the same as HTML, and what pipelines and results show in a notebook
    flows       a run of a flow: its steps and their graph, for all three
    watch       a thread beside the run, which looks and shows: in a terminal, in a notebook, in lines

Only `terminal` needs rich, and is loaded only where it is installed.
"""
