"""The models: one file a family, each recognisable beside its paper."""
