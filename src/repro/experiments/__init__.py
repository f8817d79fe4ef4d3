"""The command line: compose configurations, run sweeps, show and track results."""
