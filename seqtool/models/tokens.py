"""The token ids that every vocabulary begins with: padding, unknown, begin and end of sentence."""

PAD, UNK, BOS, EOS = 0, 1, 2, 3
END = "<end>"  # how EOS is shown to people
