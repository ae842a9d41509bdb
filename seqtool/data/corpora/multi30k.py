"""Multi30k, task 1 (Elliott et al. 2016): captions of photographs in English, German, French and Czech."""

from itertools import chain
from pathlib import Path
from typing import final

from seqtool.data.corpora.parallel import PairFiles
from seqtool.errors import InputError
from seqtool.runtime.files import check_directory, check_file
from seqtool.runtime.network import difference, download_file

URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"
LANGUAGES = ("en", "de", "fr", "cs")

CHECKSUMS = Path(__file__).with_suffix(".txt").read_text()  # one line per published file: name, size in bytes, SHA-256
PUBLISHED = {name: (int(size), sha256) for name, size, sha256 in map(str.split, CHECKSUMS.splitlines())}
TEST_SETS = sorted({name.split(".")[0] for name in PUBLISHED if name.startswith("test")})


@final
class Multi30k(PairFiles):
    """The published files of the data set in `directory`. With `download`, missing files are downloaded into it.

    The split `test` is read from the files of `test_set`: test_2016_flickr, test_2017_flickr and so on.
    """

    name = "multi30k"

    def __init__(
        self, *, directory: str, source_language: str, target_language: str, test_set: str, download: bool
    ) -> None:
        languages = {"source_language": source_language, "target_language": target_language}
        for setting, language in languages.items():
            if language not in LANGUAGES:
                raise InputError(f"Unknown data.{setting} '{language}'; choose from {', '.join(LANGUAGES)}.")
        if source_language == target_language:
            raise InputError(f"data.source_language and data.target_language are both '{source_language}'.")
        test_sets = [
            name for name in TEST_SETS if all(f"{name}.{language}.gz" in PUBLISHED for language in languages.values())
        ]
        if test_set not in test_sets:
            raise InputError(f"Unknown data.test_set '{test_set}'; choose from {', '.join(test_sets)}.")
        self.source_language, self.target_language = source_language, target_language
        self.files = {
            split: tuple(Path(directory, f"{stem}.{language}.gz") for language in languages.values())
            for split, stem in (("train", "train"), ("valid", "val"), ("test", test_set))
        }
        self._download = download

    def fetch(self) -> None:
        """Download missing files if `download` is set, and check every file against its published checksum."""
        for path in chain(*self.files.values()):
            if self._download and not path.exists():
                check_directory(path.parent, "data.directory")
                download_file(URL + path.name, path, *PUBLISHED[path.name])
        self.check()

    def check(self) -> None:
        """Raise InputError if a file is missing or differs from the published one."""
        for path in chain(*self.files.values()):
            if not path.exists():
                raise InputError(
                    f"{path} does not exist: set data.directory to the directory of Multi30k's files, "
                    "or data.download=true to download them into it."
                )
            if problem := difference(check_file(path).read_bytes(), *PUBLISHED[path.name]):
                raise InputError(
                    f"{path} is not the file of Multi30k: {problem}. Remove it and set data.download=true."
                )
