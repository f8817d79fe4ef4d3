"""Bands: how far figures move when the assumed numbers of their machines do."""
