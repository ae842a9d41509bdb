"""The models: one file for each family, whose equations are those of its paper."""
