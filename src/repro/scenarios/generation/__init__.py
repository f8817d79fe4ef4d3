"""Requests are answered token by token by a method on a device."""
