"""Multi30k, task 1 (Elliott et al. 2016): captions of photographs in English, German, French and Czech."""

from pathlib import Path
from typing import final

from seqtool.data.corpora.corpus import Files
from seqtool.data.corpora.parallel import PairFiles
from seqtool.errors import InputError
from seqtool.runtime.files import check_file
from seqtool.runtime.network import difference, download_file

URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"
LANGUAGES = ("en", "de", "fr", "cs")

CHECKSUMS = """
test_2016_flickr.cs.gz 22572 200a4a74cc9560f051924abb9803be008d1908d77f747e9141aeb86dfd2797f1
test_2016_flickr.de.gz 22890 9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8
test_2016_flickr.en.gz 21077 611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9
test_2016_flickr.fr.gz 22310 6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90
test_2017_flickr.de.gz 21471 a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee
test_2017_flickr.en.gz 19138 76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074
test_2017_flickr.fr.gz 20434 3ba671ceb2299f3304ffafefea7a833d08632fbaf0ba18546f8a2ec2391af496
test_2017_mscoco.de.gz 10230 799e4854c25d601cb6cb6be29eabe5667734c61ace2f495e03e429031a0bc338
test_2017_mscoco.en.gz 8844 aab300bfb4427697987e02cd0aacd44bfe8aa50456231b6474c08038bbed2b58
test_2017_mscoco.fr.gz 9751 754f3072ba9f124569ba5258b32730fc1d214bbf8e0c6dfb2b74401676220db0
test_2018_flickr.cs.gz 25181 7d0a9db904f94c554a8c58049a9f3a5357c27f46cc3d710d70cb0b4a2585b8c2
test_2018_flickr.de.gz 26461 ddd0130c7d97482dc5197a02141dae8dd79f20f03586c480d675c09a32daf608
test_2018_flickr.en.gz 23514 ef4f4844037d4c5dea75c9a8ed5fd78905967a26f67c255e230cc9780032654d
test_2018_flickr.fr.gz 25321 fb2b83fcceb937a4f7e3e93c1c51c22aba92f1e342391e6b5ba392b16a920501
train.cs.gz 593827 a65adb8b32e3bc664f21ecba7a6e7f6950fd1f405e135f7c312faabdb6255077
train.de.gz 637044 726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6
train.en.gz 568929 d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f
train.fr.gz 604242 622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c
val.cs.gz 22096 b63226e05c4bd5dd6a42897d74b86a1b9d2c31498252c572b1ea7f7996927fcc
val.de.gz 24681 f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a
val.en.gz 21650 14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28
val.fr.gz 23001 ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9
"""
PUBLISHED = {name: (int(size), sha256) for name, size, sha256 in map(str.split, CHECKSUMS.strip().splitlines())}


@final
class Multi30k(PairFiles):
    """The files of the data set in `directory`, as they are published; `download` fetches the missing ones.

    test_set is the file that the split `test` is read from: test_2016_flickr, test_2017_flickr and so on.
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
        tests = sorted({name.split(".")[0] for name in PUBLISHED if name.startswith("test")})
        tests = [name for name in tests if all(f"{name}.{language}.gz" in PUBLISHED for language in languages.values())]
        if test_set not in tests:
            raise InputError(f"Unknown data.test_set '{test_set}'; choose from {', '.join(tests)}.")
        self.source_language, self.target_language = source_language, target_language
        self._directory = Path(directory)
        self._stems = {"train": "train", "valid": "val", "test": test_set}
        self._download = download

    def files(self) -> dict[str, Files]:
        languages = self.source_language, self.target_language
        named = {split: [f"{stem}.{language}.gz" for language in languages] for split, stem in self._stems.items()}
        return {split: tuple(self._directory / name for name in names) for split, names in named.items()}

    def fetch(self) -> None:
        """Download missing files, if asked to, and check every file against its published checksum."""
        for path in self._paths():
            if self._download and not path.exists():
                download_file(URL + path.name, path, *PUBLISHED[path.name])
        self.check()

    def check(self) -> None:
        for path in self._paths():
            if not path.exists():
                raise InputError(
                    f"{path} does not exist: set data.directory to the directory that has Multi30k's "
                    "files, or data.download=true to download them into it."
                )
            if problem := difference(check_file(path).read_bytes(), *PUBLISHED[path.name]):
                raise InputError(f"{path} is not Multi30k's: {problem}. Remove it and set data.download=true.")

    def _paths(self) -> list[Path]:
        return [path for files in self.files().values() for path in files]
