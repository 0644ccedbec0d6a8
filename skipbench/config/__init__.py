"""Schemas, composition and the catalogue of choices; hands out a frozen `RunConfig`."""
