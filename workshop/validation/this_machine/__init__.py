"""This machine calibrated, predicted and measured in one run, cell by cell, with a null arm."""
