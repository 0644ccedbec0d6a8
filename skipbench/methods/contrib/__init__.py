"""Methods beyond the replicated papers and their baselines, with a lower promise.

Their output is lossless, as every method's is: the loop verifies it, and the contract tests cover
them. Not promised: that they are what their papers measured (constants are unverified, as each file
says), that they have a page of published numbers, and that their settings stay from version to
version.
"""
