"""The emulator held against measurements: of others, and of this machine."""
