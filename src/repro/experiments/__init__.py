"""The command line: configurations composed, sweeps run, results shown and tracked."""
