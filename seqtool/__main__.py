"""`python -m seqtool`, which is what torchrun starts."""

from seqtool.cli.main import main

if __name__ == "__main__":
    main()
