"""Exercises that ask for code (`seqtool check`): what each asks for, and the comparison with ours."""
