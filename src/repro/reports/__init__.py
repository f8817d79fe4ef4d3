"""Tables, figures and pages that compare our results with published values."""
