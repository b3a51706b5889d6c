"""The cases of benchmarks/attention.py: what is compared, how it is checked, timed and written."""
