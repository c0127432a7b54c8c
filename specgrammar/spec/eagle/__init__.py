"""EAGLE draft heads: one small decoder layer that continues the target's features."""
