"""The token ids that every vocabulary begins with: padding, unknown word, beginning and end of a sentence."""

PAD, UNK, BOS, EOS = 0, 1, 2, 3
END = "<end>"  # what users see in place of EOS
