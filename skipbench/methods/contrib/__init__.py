"""Methods beyond the replicated papers and their baselines, with a lower promise: their output is
lossless, as verified by the loop, but their constants are unverified and their settings may change.
"""
