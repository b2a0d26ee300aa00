"""
``python -m outlast`` is the command ``outlast``.
"""

from __future__ import annotations

from outlast.cli import main

main()
