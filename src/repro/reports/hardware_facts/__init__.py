"""Device files beside what papers and measurements say, as pages."""
