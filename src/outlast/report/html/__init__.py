"""
The parts of a page: small pieces with escaping, charts as SVG, the style sheet.
"""
