"""Figures from records alone: `runs` reads them, one small function a kind draws them, `registry`
says which figure is which.
"""
