"""Figures from records: `runs` reads them, `registry` names the function that draws each."""
