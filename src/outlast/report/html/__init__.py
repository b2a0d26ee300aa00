"""
The parts of a report's own page: sections and tables, charts as SVG, the style sheet. Escaping and colours are
`display.html`'s.
"""
