"""Tables, figures and pages that set results beside what papers published."""
