"""What drafts beside smaller models: EAGLE and Medusa heads, their trees, drafts of a given agreement."""
