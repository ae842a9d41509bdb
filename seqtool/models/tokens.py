"""The token ids that every vocabulary begins with: padding, unknown, begin and end of sentence."""

PAD, UNK, BOS, EOS = 0, 1, 2, 3
