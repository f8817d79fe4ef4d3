"""The emulator held against measurements that others published."""
