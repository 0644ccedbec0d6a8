"""Configuration: schemas, composition and the catalogue of choices.

Hands out a frozen `RunConfig`.
"""
